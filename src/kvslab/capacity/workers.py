"""Several workers: pipeline stages that hold different layers, and data-parallel ranks.

Groups are formed over the whole model, because a block table is the whole model's.
Each stage then packs its own share of every group; a group of which it has no layer
costs it nothing.  All stages must have the same block ids, so the pool is the
smallest stage's, and the others are planned again for that many blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvslab.capacity.formulas import Load, auto_fit_max_model_len, max_concurrency
from kvslab.errors import InputError
from kvslab.generations import Formula, Generation, Price
from kvslab.groups import CacheGroup, is_latent_stack
from kvslab.intmath import checked_int
from kvslab.layers import CacheLayer, checked_stack
from kvslab.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPlan:
    """One plan for each pipeline stage, all of the same number of blocks.

    Args:
        groups: The cache groups of the whole model.
        stages: The stages' plans.
        num_data_parallel_ranks: Copies of the whole pipeline; each has pools of its own.
    """

    groups: tuple[CacheGroup, ...]
    stages: tuple[Plan, ...]
    num_data_parallel_ranks: int = 1

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, the same on every stage."""
        return self.stages[0].num_blocks

    def max_concurrency(self, load: Load, formula: Formula) -> Fraction:
        """Requests that all ranks serve at once; a request stays within one rank."""
        return self.num_data_parallel_ranks * max_concurrency(self.groups, self.num_blocks, load, formula)

    def auto_fit_max_model_len(self, load: Load, price: Price, *, keep_null_block: bool) -> int:
        """The longest request that fits on every stage, see `kvslab.capacity`.

        The `tuple` price is a worker's own: it counts the groups that the stage holds.
        The `stride` price counts every group, since block ids are the whole model's.
        """
        return min(
            auto_fit_max_model_len(
                plan.slab.groups if price == "tuple" else self.groups,
                plan.slab.block_stride,
                plan.pool_bytes,
                load,
                price,
                keep_null_block=keep_null_block,
            )
            for plan in self.stages
        )


def _share(groups: Sequence[CacheGroup], names: set[str]) -> tuple[CacheGroup, ...]:
    """The groups' layers that a stage holds, without the groups that are empty there."""
    shares = []
    for group in groups:
        held = [
            (layer, page)
            for layer, page in zip(group.layers, group.page_bytes, strict=True)
            if layer.name in names
        ]
        if held:
            layers, pages = zip(*held, strict=True)
            shares.append(CacheGroup(layers=layers, page_bytes=pages))
    return tuple(shares)


def plan_stages(
    generation: Generation,
    stages: Sequence[Sequence[CacheLayer]],
    budgets_bytes: Sequence[int],
    *,
    packed: bool = False,
    num_blocks_override: int | None = None,
    num_data_parallel_ranks: int = 1,
) -> StagedPlan:
    """Plan pipeline stages together.

    Args:
        generation: The planner.
        stages: The cache layers of each stage, in order.
        budgets_bytes: Bytes of each stage's pool.
        packed: Opt in to packing where the engine does not pack by itself.
        num_blocks_override: Blocks of every stage's pool, in place of the budgets.
        num_data_parallel_ranks: Copies of the pipeline.

    Raises:
        InputError: Stages and budgets differ in number, or a layer stands on two stages.
        BudgetError: A budget holds no block of its stage.
        RefusedError: The generation refuses the whole stack.
    """
    if not stages or len(stages) != len(budgets_bytes):
        raise InputError(
            "budgets", len(budgets_bytes), f"one for each of the {len(stages)} stages, at least one"
        )
    checked_int("num_data_parallel_ranks", num_data_parallel_ranks)
    whole = checked_stack(layer for stage in stages for layer in stage)
    groups = generation.group_layers(whole, packed=packed)
    slabs = []
    for stage in stages:
        share = _share(groups, {layer.name for layer in checked_stack(stage)})
        slabs.append(generation.pack_groups(share, packed=packed, latent=is_latent_stack(whole)))
    num_blocks = num_blocks_override
    if num_blocks is None:
        alone = [Plan(slab=slab, budget_bytes=size) for slab, size in zip(slabs, budgets_bytes, strict=True)]
        num_blocks = min(plan.num_blocks for plan in alone)
    return StagedPlan(
        groups=groups,
        stages=tuple(
            Plan(slab=slab, budget_bytes=size, num_blocks_override=num_blocks)
            for slab, size in zip(slabs, budgets_bytes, strict=True)
        ),
        num_data_parallel_ranks=num_data_parallel_ranks,
    )
