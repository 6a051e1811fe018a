"""Derive every published number again, and say whether it comes out.

A published budget is rounded to 0.01 GiB, wider than a block, so it does not fix
a block count.  What can be checked is stronger: that one budget, within the
printed rounding, gives the counts before *and* after the change at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from functools import lru_cache

from kvslab.errors import InputError, PlanError
from kvslab.generations import generation_named
from kvslab.intmath import UNIT_BYTES, cdiv
from kvslab.models import load_layers
from kvslab.published import BUDGETS, PUBLISHED, STATED, PublishedNumber, Setup
from kvslab.slab import SlabLayout


@lru_cache(maxsize=64)
def slab_of(setup: Setup) -> SlabLayout:
    """Plan the slab of a setup."""
    layers = load_layers(setup.model, backend=setup.backend, indexer=setup.indexer)
    return generation_named(setup.slab).lay_out(layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetInterval:
    """Budgets `low_bytes <= budget < high_bytes`; empty where `low >= high`."""

    low_bytes: int
    high_bytes: int

    @property
    def is_empty(self) -> bool:
        """Whether no budget lies in it."""
        return self.low_bytes >= self.high_bytes

    def meet(self, other: "BudgetInterval") -> "BudgetInterval":
        """The budgets that lie in both."""
        return BudgetInterval(
            low_bytes=max(self.low_bytes, other.low_bytes), high_bytes=min(self.high_bytes, other.high_bytes)
        )


def printed_interval(printed_gib: str) -> BudgetInterval:
    """Budgets in bytes that print as this two-decimal figure in GiB.

    >>> printed_interval("26.46")
    BudgetInterval(low_bytes=28405839954, high_bytes=28416577373)
    """
    value, half = Fraction(printed_gib), Fraction(1, 200)
    low, high = ((value + sign * half) * UNIT_BYTES["GiB"] for sign in (-1, 1))
    return BudgetInterval(
        low_bytes=cdiv(low.numerator, low.denominator), high_bytes=cdiv(high.numerator, high.denominator)
    )


def counts_interval(counts: Iterable[tuple[int, int]]) -> BudgetInterval:
    """Budgets at which every `(num_blocks, block_stride)` holds.

    >>> counts_interval([(21709, 1308672), (23120, 1228800)])
    BudgetInterval(low_bytes=28409960448, high_bytes=28411084800)
    """
    pairs = list(counts)
    return BudgetInterval(
        low_bytes=max(n * stride for n, stride in pairs),
        high_bytes=min((n + 1) * stride for n, stride in pairs),
    )


@lru_cache(maxsize=8)
def budget_interval(backend: str) -> BudgetInterval:
    """Budgets that print as the published figure and give both published counts.

    Raises:
        InputError: No budget is published for the backend.
        PlanError: There is none: the published numbers contradict the planner.
    """
    if backend not in BUDGETS:
        raise InputError("backend", backend, f"one of {', '.join(BUDGETS)}")
    counts = [
        (int(number.value), slab_of(number.setup).block_stride)
        for number in STATED
        if number.quantity == "num_blocks" and number.unit == "blocks" and number.setup.backend == backend
    ]
    interval = counts_interval(counts).meet(printed_interval(BUDGETS[backend].printed_gib))
    if interval.is_empty:
        raise PlanError(
            f"no budget near {BUDGETS[backend].printed_gib} GiB gives the published counts of {backend}"
        )
    return interval


def _quantity(number: PublishedNumber, setup: Setup) -> Fraction:
    slab = slab_of(setup)
    match number.quantity:
        case "row_bytes":
            keys = (page for page in slab.pages if page.layer.name.endswith("indexer.k_cache"))
            return Fraction(next(keys).layer.spec.row_bytes)
        case "block_stride":
            return Fraction(slab.block_stride)
        case "num_blocks":
            return Fraction(budget_interval(setup.backend).low_bytes // slab.block_stride)
        case "blocks_per_byte":
            return Fraction(1, slab.block_stride)
        case "num_groups":
            return Fraction(len(slab.groups))


def derive(number: PublishedNumber) -> Fraction:
    """Compute a published quantity from the model's config, exactly.

    Block counts are taken at the least budget of `budget_interval`.
    """
    value = _quantity(number, number.setup)
    return value if number.baseline is None else 100 * (value / _quantity(number, number.baseline) - 1)


def printed_like(value: Fraction, pattern: str) -> str:
    """Round to as many decimals as `pattern` shows, with a sign where it has one.

    >>> printed_like(Fraction(649, 100), "+6.50")
    '+6.49'
    """
    step = Decimal(1).scaleb(-len(pattern.partition(".")[2]))
    exact = Decimal(value.numerator) / Decimal(value.denominator)
    rounded = exact.quantize(step, rounding=ROUND_HALF_EVEN)
    return f"{rounded:+}" if pattern[0] in "+-" else f"{rounded}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """A published number beside the one derived here.

    Args:
        number: As published.
        derived: As computed, printed to the same digits.
    """

    number: PublishedNumber
    derived: str

    @property
    def difference(self) -> Decimal:
        """Derived minus published, in the number's unit."""
        return Decimal(self.derived) - Decimal(self.number.value)

    @property
    def matches(self) -> bool:
        """Whether the two agree to the last printed digit."""
        return self.difference == 0


def reproduce(numbers: Iterable[PublishedNumber] = PUBLISHED) -> tuple[Reproduction, ...]:
    """Derive each number and set it beside the published one."""
    return tuple(Reproduction(number=n, derived=printed_like(derive(n), n.value)) for n in numbers)
