"""Slab x byte budget -> plan: how many blocks, and where every byte of them lies.

    num_blocks = budget_bytes // block_stride

One block of the pool, the null block, is never handed out, so requests can use
`num_blocks - 1`.  The address of layer `l` of a tensor, in block `b`, is::

    offset + l * layer_stride + b * block_stride
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kvslab.errors import BudgetError
from kvslab.intmath import checked_int
from kvslab.slab import PlacedPage, SlabLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTensor:
    """Layers of one group and one spec at a constant distance: one strided tensor.

    Args:
        layers: Names, in the order of their offsets.
        group_id: Their group.
        offset: First byte of the first layer's page in block 0.
        layer_stride: Bytes from one layer's page to the next layer's, same block.
        block_stride: Bytes from one block's page to the next block's, same layer.
        payload_bytes: Bytes of one page that rows use.
    """

    layers: tuple[str, ...]
    group_id: int
    offset: int
    layer_stride: int
    block_stride: int
    payload_bytes: int

    def address(self, layer_index: int, block_id: int) -> int:
        """First byte of one layer's page in one block, from the start of the allocation."""
        return self.offset + layer_index * self.layer_stride + block_id * self.block_stride


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A slab that is repeated as often as the budget allows.

    Args:
        slab: The layout of one block.
        budget_bytes: Bytes for the whole pool.
        num_blocks_override: Take this many blocks, whatever the budget says.

    Raises:
        InputError: A number is no positive integer.
        BudgetError: The budget holds no block, and there is no override.

    Source: vLLM's block count; both counts of PR 48993 come out.

    >>> from kvslab.generations import generation_named
    >>> from kvslab.models import load_layers
    >>> slab = generation_named("overlay").lay_out(load_layers("deepseek-v4-pro"))
    >>> Plan(slab=slab, budget_bytes=28_410_134_921).num_blocks
    23120
    """

    slab: SlabLayout
    budget_bytes: int
    num_blocks_override: int | None = None

    def __post_init__(self) -> None:
        checked_int("budget", self.budget_bytes)
        if self.num_blocks_override is not None:
            checked_int("num_blocks_override", self.num_blocks_override, maximum=2**31 - 1)
        elif self.budget_bytes < self.slab.block_stride:
            raise BudgetError(
                f"budget: got {self.budget_bytes:,} bytes, need one block: {self.slab.block_stride:,}"
            )

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, the null block included."""
        if self.num_blocks_override is not None:
            return self.num_blocks_override
        return self.budget_bytes // self.slab.block_stride

    @property
    def pool_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.num_blocks * self.slab.block_stride

    @property
    def remaining_bytes(self) -> int:
        """Bytes of the budget that no block uses; negative where an override exceeds it."""
        return self.budget_bytes - self.pool_bytes

    @property
    def tensors(self) -> tuple[PlannedTensor, ...]:
        """The pool as strided tensors, which together hold every layer once."""
        runs: list[list[PlacedPage]] = []
        for pages in _by_group_and_spec(self.slab):
            for page in sorted(pages, key=lambda p: p.offset):
                run = runs[-1] if runs else []
                if (
                    run
                    and run[0].group_id == page.group_id
                    and run[0].layer.spec == page.layer.spec
                    and _extends(run, page)
                ):
                    run.append(page)
                else:
                    runs.append([page])
        return tuple(self._tensor(run) for run in runs)

    def _tensor(self, run: list[PlacedPage]) -> PlannedTensor:
        first = run[0]
        step = run[1].offset - first.offset if len(run) > 1 else first.page_bytes
        # Layer outermost: a slot is a region of num_blocks pages, so offsets inside
        # the block become offsets of regions.
        scale = 1 if self.slab.block_outermost else self.num_blocks
        return PlannedTensor(
            layers=tuple(page.layer.name for page in run),
            group_id=first.group_id,
            offset=first.offset * scale,
            layer_stride=step * scale,
            block_stride=self.slab.block_stride
            if self.slab.block_outermost
            else _slot_bytes(self.slab, first.offset),
            payload_bytes=first.payload_bytes,
        )


def _by_group_and_spec(slab: SlabLayout) -> Iterator[list[PlacedPage]]:
    classes: dict[tuple[int, object], list[PlacedPage]] = {}
    for page in slab.pages:
        classes.setdefault((page.group_id, page.layer.spec), []).append(page)
    yield from classes.values()


def _extends(run: list[PlacedPage], page: PlacedPage) -> bool:
    return len(run) == 1 or page.offset - run[-1].offset == run[1].offset - run[0].offset


def _slot_bytes(slab: SlabLayout, offset: int) -> int:
    return next(slot.slot_bytes for slot in slab.slots if slot.offset == offset)
