"""What one plan serves, in one value: what a user wants to know beside the block count.

`engine` figures are what the generation's own code says; `exact` ones hold.
"""

from dataclasses import dataclass
from fractions import Fraction

from kvslab.capacity.formulas import (
    FORMULAS,
    PRICES,
    Load,
    admission_bytes,
    auto_fit_max_model_len,
    blocks_per_request,
    max_concurrency,
)
from kvslab.generations import Formula, Generation, Price
from kvslab.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a plan serves under a load.

    Args:
        blocks_per_request: Blocks of the longest request, per group.
        admission_bytes: Its price, by price rule.
        max_concurrency: Requests served at once, by formula.
        auto_fit_engine: The longest request by the generation's own price and the whole
            budget, the null block ignored.
        auto_fit_exact: The longest request by the stride price in the blocks that the
            plan has (an override counts), the null block kept.

    Lengths are in tokens, prices in bytes.

    Source: formulas and prices as in `kvslab.capacity.formulas`.

    >>> from kvslab import Load, Plan, generation_named, load_layers, summarize
    >>> overlay = generation_named("overlay")
    >>> plan = Plan(slab=overlay.lay_out(load_layers("deepseek-v4-pro")), budget_bytes=28_410_134_921)
    >>> summary = summarize(plan, overlay, Load.of(1_048_576, max_in_flight_tokens=8192))
    >>> summary.blocks_per_request, summary.auto_fit_exact
    ((4096, 131, 131, 1041, 2051), 1048576)
    """

    blocks_per_request: tuple[int, ...]
    admission_bytes: dict[Price, int]
    max_concurrency: dict[Formula, Fraction]
    auto_fit_engine: int
    auto_fit_exact: int


def summarize(plan: Plan, generation: Generation, load: Load) -> Summary:
    """Say what a plan serves.

    Args:
        plan: The plan.
        generation: The planner that made its slab.
        load: The requests, lengths in tokens.

    Returns:
        Blocks, prices in bytes, requests at once and the longest request in tokens.

    Raises:
        InputError: The load is out of range.

    Source: formulas and prices as in `kvslab.capacity.formulas`.

    >>> from kvslab import Load, Plan, generation_named, load_layers
    >>> overlay = generation_named("overlay")
    >>> plan = Plan(slab=overlay.lay_out(load_layers("deepseek-v4-pro")), budget_bytes=28_410_134_921)
    >>> summarize(plan, overlay, Load.of(1_048_576, max_in_flight_tokens=8192)).admission_bytes
    {'tuple': 8868480000, 'stride': 9154560000}
    """
    groups, stride, owners = plan.slab.groups, plan.slab.block_stride, plan.slab.owners
    return Summary(
        blocks_per_request=blocks_per_request(groups, load),
        admission_bytes={
            price: admission_bytes(groups, stride, load, price, owners=owners) for price in PRICES
        },
        max_concurrency={
            formula: max_concurrency(groups, plan.num_blocks, load, formula, owners=owners)
            for formula in FORMULAS
        },
        auto_fit_engine=auto_fit_max_model_len(
            groups,
            stride,
            plan.budget_bytes,
            load,
            generation.price,
            keep_null_block=False,
            owners=owners,
        ),
        auto_fit_exact=auto_fit_max_model_len(
            groups, stride, plan.pool_bytes, load, "stride", keep_null_block=True, owners=owners
        ),
    )
