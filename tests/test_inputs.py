"""Guards the door: whatever a file holds, a user gets one line that names the field, never a traceback."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvslab.errors import InputError, PlanError
from kvslab.files import read_json
from kvslab.generations import GENERATIONS
from kvslab.intmath import parse_bytes
from kvslab.layers import KINDS, layers_from_json
from kvslab.models import layers_from_config, preset_config

GOOD = {"name": "a", "kind": "full_attention", "block_size": 16, "row_bytes": 64}

BAD_LAYERS: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, r"layers\[0\]\.name: got '', need a non-empty string"),
    ({"name": 3}, r"layers\[0\]\.name: got 3"),
    ({"kind": "linear"}, r"layers\[0\]\.kind: got 'linear', need one of full_attention, mla_attention"),
    ({"kind": None}, r"layers\[0\]\.kind: got None"),
    ({"block_size": 0}, r"layers\[0\]\.block_size: got 0"),
    ({"block_size": -16}, r"layers\[0\]\.block_size: got -16"),
    ({"block_size": 2**60}, r"layers\[0\]\.block_size: got 1152921504606846976"),
    ({"block_size": 2**50, "row_bytes": 2**50}, r"layers\[0\]\.block_size: got \d+, need a page of at most"),
    ({"row_bytes": "64"}, r"layers\[0\]\.row_bytes: got '64'"),
    ({"row_bytes": True}, r"layers\[0\]\.row_bytes: got True"),
    ({"compress_ratio": 3}, r"layers\[0\]\.compress_ratio: got 3, need a divisor of block_size 16"),
    ({"alignment": 0}, r"layers\[0\]\.alignment: got 0"),
    (
        {"page_bytes": 10},
        r"layers\[0\]\.page_bytes: got 10, need at least rows_per_page \* row_bytes = 1,024",
    ),
    (
        {"sliding_window": 4},
        r"layers\[0\]\.sliding_window: got 4, need no such field for kind full_attention",
    ),
    ({"kind": "sliding_window"}, r"layers\[0\]\.sliding_window: got nothing"),
    ({"kind": "chunked_local_attention"}, r"layers\[0\]\.attention_chunk_size: got nothing"),
    ({"kind": "mamba"}, r"layers\[0\]\.page_bytes: got nothing, need the bytes of one state"),
    ({"sliding_widow": 4}, r"layers\[0\]\.sliding_widow: got 4, need no such field \(known: alignment"),
]


@pytest.mark.parametrize(("change", "message"), BAD_LAYERS)
def test_a_wrong_layer_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        layers_from_json({"layers": [GOOD | change]})


@pytest.mark.parametrize("missing", GOOD)
def test_a_missing_field_is_named(missing: str) -> None:
    layer = {key: value for key, value in GOOD.items() if key != missing}
    with pytest.raises(InputError, match=rf"layers\[0\]\.{missing}: got nothing"):
        layers_from_json({"layers": [layer]})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "layer file: got .*, need a JSON object"),
        ({"layers": {}}, r"layer file\.layers: got \{\}, need a list"),
        ({"layers": []}, "layers: got 0, need 1 to 20,000 layers"),
        ({"layers": [7]}, r"layers\[0\]: got 7, need a JSON object"),
        ({"layers": [GOOD, GOOD]}, "layers: got 'a', need a name that no other layer has"),
        ({"layers": [GOOD], "version": 2}, r"layer file\.version: got 2, need no such field"),
    ],
)
def test_a_wrong_layer_file_is_named(value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        layers_from_json(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b'{"a": NaN}', "NaN is no JSON number"),
        (b'{"a": 1, "a": 2}', "key 'a' stands twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff\xfe\x00", "no UTF-8 text"),
        (b'{"a": ' + b"9" * 5000 + b"}", "need a JSON object"),
    ],
)
def test_a_file_that_is_no_json(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(InputError, match=message) as caught:
        read_json(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory"):
        read_json(tmp_path / "missing.json")
    with pytest.raises(InputError, match="Is a directory"):
        read_json(tmp_path)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        (7, 7),
        ("80GB", 80_000_000_000),
        ("80 gb", 80_000_000_000),
        ("26.46GiB", 28_411_208_663),
        ("0.5KiB", 512),
        ("1.5 TiB", 1_649_267_441_664),
    ],
)
def test_sizes_are_exact(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "-1",
        "1e9",
        "26,46GiB",
        "1 XB",
        "0",
        "0.1B",
        "inf",
        "9" * 21,
        "9007199254740993",
        -5,
        True,
        0,
    ],
)
def test_no_size(text: str | int) -> None:
    with pytest.raises(InputError, match="budget: got"):
        parse_bytes(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(
    field=st.sampled_from([*sorted(GOOD), "page_bytes", "alignment", "sliding_window"]),
    value=json_values,
    kind=st.sampled_from(KINDS),
)
@settings(deadline=None, max_examples=300)
def test_any_value_in_any_layer_field(field: str, value: object, kind: str) -> None:
    stack = {"layers": [{**GOOD, "kind": kind, field: value}, {**GOOD, "name": "b"}]}
    try:
        layers = layers_from_json(json.loads(json.dumps(stack)))
        for generation in GENERATIONS.values():
            generation.lay_out(layers)
    except PlanError as error:
        assert "\n" not in str(error)


@given(field=st.sampled_from(sorted(set(preset_config("deepseek-v4-flash")))), value=json_values)  # type: ignore[call-overload]
@settings(deadline=None, max_examples=300)
def test_any_value_in_any_config_field(field: str, value: object) -> None:
    config = preset_config("deepseek-v4-flash")
    assert isinstance(config, dict)
    try:
        layers_from_config({**config, field: value})
    except PlanError as error:
        assert "\n" not in str(error)
