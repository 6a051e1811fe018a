"""Guards the models beside DeepSeek-V4: a head, a window or a state counted wrongly scales every number.

Three oracles: the layer stacks that vLLM built (`vectors`), numbers that servers
logged (`model_cases`), and laws of sharing heads and layers out.
"""

import copy
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from kvslab.capacity import plan_stages
from kvslab.errors import InputError
from kvslab.generations import GENERATIONS, generation_named
from kvslab.layers import CacheLayer, FullHistory, SlidingWindow
from kvslab.models import (
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
from kvslab.published import Case, StatedNumber, derive_number, shared_budgets
from model_cases import fixture, model_cases
from vectors import load_vectors, vector_layers

CASES = model_cases()
NUMBERS = [
    pytest.param(case, number, id=f"{case.id}-{i}-{number.quantity}")
    for case in CASES
    for i, number in enumerate(case.numbers)
]
ONE_KIND = ("llama-3.1-8b", "mistral-7b-v0.1", "mixtral-8x7b", "qwen3-coder-30b")
ATTENTION = (*ONE_KIND, "gpt-oss-20b", "gpt-oss-120b", "gemma-3-27b", "gemma-3n-e4b", "gemma-4-31b")
ATTENTION = (*ATTENTION, "llama-4-scout", "olmo-3-7b")
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


def test_olmo_3_by_hand() -> None:
    """No vector and no public log: 32 heads of 128, K and V, two bytes each; every fourth layer full."""
    layers = load_model("olmo-3-7b").layers
    window = SlidingWindow(window_tokens=4096)
    assert [layer.spec.retention for layer in layers] == [window, window, window, FullHistory()] * 8
    assert {layer.spec.row_bytes for layer in layers} == {2 * 32 * 128 * 2}
    for generation in GENERATIONS.values():
        slab = generation.lay_out(layers)
        assert [len(group.layers) for group in slab.groups] == [8, 8, 8, 8]
        assert slab.block_stride == 8 * 16 * 16_384 and slab.padding_bytes == 0


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
