"""Guards the claim that public reports come out: every stated number, and no number whatever one puts in.

The oracles are the strings that the sources print.  A report whose numbers would come
out of any setup proves nothing, so each is also perturbed.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from kvslab.errors import InputError
from kvslab.layers import CacheLayer
from kvslab.published import (
    Case,
    Inputs,
    StatedNumber,
    check_cases,
    derive_number,
    load_cases,
    parse_cases,
    shared_budgets,
)
from kvslab.tables import public_cases_table

CASES = load_cases()
BY_ID = {case.id: case for case in CASES}
NUMBERS = [
    pytest.param(case, number, id=f"{case.id}-{i}-{number.quantity}")
    for case in CASES
    for i, number in enumerate(case.numbers)
]

# The cases that the project was given; all others were found later.
GIVEN = ("vllm-44376", "vllm-54703-groups", "vllm-44454", "vllm-52109", "vllm-48724", "vllm-rbln-957")
GIVEN += ("inkling-54705", "blog-9.62GiB")


@pytest.mark.parametrize(("case", "number"), NUMBERS)
def test_every_stated_number_comes_out(case: Case, number: StatedNumber) -> None:
    assert derive_number(case, number, CASES) == number.value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_one_budget_gives_every_number_of_a_report(case: Case) -> None:
    for number in case.numbers:
        assert not shared_budgets(case, number.inputs).is_empty


def test_budget_of_a_report_by_hand() -> None:
    # 13,270 blocks of 1,002,240 bytes, and below 13,271: the range in the thread prints as 12.39 GiB.
    case = BY_ID["vllm-51041-dspark"]
    budgets = shared_budgets(case, case.numbers[0].inputs)
    assert (budgets.low_bytes, budgets.high_bytes) == (13_270 * 1_002_240, 13_271 * 1_002_240)
    assert f"{budgets.low_bytes / 2**30:.2f}" == f"{budgets.high_bytes / 2**30:.2f}" == "12.39"


def test_enough_was_found() -> None:
    found = [case for case in CASES if not case.id.startswith(GIVEN)]
    assert len({case.url for case in found}) >= 10
    assert len({case.model for case in found}) >= 3
    assert all(case.url.startswith("https://") and case.source for case in CASES)


def _with_layers(case: Case, change: Callable[[CacheLayer], CacheLayer]) -> Case:
    return replace(case, layers=tuple(change(layer) for layer in case.layers))


def _wider(layer: CacheLayer) -> CacheLayer:
    spec, page = layer.spec, layer.spec.fixed_page_bytes
    wide = replace(spec, row_bytes=spec.row_bytes * 2, fixed_page_bytes=None if page is None else page * 2)
    return replace(layer, spec=wide)


def _longer_blocks(layer: CacheLayer) -> CacheLayer:
    return replace(layer, spec=layer.spec.with_block_size(layer.spec.block_size * 2))


def _with_inputs(case: Case, **change: Any) -> Case:
    numbers = tuple(replace(n, inputs=replace(n.inputs, **change)) for n in case.numbers)
    return replace(case, numbers=numbers)


def _perturbed(case: Case, index: int) -> Iterator[Case]:
    inputs = case.numbers[index].inputs
    yield _with_layers(case, _wider)
    yield _with_layers(case, _longer_blocks)
    if inputs.num_blocks is not None:
        yield _with_inputs(case, num_blocks=inputs.num_blocks + 16)
    if inputs.max_model_len is not None:
        yield _with_inputs(case, max_model_len=inputs.max_model_len * 5 // 4)
    if len(case.layers) > 5:
        yield replace(case, layers=case.layers[:-3])


@pytest.mark.parametrize(("case", "number"), NUMBERS)
def test_every_number_depends_on_what_was_put_in(case: Case, number: StatedNumber) -> None:
    index = case.numbers.index(number)
    derived = (derive_number(other, other.numbers[index], CASES) for other in _perturbed(case, index))
    assert any(text != number.value for text in derived)


@pytest.mark.parametrize(
    ("case_id", "change"),
    [
        # The fp8 server's block count, which the bf16 numbers have been quoted with.
        ("inkling-54705-bf16-131072", {"num_blocks": 535_384}),
        ("inkling-54705-bf16-131072", {"max_in_flight_tokens": 16_384}),
        ("inkling-54703-fp8-131072", {"budget_gib": "114.40"}),
        ("inkling-54704-gain", {"max_in_flight_tokens": 2_048}),
        ("vllm-44376", {"max_in_flight_tokens": 8_192}),
        ("vllm-44376", {"budget_gib": "5.45"}),
        ("vllm-51041-dspark", {"max_in_flight_tokens": 16_384}),
        ("vllm-51041-dspark", {"budget_gib": "12.40"}),
        ("vllm-10517-20k", {"budget_gib": "3.82"}),
        ("vllm-10517-29k", {"budget_gib": "2.90"}),
        ("vllm-13596", {"num_blocks": 127_627}),
        ("vllm-12569", {"num_blocks": 1_383}),
        ("lmcache-1739", {"budget_gib": "6.52"}),
        ("vllm-34076", {"budget_gib": "3.19"}),
        ("recipes-12-util90", {"budget_gib": "48.67"}),
        ("recipes-12-util95", {"budget_gib": "55.64"}),
        ("kaito-2132", {"budget_gib": "17.40"}),
        ("spark-396-refused", {"budget_gib": "22.51"}),
        # Printed beside the served numbers, but on a worker with more memory.
        ("spark-396-served", {"budget_gib": "28.74"}),
        ("vllm-19996", {"budget_gib": "51.64"}),
        ("vllm-27508", {"max_in_flight_tokens": 2_048}),
        ("vllm-19029-window", {"max_in_flight_tokens": 16_384}),
        ("glm52-dcp4", {"dcp": 2}),
        ("glm52-dcp4", {"budget_bytes": 1_806_000_000}),
    ],
)
def test_a_wrong_input_gives_another_number(case_id: str, change: dict[str, Any]) -> None:
    case = _with_inputs(BY_ID[case_id], **change)
    assert any(derive_number(case, number, CASES) != number.value for number in case.numbers)


@pytest.mark.parametrize(
    ("case_id", "slab"),
    [("vllm-44454-padded", "overlay"), ("vllm-44454-bucketed", "padded"), ("vllm-51041-dspark", "bucketed")],
)
def test_a_wrong_generation_gives_another_number(case_id: str, slab: str) -> None:
    case = replace(BY_ID[case_id], slab=slab)
    assert any(derive_number(case, number, CASES) != number.value for number in case.numbers)


def test_a_wrong_formula_gives_another_number() -> None:
    case = BY_ID["vllm-51041-dspark"]
    tokens = next(number for number in case.numbers if number.quantity == "tokens")
    assert derive_number(case, replace(tokens, formula="legacy"), CASES) != tokens.value


def test_contradicting_numbers_are_not_both_reproduced() -> None:
    case = BY_ID["lmcache-1739"]
    numbers = tuple(replace(n, value="1.31") if n.quantity == "concurrency" else n for n in case.numbers)
    wrong = replace(case, numbers=numbers)
    assert shared_budgets(wrong, numbers[0].inputs).is_empty
    assert not all(result.matches for result in check_cases((wrong,)))


def test_table() -> None:
    table = public_cases_table()
    columns = "id what model release quantity formula unit stated derived verdict source url"
    assert list(table.columns) == columns.split()
    assert len(table) == len(NUMBERS)
    assert set(table["verdict"]) == {"reproduced"}


def _file(**change: Any) -> dict[str, Any]:
    entry: dict[str, Any] = dict.fromkeys(("id", "what", "source", "url", "model", "release"), "x")
    entry |= {"slab": "overlay", "setup": {"layers": []}, "numbers": []}
    layer = {"kind": "full_attention", "num_layers": 2, "block_size": 16, "row_bytes": 4}
    return {"cases": [entry | {"setup": {"layers": [layer]}} | change]}


def test_case_files_are_checked() -> None:
    (case,) = parse_cases(_file())
    assert [layer.name for layer in case.layers] == ["full_attention.0", "full_attention.1"]
    doubled = json.loads(json.dumps(_file()))
    doubled["cases"] *= 2
    with pytest.raises(InputError, match="an id that no other case has"):
        parse_cases(doubled)
    with pytest.raises(InputError, match=r"slab: got 'stacked', need one of"):
        parse_cases(_file(slab="stacked"))
    with pytest.raises(InputError, match=r"numbers\[0\].quantity: got 'speed', need one of"):
        parse_cases(_file(numbers=[{"quantity": "speed", "value": "1"}]))
    with pytest.raises(InputError, match=r"numbers\[0\].blocks: got 3, need no such field"):
        parse_cases(_file(numbers=[{"quantity": "num_blocks", "value": "1", "blocks": 3}]))
    number = StatedNumber(quantity="block_stride", value="1", inputs=Inputs(), baseline="nowhere")
    with pytest.raises(InputError, match="baseline: got 'nowhere', need the id of a case"):
        derive_number(case, number, ())
