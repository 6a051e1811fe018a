"""Guards the claim of the project: every published number comes out, and a wrong one would be noticed."""

from dataclasses import replace
from fractions import Fraction

import pytest

from kvslab.errors import InputError
from kvslab.printed import counts_interval, printed_interval, printed_like
from kvslab.published import PUBLISHED, STATED, budget_interval, reproduce


def test_every_number_comes_out() -> None:
    wrong = {item.number.id: (item.number.value, item.derived) for item in reproduce() if not item.matches}
    assert wrong == {}
    assert len({number.id for number in PUBLISHED}) == len(PUBLISHED)


def test_the_headline_is_among_them() -> None:
    stated = {number.id: number.value for number in STATED}
    assert stated["flashinfer-blocks-before"] == "21709"
    assert stated["flashinfer-blocks-after"] == "23120"
    assert stated["flashmla-blocks-before"] == "19015"
    assert stated["flashmla-blocks-after"] == "21306"
    assert stated["flashinfer-blocks-change"] == "+6.50"
    assert stated["flashmla-blocks-change"] == "+12.05"


def test_a_wrong_number_differs() -> None:
    number = next(n for n in STATED if n.id == "flashinfer-stride-after")
    (item,) = reproduce([replace(number, value="1228801")])
    assert not item.matches
    assert item.difference == -1


def test_budget_intervals() -> None:
    # Bounds worked out by hand in the design notes.
    assert (budget_interval("flashinfer").low_bytes, budget_interval("flashinfer").high_bytes) == (
        28_409_960_448,
        28_411_084_800,
    )
    assert (budget_interval("flashmla").low_bytes, budget_interval("flashmla").high_bytes) == (
        28_017_560_448,
        28_018_326_528,
    )
    for backend, printed in (("flashinfer", "26.46"), ("flashmla", "26.09")):
        for budget in (budget_interval(backend).low_bytes, budget_interval(backend).high_bytes - 1):
            assert f"{budget / 2**30:.2f}" == printed


def test_contradicting_counts_leave_no_budget() -> None:
    assert counts_interval([(21709, 1308672), (23125, 1228800)]).is_empty
    assert printed_interval("26.46").meet(printed_interval("26.48")).is_empty
    with pytest.raises(InputError, match="backend: got 'flashinfer-bf16', need one of flashinfer, flashmla"):
        budget_interval("flashinfer-bf16")


@pytest.mark.parametrize(
    ("value", "pattern", "printed"),
    [
        (Fraction(1411, 21709) * 100, "+6.50", "+6.50"),
        (Fraction(-79872, 1308672) * 100, "-6.10", "-6.10"),
        (Fraction(68), "132", "68"),
        (Fraction(1, 3), "+0.0", "+0.3"),
    ],
)
def test_printing(value: Fraction, pattern: str, printed: str) -> None:
    assert printed_like(value, pattern) == printed
