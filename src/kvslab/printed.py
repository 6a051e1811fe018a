"""Printed figures: which budgets a rounded number stands for, and a value printed to the same digits.

A memory figure printed to 0.01 GiB is wider than a block, so it stands for an interval
of budgets, and a block count stands for another; what agrees lies in both.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction

from kvslab.intmath import UNIT_BYTES, cdiv


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


def printed_like(value: Fraction, pattern: str) -> str:
    """Round to as many decimals as `pattern` shows, with a sign where it has one.

    >>> printed_like(Fraction(649, 100), "+6.50")
    '+6.49'
    """
    step = Decimal(1).scaleb(-len(pattern.partition(".")[2]))
    exact = Decimal(value.numerator) / Decimal(value.denominator)
    rounded = exact.quantize(step, rounding=ROUND_HALF_EVEN)
    return f"{rounded:+}" if pattern[0] in "+-" else f"{rounded}"
