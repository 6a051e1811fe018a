"""Guards configs that are spelled differently, wrong, or served with a draft: each is read or named.

A field that is read as its default, or an option that is dropped, gives a plan that
looks right; a field of another type must not end in a traceback.
"""

import copy
from typing import Any

import pytest

from kvslab.errors import InputError, RefusedError
from kvslab.generations import GENERATIONS, generation_named
from kvslab.layers import CacheLayer, FullHistory, SlidingWindow, layers_from_json
from kvslab.models import (
    MODEL_TYPES,
    OTHER_PRESETS,
    PRESETS,
    CacheOptions,
    default_max_model_len,
    load_model,
    model_from_config,
    options_from_json,
    preset_config,
)
from model_cases import DATA, fixture


def shape(layers: tuple[CacheLayer, ...]) -> list[object]:
    return [layer.spec for layer in layers]


def config_of(name: str) -> dict[str, Any]:
    config = preset_config(name)
    assert isinstance(config, dict)
    return copy.deepcopy(config)


# --- the hybrid manager, drafts, MTP


def test_windows_keep_everything_without_the_hybrid_manager() -> None:
    for name in ("gpt-oss-20b", "gemma-3-27b", "llama-4-scout"):
        stack = load_model(name, CacheOptions(hybrid=False))
        assert {type(layer.spec.retention) for layer in stack.layers} == {FullHistory}
        assert len(generation_named("standard").lay_out(stack.layers).groups) == 1
        assert "keep every row" in stack.notes[-1]
    # A stack of windows alone is one kind already.
    assert load_model("mistral-7b-v0.1", CacheOptions(hybrid=False)) == load_model("mistral-7b-v0.1")


def test_an_eagle_draft_is_one_more_layer() -> None:
    stack = load_model("llama-3.1-8b", draft=str(DATA / "configs" / "eagle-llama-3.1-8b.json"))
    assert len(stack.layers) == 33 and stack.layers[-1].name == "draft.model.layers.0.self_attn.attn"
    assert len(set(shape(stack.layers))) == 1 and stack.notes == ()
    assert [len(stage) for stage in stack.stages(2)] == [16, 17]


WINDOW_DRAFT = {
    "model_type": "qwen3",
    "num_hidden_layers": 1,
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "sliding_window": 2048,
    "use_sliding_window": True,
}


def test_a_window_draft_beside_a_sparse_latent_target_falls_back() -> None:
    """As vLLM PR 48776 has it: stored as full attention, in blocks of the target, in one group with it."""
    target = config_of("deepseek-v3.2")
    stack = model_from_config(target, CacheOptions(kv_cache_dtype="fp8"), draft=WINDOW_DRAFT)
    draft = stack.layers[-1].spec
    assert (draft.kind, draft.block_size, draft.retention) == ("full_attention", 64, FullHistory())
    assert draft.page_bytes == 64 * 2 * 8 * 128
    assert "1 draft windows stored as full attention" in stack.notes[-1] and "41,984 bytes" in stack.notes[-1]
    for generation in GENERATIONS.values():
        slab = generation.lay_out(stack.layers)
        assert len(slab.groups) == 1
        assert slab.block_stride == 61 * 64 * (656 + 132) + draft.page_bytes


def test_a_window_draft_whose_page_fits_stays_a_window() -> None:
    stack = model_from_config(config_of("llama-3.1-8b"), draft=WINDOW_DRAFT)
    assert stack.layers[-1].spec.retention == SlidingWindow(window_tokens=2048) and stack.notes == ()
    # Groups are as deep as the smallest kind: one draft layer cuts 32 layers into 32 groups.
    assert len(generation_named("standard").lay_out(stack.layers).groups) == 33


def test_a_draft_that_fits_nowhere_is_refused_with_its_sizes() -> None:
    draft = {**WINDOW_DRAFT, "head_dim": 96}
    stack = model_from_config(config_of("llama-3.1-8b"), draft=draft)
    need = r"'draft.model.layers.0.self_attn.attn' has 49,152 bytes, which does not divide the 65,536 bytes"
    with pytest.raises(RefusedError, match=need):
        generation_named("standard").lay_out(stack.layers)
    # Packing needs no equal pages.
    assert generation_named("standard").lay_out(stack.layers, packed=True).block_stride == 32 * 65_536


def test_a_draft_may_be_a_layer_file() -> None:
    layer = {"name": "d", "kind": "full_attention", "block_size": 16, "row_bytes": 4096}
    stack = model_from_config(config_of("llama-3.1-8b"), draft={"layers": [layer]})
    assert stack.layers[-1].name == "draft.d"


@pytest.mark.parametrize(("name", "most"), [("deepseek-v3", 1), ("deepseek-v3.2", 1), ("qwen3-next-80b", 0)])
def test_mtp_layers_are_layers_like_the_others(name: str, most: int) -> None:
    plain = load_model(name)
    with pytest.raises(InputError, match=rf"mtp: got {most + 1}, need 0 to {most}"):
        load_model(name, CacheOptions(num_mtp_layers=most + 1))
    if most:
        more = load_model(name, CacheOptions(num_mtp_layers=1))
        each = len(plain.decoder[0])
        assert more.layers[: len(plain.layers)] == plain.layers
        assert shape(more.layers[-each:]) == shape(plain.layers[:each])


def test_mtp_of_a_recurrent_model_attends_fully() -> None:
    stack = model_from_config(fixture("qwen3.5-27b"), CacheOptions(num_mtp_layers=1))
    full = [layer for layer in stack.layers if layer.spec.kind == "full_attention"]
    assert len(full) == 17 and stack.drafts == (full[-1],)


# --- spellings and faults


def test_spellings_of_a_pattern_agree() -> None:
    text = config_of("gemma-3-27b")["text_config"]
    types = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(62)]
    plain = load_model("gemma-3-27b")
    for spelled in (text, {**text, "sliding_window_pattern": 6}, {**text, "layer_types": types}):
        assert model_from_config(spelled) == plain
    scout = config_of("llama-4-scout")["text_config"]
    flags = [int((i + 1) % 4 != 0) for i in range(48)]
    names = ["chunked_attention" if flag else "full_attention" for flag in flags]
    for spelled in (scout, {**scout, "no_rope_layers": flags}, {**scout, "layer_types": names}):
        assert model_from_config(spelled) == load_model("llama-4-scout")
    oss = config_of("gpt-oss-20b")
    del oss["layer_types"]
    assert model_from_config(oss) == load_model("gpt-oss-20b")
    olmo = config_of("olmo-3-7b")
    for left_out in ("layer_types", "sliding_window", "num_key_value_heads"):
        del olmo[left_out]
        assert model_from_config(olmo) == load_model("olmo-3-7b")


def test_config_classes_fill_in_what_files_leave_out() -> None:
    """google/gemma-3-4b-it's text_config has neither heads nor head_dim."""
    text = {"model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560, "sliding_window": 1024}
    stack = model_from_config({"model_type": "gemma3", "text_config": text})
    assert {layer.spec.row_bytes for layer in stack.layers} == {2 * 4 * 256 * 2}
    assert sum(layer.spec.kind == "full_attention" for layer in stack.layers) == 5


def test_a_window_that_is_off_counts_for_nothing() -> None:
    config = {**fixture("qwen3-1.7b"), "sliding_window": 4096}
    assert model_from_config(config) == model_from_config(fixture("qwen3-1.7b"))


FAULTS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("llama-3.1-8b", {"num_hidden_layers": 0}, {}, r"num_hidden_layers: got 0"),
    ("llama-3.1-8b", {"num_attention_heads": "32"}, {}, r"num_attention_heads: got '32'"),
    (
        "llama-3.1-8b",
        {"num_key_value_heads": 64},
        {},
        r"num_key_value_heads: got 64, need an integer from 1 to 32",
    ),
    ("llama-3.1-8b", {"hidden_size": 16}, {}, r"hidden_size: got 16, need an integer from 32"),
    (
        "llama-3.1-8b",
        {},
        {"tensor_parallel": 3},
        r"num_attention_heads: got 32, need a multiple of tensor_parallel 3",
    ),
    (
        "qwen3-coder-30b",
        {"num_key_value_heads": 3},
        {"tensor_parallel": 4},
        r"num_key_value_heads: got 3, need a divisor",
    ),
    (
        "qwen3-coder-30b",
        {"num_key_value_heads": 6},
        {"tensor_parallel": 4},
        r"num_key_value_heads: got 6, need a multiple",
    ),
    (
        "llama-3.1-8b",
        {"head_dim": 120},
        {"kv_cache_dtype": "nvfp4"},
        r"head_dim: got 120, need a multiple of 16 for NVFP4",
    ),
    ("llama-3.1-8b", {}, {"kv_cache_dtype": "int3"}, r"kv_cache_dtype: got 'int3', need one of auto, bf16"),
    ("llama-3.1-8b", {}, {"block_size": 0}, r"block_size: got 0"),
    (
        "llama-3.1-8b",
        {},
        {"ssm_dtype": "fp32"},
        r"ssm_dtype: got 'fp32', need no such option for model type llama",
    ),
    ("llama-3.1-8b", {}, {"indexer": "fp8"}, r"indexer: got 'fp8', need no such option"),
    ("llama-3.1-8b", {}, {"tp": 2}, r"options.tp: got 2, need no such field"),
    ("llama-3.1-8b", {}, {"hybrid": 1}, r"options.hybrid: got 1, need true or false"),
    ("llama-3.1-8b", {}, {"pipeline_parallel": []}, r"pipeline_parallel: got \(\), need at least one stage"),
    ("llama-3.1-8b", {}, {"pipeline_parallel": 0}, r"pipeline_parallel: got 0"),
    (
        "qwen3-coder-30b",
        {"use_sliding_window": True, "sliding_window": 64},
        {},
        r"max_window_layers: got 28, need 48",
    ),
    ("gpt-oss-20b", {"sliding_window": None}, {}, r"sliding_window: got None"),
    (
        "gpt-oss-20b",
        {"layer_types": ["full_attention"]},
        {},
        r"layer_types: got '1 entries', need one entry for each of the 24",
    ),
    (
        "gpt-oss-20b",
        {"layer_types": ["mamba"] * 24},
        {},
        r"layer_types\[0\]: got 'mamba', need one of sliding_attention",
    ),
    ("gemma-3-27b", {"text_config": 5}, {}, r"text_config: got 5, need a JSON object"),
    (
        "gemma-3n-e4b",
        {"text_config.num_kv_shared_layers": 34},
        {},
        r"num_kv_shared_layers: got 34, need few enough that layer 4",
    ),
    ("llama-4-scout", {"text_config.no_rope_layers": [1, 2]}, {}, r"no_rope_layers: got '2 entries'"),
    ("llama-4-scout", {"text_config.attention_chunk_size": None}, {}, r"attention_chunk_size: got None"),
    (
        "qwen3-next-80b",
        {"linear_num_key_heads": 6},
        {"tensor_parallel": 4},
        r"linear_num_key_heads: got 6, need a multiple",
    ),
    ("qwen3-next-80b", {"mamba_ssm_dtype": "fp4"}, {}, r"mamba_ssm_dtype: got 'fp4', need one of"),
    ("qwen3-next-80b", {}, {"hybrid": False}, r"hybrid: got False, need no such option"),
    (
        "kimi-linear-48b",
        {"linear_attn_config": {"full_attn_layers": [0]}},
        {},
        r"full_attn_layers\[0\]: got 0, need a layer from 1 to 27",
    ),
    (
        "kimi-linear-48b",
        {},
        {"kv_cache_dtype": "nvfp4"},
        r"kv_cache_dtype: got 'nvfp4', need one of auto, bf16, fp8 for MLA",
    ),
    (
        "deepseek-v3",
        {},
        {"indexer": "fp8"},
        r"indexer: got 'fp8', need no such option for a config without index_topk",
    ),
    ("deepseek-v3", {"kv_lora_rank": None}, {}, r"kv_lora_rank: got None"),
    ("jamba-v0.1", {"attn_layer_offset": 8}, {}, r"attn_layer_offset: got 8, need an integer from 0 to 7"),
    (
        "bamba-9b",
        {"attn_layer_indices": [32]},
        {},
        r"attn_layer_indices\[0\]: got 32, need a layer from 0 to 31",
    ),
    (
        "bamba-9b",
        {"mamba_n_groups": 3},
        {"tensor_parallel": 2},
        r"mamba_n_groups: got 3, need 1, or a multiple",
    ),
    (
        "deepseek-v4-pro",
        {},
        {"kv_cache_dtype": "fp8"},
        r"kv_cache_dtype: got 'fp8', need no such option for model type deepseek_v4",
    ),
]


@pytest.mark.parametrize(("name", "changes", "options", "message"), FAULTS)
def test_a_fault_is_named(name: str, changes: dict[str, Any], options: dict[str, Any], message: str) -> None:
    config = config_of(name)
    for field, value in changes.items():
        place, _, leaf = field.rpartition(".")
        (config[place] if place else config)[leaf] = value
    with pytest.raises(InputError, match=message) as caught:
        model_from_config(config, options_from_json(options))
    assert "\n" not in str(caught.value)


def test_nemotron_spells_its_layers() -> None:
    config = {**fixture("nemotron-nano-9b-v2"), "hybrid_override_pattern": "M*X"}
    with pytest.raises(InputError, match=r"hybrid_override_pattern: got 'M\*X', need one of M, \*, - and E"):
        model_from_config(config)


def test_an_unknown_model_names_the_way_out() -> None:
    with pytest.raises(
        InputError, match=r"got 'gpt2', need one of deepseek_v4, .*write a layer file"
    ) as caught:
        model_from_config({"model_type": "gpt2"})
    assert all(name in str(caught.value) for name in MODEL_TYPES)


MADE_UP: dict[str, Any] = {
    "layers": [
        *(
            {
                "name": f"layers.{i}.window",
                "kind": "sliding_window",
                "block_size": 16,
                "row_bytes": 1024,
                "sliding_window": 512,
            }
            for i in (0, 1, 2)
        ),
        {"name": "layers.3.full", "kind": "full_attention", "block_size": 16, "row_bytes": 2048},
    ]
}


@pytest.mark.parametrize("slab", GENERATIONS)
def test_the_documented_layer_file_plans(slab: str) -> None:
    """The made-up model of the documentation: three windows of half a full layer's row."""
    layout = generation_named(slab).lay_out(layers_from_json(MADE_UP))
    assert layout.block_stride == 32_768 and len(layout.groups) == 4


@pytest.mark.parametrize("name", OTHER_PRESETS)
def test_presets_state_their_source(name: str) -> None:
    assert config_of(name)["_source"].startswith("https://huggingface.co/")
    for path in (DATA / "configs").glob("*.json"):
        assert fixture(path.stem)["_source"].startswith("https://huggingface.co/")


ODD = (None, True, -1, 0, 1, 1.5, 10**30, "x", [], [1], ["x"], [[]], {}, {"x": 1})


@pytest.mark.parametrize("name", [*PRESETS, *OTHER_PRESETS])
def test_an_odd_field_never_ends_in_a_traceback(name: str) -> None:
    config = config_of(name)
    places = [((), field) for field in config]
    places += [
        ((place,), field) for place, value in config.items() if isinstance(value, dict) for field in value
    ]
    for path, field in places:
        for value in ODD:
            broken = copy.deepcopy(config)
            target = broken[path[0]] if path else broken
            target[field] = value
            for options in (CacheOptions(), CacheOptions(tensor_parallel=2)):
                try:
                    layers = model_from_config(broken, options).layers
                except InputError as error:
                    assert "\n" not in str(error)
                else:
                    assert layers


def test_every_preset_has_a_length() -> None:
    lengths = {name: default_max_model_len(config_of(name)) for name in OTHER_PRESETS}
    assert all(lengths.values())
    assert lengths["gemma-3-27b"] == 131_072 and lengths["kimi-linear-48b"] == 1_048_576
