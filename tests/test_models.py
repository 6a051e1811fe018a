"""Guards the way from config to layers: a layer forgotten or sized wrongly shifts all numbers behind it."""

import copy
from typing import Any

import pytest

from kvslab.errors import InputError
from kvslab.layers import layers_to_json
from kvslab.models import PRESETS, layers_from_config, load_layers, preset_config
from vectors import load_vectors

DEEPSEEK = [vector for vector in load_vectors() if vector["id"].startswith("dsv4-")]


@pytest.mark.parametrize("vector", DEEPSEEK, ids=lambda vector: vector["id"])
def test_layers_equal_the_engines(vector: dict[str, Any]) -> None:
    _, model, backend, indexer, mtp, _ = vector["id"].split("-")
    layers = load_layers(
        f"deepseek-v4-{model}",
        backend=backend.replace("_", "-"),
        indexer=indexer,
        num_mtp_layers=int(mtp.removeprefix("mtp")),
    )
    assert layers_to_json(layers)["layers"] == vector["layers"]


def newer_spelling(config: dict[str, Any]) -> dict[str, Any]:
    """The same model as newer files spell it.

    Source of the form: hf-internal-testing/tiny-DeepseekV4ForCausalLM-for-CI, config.json.
    """
    names = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    other = copy.deepcopy(config)
    ratios = other.pop("compress_ratios")[: config["num_hidden_layers"]]
    other["layer_types"] = [names[ratio] for ratio in ratios]
    other["compress_rates"] = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    return other


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("num_mtp_layers", [0, 1])
def test_both_spellings_give_the_same_layers(preset: str, num_mtp_layers: int) -> None:
    config = preset_config(preset)
    assert isinstance(config, dict)
    old, new = (
        layers_from_config(c, num_mtp_layers=num_mtp_layers) for c in (config, newer_spelling(config))
    )
    assert old == new


CHANGES: list[tuple[str, Any, str]] = [
    ("num_hidden_layers", None, r"config\.num_hidden_layers: got nothing"),
    ("num_hidden_layers", -1, r"num_hidden_layers: got -1, need an integer from 1"),
    ("num_hidden_layers", True, r"num_hidden_layers: got True"),
    ("num_hidden_layers", 10**9, r"num_hidden_layers: got 1000000000, need an integer from 1 to 20,000"),
    ("num_hidden_layers", 64, r"compress_ratios: got '62 entries', need one entry for each of the 64"),
    ("compress_ratios", None, r"compress_ratios: got nothing, need a list of ratios, or layer_types"),
    ("compress_ratios", 4, r"compress_ratios: got 4, need a list"),
    ("compress_ratios", [4] * 61 + ["x"], r"compress_ratios\[61\]: got 'x', need one of 0, 4, 128"),
    ("compress_ratios", [7] * 62, r"compress_ratios\[0\]: got 7, need one of 0, 4, 128"),
    ("head_dim", 0, r"head_dim: got 0"),
    ("head_dim", "512", r"head_dim: got '512'"),
    ("head_dim", 10**30, r"head_dim: got 1000000000000000000000000000000, need an integer from 1 to"),
    ("qk_rope_head_dim", 1024, r"qk_rope_head_dim: got 1024, need an integer from 1 to 512"),
    ("index_head_dim", 100, r"index_head_dim: got 100, need a multiple of 32"),
    ("sliding_window", 0, r"sliding_window: got 0"),
    ("sliding_window", 1.5, r"sliding_window: got 1.5"),
    (
        "model_type",
        "nonesuch",
        r"model_type: got 'nonesuch', need one of deepseek_v4, llama, .*nemotron_h \(.* write a layer file\)",
    ),
    ("model_type", None, r"model_type: got nothing"),
    ("num_nextn_predict_layers", -2, r"num_nextn_predict_layers: got -2"),
]


@pytest.mark.parametrize(("field", "value", "message"), CHANGES)
def test_a_wrong_field_is_named(field: str, value: Any, message: str) -> None:
    config = preset_config("deepseek-v4-pro")
    assert isinstance(config, dict)
    config.pop(field)
    if value is not None:
        config[field] = value
    with pytest.raises(InputError, match=message):
        layers_from_config(config)


def test_newer_spelling_names_its_fields_too() -> None:
    config = preset_config("deepseek-v4-pro")
    assert isinstance(config, dict)
    newer = newer_spelling(config)
    newer["layer_types"][3] = "full_attention"
    with pytest.raises(
        InputError, match=r"layer_types\[3\]: got 'full_attention', need sliding_attention or a name in"
    ):
        layers_from_config(newer)
    del newer["compress_rates"]
    with pytest.raises(InputError, match=r"compress_rates: got None, need a JSON object"):
        layers_from_config(newer)


@pytest.mark.parametrize("mtp", [-1, 2, True])
def test_mtp_layers_are_bounded(mtp: int) -> None:
    with pytest.raises(InputError, match=rf"mtp: got {mtp}, need 0 to 1"):
        load_layers("deepseek-v4-pro", num_mtp_layers=mtp)


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(
        InputError, match="backend: got 'triton', need one of flashinfer, flashinfer-bf16, flashmla"
    ):
        load_layers("deepseek-v4-pro", backend="triton")
    with pytest.raises(InputError, match="indexer: got 'int4', need one of fp8, mxfp4"):
        load_layers("deepseek-v4-pro", indexer="int4")
    with pytest.raises(InputError, match=r"model: got 'deepseek-v5', need deepseek-v4-pro, .* or the path"):
        load_layers("deepseek-v5")
