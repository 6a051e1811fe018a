"""Public reports of cache capacity, each derived again from what its source states.

A report is a stack of cache layers, the inputs that its source gives and the numbers
that it prints.  Memory is printed to 0.01 GiB, wider than a block, so a budget is an
interval: what is checked is that *one* budget inside it gives every number of the
report at once.  Where no memory is printed the budget is free, and the numbers must
still agree with one block count::

    num_blocks = budget // block_stride
    concurrency = max_concurrency(num_blocks, max_model_len, formula)
    tokens = int(concurrency * max_model_len)    "GPU KV cache size: N tokens"
    pool_tokens = num_blocks * block_size        the same line up to vLLM 0.9
    pool_tokens_per_group = num_blocks // num_groups * block_size    and up to 0.20

Values are exact until they are printed with as many digits as the source shows.

Source: `cases.json`, where every report names its own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from kvslab.capacity import Load, admission_bytes, auto_fit_max_model_len, blocks_per_request, max_concurrency
from kvslab.errors import InputError
from kvslab.generations import generation_named
from kvslab.intmath import MAX_INT, UNIT_BYTES, cdiv
from kvslab.layers import CacheLayer
from kvslab.printed import BudgetInterval, printed_interval, printed_like
from kvslab.published.case_file import POOL, Case, Inputs, StatedNumber, load_cases
from kvslab.slab import SlabLayout


@lru_cache(maxsize=128)
def _slab(slab: str, layers: tuple[CacheLayer, ...]) -> SlabLayout:
    return generation_named(slab).lay_out(layers)


def _quantity(case: Case, number: StatedNumber, budget_bytes: int) -> Fraction:
    slab, inputs = _slab(case.slab, case.layers), number.inputs
    groups, stride = slab.groups, slab.block_stride
    num_blocks = budget_bytes // stride
    load = Load.of(
        inputs.max_model_len or MAX_INT,
        max_in_flight_tokens=inputs.max_in_flight_tokens,
        dcp=inputs.dcp,
        num_speculative_tokens=inputs.num_extra_states,
    )
    match number.quantity:
        case "block_stride":
            return Fraction(stride, UNIT_BYTES[number.unit])
        case "block_size":
            return Fraction(groups[number.group].block_size)
        case "tuple_bytes":
            return Fraction(sum(set(groups[0].page_bytes)))
        case "num_tuples":
            return Fraction(max(group.num_tuples for group in groups))
        case "group_bytes":
            return Fraction(groups[number.group].group_bytes)
        case "group_blocks":
            return Fraction(blocks_per_request(groups, load)[number.group])
        case "blocks_per_request":
            return Fraction(sum(blocks_per_request(groups, load)))
        case "admission":
            return Fraction(admission_bytes(groups, stride, load, number.price), UNIT_BYTES[number.unit])
        case "first_block_past_int31":
            return Fraction(cdiv(2**31, stride))
        case "num_blocks":
            return Fraction(num_blocks)
        case "pool_tokens":
            return Fraction(num_blocks * groups[0].block_size)
        case "pool_tokens_per_group":
            return Fraction(num_blocks // len(groups) * min(group.block_size for group in groups))
        case "tokens":
            return Fraction(int(max_concurrency(groups, num_blocks, load, number.formula) * load.longest))
        case "concurrency":
            return max_concurrency(groups, num_blocks, load, number.formula)
        case _:
            keep = number.quantity == "auto_fit_exact"
            return Fraction(
                auto_fit_max_model_len(groups, stride, budget_bytes, load, number.price, keep_null_block=keep)
            )


def _printed(value: Fraction, number: StatedNumber) -> str:
    """Print as the source does: its digits, its thousands separators, its dropped zeros."""
    pattern = number.value.replace(",", "")
    if number.unit == "GiB":
        # The engine rounds to 0.01 GiB; vLLM 0.15 and later then drop a last zero.
        text = printed_like(value, "0.00")
        return text[:-1] if len(pattern.partition(".")[2]) == 1 and text.endswith("0") else text
    text = printed_like(value, pattern)
    return f"{Decimal(text):,}" if "," in number.value else text


def _given_budgets(case: Case, inputs: Inputs) -> BudgetInterval:
    stride = _slab(case.slab, case.layers).block_stride
    if inputs.num_blocks is not None:
        low = inputs.num_blocks * stride
        return BudgetInterval(low_bytes=low, high_bytes=low + 1)
    if inputs.budget_bytes is not None:
        return BudgetInterval(low_bytes=inputs.budget_bytes, high_bytes=inputs.budget_bytes + 1)
    if inputs.budget_gib is not None:
        return printed_interval(inputs.budget_gib)
    return BudgetInterval(low_bytes=stride, high_bytes=MAX_INT)


def _matching_budgets(case: Case, number: StatedNumber) -> BudgetInterval:
    """The given budgets at which the number prints as stated: an interval, for it grows with the budget."""
    given, stated = _given_budgets(case, number.inputs), Decimal(number.value.replace(",", ""))

    def least(*, above: bool) -> int:
        low, high = given.low_bytes, given.high_bytes
        while low < high:
            middle = (low + high) // 2
            printed = Decimal(_printed(_quantity(case, number, middle), number).replace(",", ""))
            if printed > stated or (printed == stated and not above):
                high = middle
            else:
                low = middle + 1
        return low

    return BudgetInterval(low_bytes=least(above=False), high_bytes=least(above=True))


def shared_budgets(case: Case, inputs: Inputs) -> BudgetInterval:
    """The budgets at which every number of a case with these inputs' pool prints as stated.

    Empty where there is none: then the numbers contradict the setup or each other.
    """
    pool = (inputs.num_blocks, inputs.budget_bytes, inputs.budget_gib)
    budgets = _given_budgets(case, inputs)
    for number in case.numbers:
        its = number.inputs
        if number.quantity in POOL and (its.num_blocks, its.budget_bytes, its.budget_gib) == pool:
            budgets = budgets.meet(_matching_budgets(case, number))
    return budgets


def derive_number(case: Case, number: StatedNumber, cases: Iterable[Case] = ()) -> str:
    """The number as the planner computes it, printed like the source's.

    Raises:
        InputError: The number's baseline is none of `cases`.
    """
    budgets = shared_budgets(case, number.inputs) if number.quantity in POOL else None
    if budgets is None or budgets.is_empty:
        budgets = _given_budgets(case, number.inputs)
    value = _quantity(case, number, budgets.low_bytes)
    if number.baseline is not None:
        found = [other for other in cases if other.id == number.baseline]
        if not found:
            raise InputError("baseline", number.baseline, "the id of a case")
        value = 100 * (_quantity(found[0], number, budgets.low_bytes) / value - 1)
    return _printed(value, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """A stated number beside the derived one, both as printed."""

    case: Case
    number: StatedNumber
    derived: str

    @property
    def matches(self) -> bool:
        """Whether the two agree to the last printed digit."""
        return self.derived == self.number.value


def _results(cases: tuple[Case, ...]) -> Iterator[CaseResult]:
    for case in cases:
        for number in case.numbers:
            yield CaseResult(case=case, number=number, derived=derive_number(case, number, cases))


def check_cases(cases: tuple[Case, ...] | None = None) -> tuple[CaseResult, ...]:
    """Derive every number of every case, of `cases.json` where none are given."""
    return tuple(_results(load_cases() if cases is None else cases))
