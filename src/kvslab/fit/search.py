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


def frontier_options(
    options: Sequence[Sequence[Option]], budget_bytes: int
) -> list[tuple[tuple[Option, ...], Fraction]]:
    """The best choice for each number of groups, with its requests, as long as more groups serve more.

    For a stride and a block size, a class takes the fewest groups that fit; what is left
    to choose is a block size a class.  Choices grow class by class, and one that another
    beats in groups, held blocks and in-flight blocks is dropped at once.  That loses
    nothing, since requests only fall with each of the three.

    Args:
        options: The options of each class, by ascending groups for each block size.
        budget_bytes: Bytes of the pool.

    Returns:
        `(choice, free blocks / sum of held)` by ascending groups; only choices that serve requests.
    """
    choices: list[tuple[Option, ...]] = []
    for stride in sorted({option.largest_bytes for row in options for option in row}):
        choices += _choices(options, stride)
    priced = [
        (
            _num_groups(choice),
            Fraction(free_blocks(choice, budget_bytes), sum(o.held for o in choice)),
            choice,
        )
        for choice in choices
    ]
    frontier: list[tuple[tuple[Option, ...], Fraction]] = []
    for _, requests, choice in sorted(priced, key=lambda item: (item[0], -item[1])):
        if requests > (frontier[-1][1] if frontier else 0):
            frontier.append((choice, requests))
    return frontier


def _choices(options: Sequence[Sequence[Option]], stride: int) -> list[tuple[Option, ...]]:
    """Every choice below a stride that no other beats; none where a class does not fit."""
    kept: list[tuple[Option, ...]] = [()]
    for row in options:
        fewest: dict[int, Option] = {}
        for option in row:  # by ascending groups, for each block size
            if option.largest_bytes <= stride:
                fewest.setdefault(option.block_size, option)
        kept = _unbeaten([(*choice, option) for choice in kept for option in fewest.values()])
    return kept


def _unbeaten(choices: Sequence[tuple[Option, ...]]) -> list[tuple[Option, ...]]:
    kept: list[tuple[tuple[int, int, int], tuple[Option, ...]]] = []
    for price, choice in sorted(((_price(choice), choice) for choice in choices), key=lambda pair: pair[0]):
        if not any(a <= price[0] and b <= price[1] and c <= price[2] for (a, b, c), _ in kept):
            kept.append((price, choice))
    return [choice for _, choice in kept]


def _price(choice: Sequence[Option]) -> tuple[int, int, int]:
    return (
        _num_groups(choice),
        sum(option.held for option in choice),
        sum(option.transient for option in choice),
    )


def _num_groups(choice: Sequence[Option]) -> int:
    return sum(option.num_groups for option in choice)
