"""Derive every published number again, and say whether it comes out.

A published budget is rounded to 0.01 GiB, wider than a block, so it does not fix
a block count.  What can be checked is stronger: that one budget, within the
printed rounding, gives the counts before *and* after the change at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from kvslab.errors import InputError, PlanError
from kvslab.generations import generation_named
from kvslab.models import load_layers
from kvslab.printed import BudgetInterval, counts_interval, printed_interval, printed_like
from kvslab.published.numbers import BUDGETS, PUBLISHED, STATED, PublishedNumber, Setup
from kvslab.slab import SlabLayout


@lru_cache(maxsize=64)
def slab_of(setup: Setup) -> SlabLayout:
    """Plan the slab of a setup."""
    layers = load_layers(setup.model, backend=setup.backend, indexer=setup.indexer)
    return generation_named(setup.slab).lay_out(layers)


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
