"""Guards the models beside DeepSeek-V4: a head, a window or a state counted wrongly scales every number.

Three oracles: the layer stacks that vLLM built (`vectors`), numbers that servers
logged (`model_cases`), and laws of sharing heads and layers out.
"""

import copy
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from kvslab.case_file import Case, StatedNumber
from kvslab.cases import derive_number, shared_budgets
from kvslab.errors import InputError, RefusedError
from kvslab.generations import GENERATIONS, generation_named
from kvslab.layers import CacheLayer, FullHistory, SlidingWindow, layers_from_json
from kvslab.models import (
    MODEL_TYPES,
    OTHER_PRESETS,
    PRESETS,
    CacheOptions,
    ModelStack,
    load_model,
    model_from_config,
    options_from_json,
    preset_config,
)
from kvslab.models.options import stage_sizes
from kvslab.plan import Plan
from kvslab.workers import plan_stages
from model_cases import DATA, fixture, model_cases
from vectors import load_vectors, vector_layers

CASES = model_cases()
NUMBERS = [
    pytest.param(case, number, id=f"{case.id}-{i}-{number.quantity}")
    for case in CASES
    for i, number in enumerate(case.numbers)
]
ONE_KIND = ("llama-3.1-8b", "mistral-7b-v0.1", "mixtral-8x7b", "qwen3-coder-30b")
ATTENTION = (*ONE_KIND, "gpt-oss-20b", "gpt-oss-120b", "gemma-3-27b", "gemma-3n-e4b", "gemma-4-31b")
ATTENTION = (*ATTENTION, "llama-4-scout")
RECURRENT = ("qwen3-next-80b", "kimi-linear-48b", "jamba-v0.1", "bamba-9b")


def shape(layers: tuple[CacheLayer, ...]) -> list[object]:
    return [layer.spec for layer in layers]


def config_of(name: str) -> dict[str, Any]:
    config = preset_config(name)
    assert isinstance(config, dict)
    return copy.deepcopy(config)


# --- the engine's own stacks


VECTOR_PRESETS = {
    "gpt-oss-20b": "gpt-oss-20b",
    "gpt-oss-120b": "gpt-oss-120b",
    "gemma-3-27b": "gemma-3-27b",
    "llama-4-scout": "llama-4-scout",
    "full-only-llama": "llama-3.1-8b",
    "swa-mixed-heads": "gemma-4-31b",
}
HYBRIDS = [vector for vector in load_vectors() if vector["id"].startswith("hybrid-")]


@pytest.mark.parametrize("vector", HYBRIDS, ids=lambda vector: vector["id"])
def test_layers_equal_the_vectors(vector: dict[str, Any]) -> None:
    name = next(name for key, name in VECTOR_PRESETS.items() if vector["id"].startswith(f"hybrid-{key}-"))
    assert shape(load_model(name).layers) == shape(vector_layers(vector["id"]))


@pytest.mark.parametrize("vector", HYBRIDS, ids=lambda vector: vector["id"])
def test_blocks_equal_the_newest_release(vector: dict[str, Any]) -> None:
    """The way from a config to a plan, whole: default groups, and packing opted in."""
    name = next(name for key, name in VECTOR_PRESETS.items() if vector["id"].startswith(f"hybrid-{key}-"))
    slab = generation_named("standard").lay_out(load_model(name).layers, packed=vector["packed_opt_in"])
    answer = vector["expect"]["0.32.0"]
    assert slab.block_stride == answer["block_stride"]
    assert len(slab.groups) == len(answer["groups"])
    assert Plan(slab=slab, budget_bytes=vector["budget_bytes"]).num_blocks == answer["num_blocks"]


# --- what servers logged


@pytest.mark.parametrize(("case", "number"), NUMBERS)
def test_every_stated_number_comes_out(case: Case, number: StatedNumber) -> None:
    assert derive_number(case, number) == number.value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_one_budget_gives_every_number_of_a_report(case: Case) -> None:
    for number in case.numbers:
        assert not shared_budgets(case, number.inputs).is_empty


def test_at_least_eight_models_are_covered() -> None:
    assert len({case.model for case in CASES}) == len(CASES) >= 8
    assert all(case.source and case.url.startswith("https://") for case in CASES)


@pytest.mark.parametrize(
    ("case_id", "other"),
    [
        ("talos-1995", CacheOptions(tensor_parallel=1, kv_cache_dtype="fp8")),
        ("talos-1995", CacheOptions(tensor_parallel=2)),
        ("club-3090-612", CacheOptions()),
        ("vllm-26646", CacheOptions()),
        ("vllm-30092", CacheOptions(tensor_parallel=2, block_size=16)),
        ("nemotron-1854", CacheOptions(kv_cache_dtype="fp8", ssm_dtype="bf16")),
        ("spark-396-refused", CacheOptions(tensor_parallel=4)),
    ],
)
def test_another_option_gives_another_number(case_id: str, other: CacheOptions) -> None:
    case = next(case for case in CASES if case.id == case_id)
    configs = {
        "talos-1995": fixture("qwen3.5-27b"),
        "club-3090-612": fixture("qwen3.6-35b-a3b"),
        "vllm-26646": config_of("qwen3-next-80b"),
        "vllm-30092": config_of("kimi-linear-48b"),
        "nemotron-1854": fixture("nemotron-3-nano-30b"),
        "spark-396-refused": fixture("minimax-m2.7"),
    }
    wrong = replace(case, layers=model_from_config(configs[case_id], other).layers)
    assert any(derive_number(wrong, number) != number.value for number in case.numbers)


@pytest.mark.parametrize(
    ("config", "options", "row_bytes"),
    [
        ("llama-2-7b", {}, 16_384),  # vllm issue 2418
        ("llama-3.1-70b", {}, 4_096),  # vllm PR 12569
        ("qwen3-coder-480b", {}, 4_096),  # vllm recipes PR 12
        ("qwen3-coder-480b", {"tensor_parallel": 8}, 512),
    ],
)
def test_rows_of_other_reports(config: str, options: dict[str, Any], row_bytes: int) -> None:
    specs = {
        layer.spec.row_bytes
        for layer in model_from_config(fixture(config), options_from_json(options)).layers
    }
    assert specs == {row_bytes}


def test_sparse_latent_rows() -> None:
    """656 and 132 bytes, as the source of the case glm52-dcp4 states them."""
    layers = load_model("deepseek-v3.2", CacheOptions(kv_cache_dtype="fp8", num_mtp_layers=1)).layers
    assert Counter(layer.spec.row_bytes for layer in layers) == {656: 62, 132: 62}
    assert {layer.spec.block_size for layer in layers} == {64}
    slab = generation_named("standard").lay_out(layers)
    assert slab.block_stride == 62 * 64 * (656 + 132) and len(slab.groups) == 1


# --- sharing out


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "bf16", "fp8", "fp8_per_token_head", "nvfp4"])
def test_heads_are_shared_then_copied(name: str, kv_cache_dtype: str) -> None:
    def rows(tensor_parallel: int) -> list[int]:
        options = CacheOptions(tensor_parallel=tensor_parallel, kv_cache_dtype=kv_cache_dtype)
        return [layer.spec.row_bytes for layer in load_model(name, options).layers]

    text = config_of(name).get("text_config", config_of(name))
    num_heads = text["num_attention_heads"]
    one = rows(1)
    kinds = [layer.spec.kind for layer in load_model(name).layers]
    for size in (size for size in (2, 4, 8, 16, 32) if num_heads % size == 0):
        for row, whole, kind in zip(rows(size), one, kinds, strict=True):
            full_heads = text.get("num_global_key_value_heads") if kind == "full_attention" else None
            num_kv_heads = full_heads or text["num_key_value_heads"]
            assert row * min(size, num_kv_heads) == whole, (size, kind)


def test_dtype_scales_rows() -> None:
    def row(kv_cache_dtype: str) -> int:
        options = CacheOptions(kv_cache_dtype=kv_cache_dtype)
        return load_model("llama-3.1-8b", options).layers[0].spec.row_bytes

    # 8 heads of 128, K and V: two bytes; one; one and a float a head; half and a byte per 16.
    assert row("auto") == row("bf16") == 2 * 8 * 128 * 2
    assert row("fp8") == 2 * 8 * 128
    assert row("fp8_per_token_head") == 2 * 8 * (128 + 4)
    assert row("nvfp4") == 2 * 8 * (64 + 8)


def test_latent_rows_are_copied_to_every_worker() -> None:
    for name in ("deepseek-v3", "deepseek-v3.2", *PRESETS):
        assert load_model(name, CacheOptions(tensor_parallel=8)).layers == load_model(name).layers


@pytest.mark.parametrize("name", [*PRESETS, *OTHER_PRESETS])
@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_stages_cut_the_stack(name: str, num_stages: int) -> None:
    stack = load_model(name)
    if (name == "gemma-4-e2b" and num_stages == 4) or (name == "gemma-3n-e4b" and num_stages >= 3):
        with pytest.raises(InputError, match="stores nothing"):
            stack.stages(num_stages)
        return
    try:
        stages = stack.stages(num_stages)
    except InputError as error:
        assert "stores nothing" in str(error) and name.startswith("gemma-4-e2b")
        return
    assert tuple(layer for stage in stages for layer in stage) == stack.layers
    assert max(map(len, stage_sizes_of(stack, num_stages))) >= 1


def stage_sizes_of(stack: ModelStack, num_stages: int) -> list[range]:
    return [range(size) for size in stage_sizes(len(stack.decoder), num_stages)]


def test_uneven_stages_follow_the_engine() -> None:
    """A remainder goes to the stages before the last, as vLLM's get_pp_indices has it."""
    assert stage_sizes(61, 4) == (15, 15, 16, 15)
    assert stage_sizes(62, 4) == (15, 16, 16, 15)
    assert stage_sizes(7, 4) == (2, 2, 2, 1)
    for num_layers in range(1, 40):
        for num_stages in range(1, num_layers + 1):
            sizes = stage_sizes(num_layers, num_stages)
            assert sum(sizes) == num_layers and max(sizes) - min(sizes) <= 1
    with pytest.raises(
        InputError, match=r"pipeline_parallel: got \(16, 16\), need sizes that add up to .* 48"
    ):
        stage_sizes(48, (16, 16))
    with pytest.raises(InputError, match="pipeline_parallel: got 5, need at most 4"):
        stage_sizes(4, 5)


@pytest.mark.parametrize("name", ["qwen3-coder-30b", "gpt-oss-20b", "gemma-3-27b", "qwen3-next-80b"])
@pytest.mark.parametrize("slab", GENERATIONS)
def test_the_pool_is_the_smallest_stages(name: str, slab: str) -> None:
    stack, generation = load_model(name), generation_named(slab)
    count = len(stack.decoder)
    stages = stack.stages((count // 3, count - count // 3))
    staged = plan_stages(generation, stages, [8 * 2**30, 8 * 2**30])
    alone = [plan.budget_bytes // plan.slab.block_stride for plan in staged.stages]
    assert staged.num_blocks == min(alone) and alone[0] > alone[1]
    whole = generation.lay_out(stack.layers)
    assert sum(plan.slab.block_stride for plan in staged.stages) >= whole.block_stride
    assert [len(group.layers) for group in staged.groups] == [len(group.layers) for group in whole.groups]


def test_stages_of_a_public_report() -> None:
    """As in vllm issue 34076: 16 layers beside 32; half the layers, half the stride."""
    stages = load_model("qwen3-coder-30b").stages((16, 32))
    staged = plan_stages(generation_named("padded"), stages, [3 * 2**30, 9 * 2**30])
    assert [plan.slab.block_stride for plan in staged.stages] == [16 * 16 * 2048, 32 * 16 * 2048]


# --- recurrent states


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize(
    "options", [{}, {"kv_cache_dtype": "fp8"}, {"tensor_parallel": 2}, {"block_size": 128}]
)
def test_states_and_attention_have_one_page(name: str, options: dict[str, Any]) -> None:
    asked = options.get("block_size", 64 if name.startswith("kimi") else 16)
    stack = load_model(name, options_from_json(options))
    (page,) = {layer.spec.page_bytes for layer in stack.layers}
    state = max(layer.spec.payload_bytes for layer in stack.layers if layer.spec.kind == "mamba")
    attention = next(layer.spec for layer in stack.layers if layer.spec.kind != "mamba")
    assert page >= state and attention.block_size % asked == 0
    # One step less would not hold the state.
    assert (attention.block_size - asked) * attention.row_bytes < state
    assert attention.payload_bytes == page
    for generation in GENERATIONS.values():
        assert len({p for group in generation.lay_out(stack.layers).groups for p in group.page_bytes}) == 1


def test_notes_say_which_layers_and_sizes() -> None:
    raised, padded = load_model("qwen3-next-80b").notes
    assert "from 16 to 544 tokens in 12 layers" in raised and "1,097,728 bytes" in raised
    # vLLM prints this share as "Padding mamba page size by 1.49%".
    assert "from 1,097,728 to 1,114,112 bytes (+1.49 %) in 36 layers" in padded
    assert load_model("llama-3.1-8b").notes == ()
    assert load_model("gemma-3n-e4b").notes == (
        "layers 20 to 34 read the cache of an earlier layer and store nothing",
    )


@pytest.mark.parametrize(
    ("config", "options", "block_size", "share"),
    [
        # vLLM's log lines "Setting attention block size to N tokens", "Padding mamba page size by P%":
        # Qwen3.5-27B 784 and 0.13 (vLLM 0.19.1), Qwen3.6-35B-A3B 1056 and 0.76, in FP8 2096 and no padding.
        ("qwen3.5-27b", {}, 784, "+0.13 %"),
        ("qwen3.6-35b-a3b", {}, 1056, "+0.76 %"),
        ("qwen3.6-35b-a3b", {"kv_cache_dtype": "fp8"}, 2096, None),
        ("nemotron-3-nano-30b", {"kv_cache_dtype": "fp8"}, 4176, "+0.19 %"),
    ],
)
def test_logged_block_sizes(config: str, options: dict[str, Any], block_size: int, share: str | None) -> None:
    stack = model_from_config(fixture(config), options_from_json(options))
    assert {layer.spec.block_size for layer in stack.layers} == {block_size}
    assert any(f"to {block_size:,} tokens" in note for note in stack.notes)
    assert any(f"({share})" in note for note in stack.notes) is (share is not None)


def test_speculative_tokens_lengthen_the_convolution() -> None:
    def state(count: int) -> int:
        stack = load_model("qwen3-next-80b", CacheOptions(num_speculative_tokens=count))
        return stack.layers[0].spec.payload_bytes

    assert state(2) - state(0) == 2 * 2 * (2 * 16 * 128 + 32 * 128)


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
