"""The exact search: the best stride, and the best option of every class below it.

With stride `S` a pool has `budget // S` blocks; the plan serves::

    N = (budget // S - 1 - sum of transient) / sum of held

over one option a class, each of at most `S` bytes.  Only sizes of groups are strides
worth trying.  A ratio of sums is maximised by Dinkelbach's method: for a guess
`N = p / q` the best of::

    q * (budget // S - 1 - sum of transient) - p * sum of held

falls apart into one minimum a class, and one sweep over ascending strides finds it.
The best plan's own `N` is the next guess; it stops when the best value is 0, after
finitely many guesses (in practice four to seven), with the exact optimum.

Source: W. Dinkelbach, On Nonlinear Fractional Programming, Management Science 13 (1967).
"""

from collections.abc import Sequence
from fractions import Fraction

from kvslab.fit.classes import Option


def free_blocks(choice: Sequence[Option], budget_bytes: int) -> int:
    """Blocks left for what requests hold; negative where a batch in flight alone does not fit."""
    stride = max(option.largest_bytes for option in choice)
    return budget_bytes // stride - 1 - sum(option.transient for option in choice)


def best_options(options: Sequence[Sequence[Option]], budget_bytes: int) -> tuple[Option, ...] | None:
    """One option a class that serves most requests, or None where no plan serves any.

    Of plans that serve equally many it takes the one with the fewest groups, then the
    one that keeps more declared block sizes, then the smaller stride.  The effort is
    linear in the number of options, but for sorting them.

    Args:
        options: The options of each class.
        budget_bytes: Bytes of the pool.
    """
    events = sorted(
        ((option.largest_bytes, i, option) for i, row in enumerate(options) for option in row),
        key=lambda event: event[:2],
    )
    guess = Fraction(0)
    while True:
        value, stride = _best_stride(events, len(options), guess, budget_bytes)
        choice = tuple(min(_below(row, stride), key=lambda o: _rank(o, guess)) for row in options)
        if value <= 0:
            return choice if guess else None
        guess = Fraction(free_blocks(choice, budget_bytes), sum(option.held for option in choice))


def _below(options: Sequence[Option], stride: int) -> list[Option]:
    return [option for option in options if option.largest_bytes <= stride]


def _rank(option: Option, guess: Fraction) -> tuple[int, int, bool, int, int]:
    cost = guess.denominator * option.transient + guess.numerator * option.held
    return (cost, option.num_groups, option.is_changed, option.largest_bytes, option.block_size)


def _best_stride(
    events: Sequence[tuple[int, int, Option]], num_classes: int, guess: Fraction, budget_bytes: int
) -> tuple[int, int]:
    """The best value and its stride, ties broken as `best_options` says."""
    ranks: list[tuple[int, int, bool, int, int] | None] = [None] * num_classes
    missing, cost, num_groups, num_changed = num_classes, 0, 0, 0
    best: tuple[int, int, int, int] | None = None
    for position, (stride, i, option) in enumerate(events):
        rank, old = _rank(option, guess), ranks[i]
        if old is None or rank < old:
            missing -= old is None
            was = old or (0, 0, False, 0, 0)
            cost += rank[0] - was[0]
            num_groups += rank[1] - was[1]
            num_changed += rank[2] - was[2]
            ranks[i] = rank
        is_last = position + 1 == len(events) or events[position + 1][0] > stride
        if is_last and not missing:
            value = guess.denominator * (budget_bytes // stride - 1) - cost
            found = (value, -num_groups, -num_changed, -stride)
            best = found if best is None else max(best, found)
    assert best is not None  # every class has an option
    return best[0], -best[3]
