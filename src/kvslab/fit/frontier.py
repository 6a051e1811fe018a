"""What more groups buy: for each number of groups the most requests, as far as it pays.

Every stride is tried once, each class at the fewest groups that fit it, and among
those at the block size that costs least.  Points that another one beats in both
numbers are dropped.  With `keep` that is exact: fewer groups of one class are fewer
blocks too.  With other block sizes a point may lie below the best of its number of
groups; the last point never lies below `fit`, and `fit` is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvslab.capacity import Load
from kvslab.fit.classes import BlockSizes, Option, layer_classes, options_of
from kvslab.fit.search import best_options, free_blocks
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
    best = best_options(options, budget_bytes)
    if best is None:
        return ()
    value = _requests(best, budget_bytes)

    def rank(option: Option) -> tuple[int, int]:
        cost = value.denominator * option.transient + value.numerator * option.held
        return (option.num_groups, cost)

    choices = [best]
    for stride in sorted({option.largest_bytes for row in options for option in row}):
        fitting = [[option for option in row if option.largest_bytes <= stride] for row in options]
        if all(fitting):
            choices.append(tuple(min(row, key=rank) for row in fitting))
    total = sum(weight for _, weight in load.lengths)
    points: list[Point] = []
    for choice in sorted(choices, key=lambda c: (_num_groups(c), -_requests(c, budget_bytes))):
        requests = total * _requests(choice, budget_bytes)
        if requests > (points[-1].requests if points else 0):
            groups = [
                group
                for members, option in zip(classes, choice, strict=True)
                for group in members.cut(option.block_size, option.num_groups)
            ]
            plan = Plan(slab=pack(groups), budget_bytes=budget_bytes)
            points.append(Point(num_groups=len(groups), requests=requests, plan=plan))
    return tuple(points)


def _num_groups(choice: Sequence[Option]) -> int:
    return sum(option.num_groups for option in choice)


def _requests(choice: Sequence[Option], budget_bytes: int) -> Fraction:
    free = free_blocks(choice, budget_bytes)
    return Fraction(max(0, free), sum(option.held for option in choice))
