"""What more groups buy: for each number of groups the most requests, as far as it pays."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvslab.capacity import Load
from kvslab.fit.classes import BlockSizes, layer_classes, options_of
from kvslab.fit.search import frontier_options
from kvslab.generations.standard import pack
from kvslab.intmath import checked_int
from kvslab.layers import CacheLayer, checked_stack
from kvslab.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One plan on the frontier.

    Args:
        num_groups: Cache groups, so block tables of a request.
        requests: Requests at once, by `steady`.
        plan: The plan.
    """

    num_groups: int
    requests: Fraction
    plan: Plan


def frontier(
    layers: Sequence[CacheLayer],
    load: Load,
    budget_bytes: int,
    *,
    block_sizes: BlockSizes = "kernel-legal",
) -> tuple[Point, ...]:
    """Plans of ascending numbers of groups, each serving more requests than the one before.

    Args:
        layers: The model's cache layers.
        load: Request lengths and tokens in flight.
        budget_bytes: Bytes of the pool.
        block_sizes: Which block sizes are allowed.

    Returns:
        The points; none where no plan serves a request.
    """
    checked_int("budget", budget_bytes)
    classes = layer_classes(checked_stack(layers))
    options = [options_of(members, load, load.lengths, block_sizes) for members in classes]
    total = sum(weight for _, weight in load.lengths)
    points: list[Point] = []
    for choice, requests in frontier_options(options, budget_bytes):
        groups = [
            group
            for members, option in zip(classes, choice, strict=True)
            for group in members.cut(option.block_size, option.num_groups)
        ]
        plan = Plan(slab=pack(groups), budget_bytes=budget_bytes)
        points.append(Point(num_groups=len(groups), requests=total * requests, plan=plan))
    return tuple(points)
