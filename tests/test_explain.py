"""Guards the reading of logs: a line read by the wrong formula sells a user the wrong number of GPUs."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvslab.cli import main
from kvslab.errors import InputError, PlanError
from kvslab.layers import layers_from_json
from kvslab.logs import explain, parse_log
from kvslab.models import load_layers

PREFIX = "(EngineCore pid=77) INFO 07-18 10:00:09 [kv_cache_utils.py:1087] "
# What 0.26.0 and 0.27.0 answer in tests/data/planner_vectors.json.xz, gb200-flashinfer-*.
BEFORE = [
    "INFO 07-18 10:00:01 vLLM API server version 0.26.0",
    "INFO 07-18 10:00:01 non-default args: {'max_model_len': 1048576, 'max_num_batched_tokens': 8192}",
    PREFIX + "Available KV cache memory: 26.46 GiB",
    PREFIX + "GPU KV cache size: 3,192,641 tokens",
    PREFIX + "Maximum concurrency for 1,048,576 tokens per request: 3.04x",
]
AFTER = [
    "INFO 07-18 10:00:01 Chunked prefill is enabled with max_num_batched_tokens=8192.",
    PREFIX + "Available KV cache memory: 26.46 GiB",
    PREFIX
    + "GPU KV cache size: 3,254,104 tokens, Maximum concurrency for 1,048,576 tokens per request: 3.10x",
]
# vllm-project/vllm issue 44376: DeepSeek-V4-Flash, FlashMLA, 16,384 tokens in flight.
REFUSAL = (
    "ValueError: To serve at least one request with the models's max seq len (30000), (6.66 GiB KV cache is"
    " needed,"
    " which is larger than the available KV cache memory (5.44 GiB). Based on the available memory,"
    " the estimated maximum model length is 13528."
)


def stacks(model: str, backend: str) -> dict[str, tuple]:  # type: ignore[type-arg]
    return {rows: load_layers(model, backend=backend, indexer=rows) for rows in ("fp8", "mxfp4")}


def test_a_log_before_the_change() -> None:
    answer = explain(parse_log(BEFORE), stacks("deepseek-v4-pro", "flashinfer"))
    found = {item.statement.fact: item.derived_by for item in answer.explained}
    assert "bucketed, fp8, 8,192 in flight, formula legacy" in found["cache_tokens"]
    assert "bucketed, fp8, 8,192 in flight, formula legacy" in found["concurrency"]
    assert not any("overlay" in label for label in found["cache_tokens"])
    assert answer.contradictions == ()
    fit = answer.fits[0]
    assert (fit.num_blocks, fit.most_blocks, fit.block_stride) == (21_709, 21_709, 1_308_672)
    assert 4.4 < float(fit.steady) < 4.5


def test_a_log_after_the_change() -> None:
    answer = explain(parse_log(AFTER), stacks("deepseek-v4-pro", "flashinfer"))
    found = {item.statement.fact: item.derived_by for item in answer.explained}
    # 0.27 and 0.32 plan this model alike.
    assert found["cache_tokens"] == tuple(
        f"{slab}, mxfp4, 8,192 in flight, formula block_sum" for slab in ("overlay", "standard")
    )
    assert (answer.fits[0].num_blocks, answer.fits[0].most_blocks) == (23_120, 23_120)


def test_a_refusal() -> None:
    answer = explain(
        parse_log([REFUSAL]), stacks("deepseek-v4-flash", "flashmla"), max_in_flight_tokens=16384
    )
    found = {item.statement.fact: item.derived_by for item in answer.explained}
    assert "padded, fp8, 16,384 in flight, price tuple" in found["needed_gib"]
    assert "padded, fp8, 16,384 in flight, price tuple" in found["estimated_length"]
    # 5.44 GiB hold 5,548 to 5,558 blocks of 1,051,776 bytes; what the engine estimates does not fit
    # once the null block is kept and a block is priced by its stride.
    fit = answer.fits[0]
    assert (fit.num_blocks, fit.most_blocks) == (5548, 5558)
    assert fit.longest_engine is not None and fit.longest_engine <= 13_528
    assert fit.longest_exact < fit.longest_engine
    wrong = parse_log([REFUSAL.replace("6.66 GiB KV", "6.67 GiB KV")])
    refuted = explain(wrong, stacks("deepseek-v4-flash", "flashmla"), max_in_flight_tokens=16384)
    needed = next(item for item in refuted.explained if item.statement.fact == "needed_gib")
    assert "padded, fp8, 16,384 in flight, price tuple" not in needed.derived_by


def test_blocks_and_overrides() -> None:
    log = parse_log(
        ["num_gpu_blocks is: 21709", "Overriding num_gpu_blocks=21709 with num_gpu_blocks_override=512"]
    )
    assert log.integer("num_blocks") == 21_709
    assert log.integer("num_blocks_override") == 512
    assert log.contradictions == ("num_blocks 21709 is not the override 512",)
    answer = explain(log, stacks("deepseek-v4-pro", "flashinfer"), max_model_len=4096)
    assert answer.fits == ()
    stated = parse_log(["Available KV cache memory: 26.46 GiB", "# GPU blocks: 21709, # CPU blocks: 0"])
    (item,) = explain(stated, stacks("deepseek-v4-pro", "flashinfer"), max_model_len=4096).explained
    assert set(item.derived_by) == {
        f"bucketed, fp8, {tokens:,} in flight, budget // block stride" for tokens in (2048, 4096, 8192, 16384)
    }


def test_lines_that_are_about_something_else() -> None:
    lines = [
        "Overriding num_gpu_blocks=0 with num_gpu_blocks_override=512",
        "Available KV cache memory: -2.14 GiB",
    ]
    with pytest.raises(InputError, match="no such line"):
        parse_log(lines)
    log = parse_log([*AFTER, *lines])
    assert log.last("num_blocks_override") is None
    assert [s.value for s in log.statements if s.fact == "available_gib"] == ["26.46"]


def test_older_engines_log_blocks_as_tokens() -> None:
    """Source: vllm-project/vllm issue 10517: 20,640 tokens are what one group of 16-token blocks stores."""
    layer = {"kind": "full_attention", "block_size": 16, "row_bytes": 4096}
    dense = layers_from_json({"layers": [{"name": f"l{i}", **layer} for i in range(32)]})
    lines = [
        "# GPU blocks: 1290, # CPU blocks: 0",
        "max seq len (32768) is larger than the maximum number of",
    ]
    lines[1] += " tokens that can be stored in KV cache (20640)."
    found = {i.statement.fact: i.derived_by for i in explain(parse_log(lines), {"as given": dense}).explained}
    assert any(label.endswith("blocks * block size") for label in found["pool_tokens"])


def test_contradictions_are_named() -> None:
    lines = [*BEFORE, PREFIX + "GPU KV cache size: 9,999,999 tokens"]
    texts = explain(parse_log(lines), stacks("deepseek-v4-pro", "flashinfer")).contradictions
    assert any("cache_tokens is stated as 3192641, 9999999" in text for text in texts)
    assert any("9,999,999 is not concurrency 3.04 times 1,048,576" in text for text in texts)
    assert any("9999999 follows from the stated memory by no planner" in text for text in texts)


def test_async_scheduling_doubles_the_tokens_in_flight() -> None:
    lines = [*AFTER[:1], "Asynchronous scheduling is enabled.", *AFTER[1:]]
    (first, *_) = explain(parse_log(lines), stacks("deepseek-v4-pro", "flashinfer")).explained
    assert first.statement.fact == "cache_tokens"
    assert first.derived_by == ()


def test_several_workers_state_the_smallest_memory() -> None:
    lines = ["Available KV cache memory: 30.00 GiB", *AFTER]
    assert explain(parse_log(lines), stacks("deepseek-v4-pro", "flashinfer")).fits[0].num_blocks == 23_120


@pytest.mark.parametrize(
    "lines", [[], ["hello"], ["max_model_len=4096"], ["GPU KV cache size: lots of tokens"]]
)
def test_a_log_without_a_word_on_the_cache(lines: list[str]) -> None:
    with pytest.raises(InputError, match=r"log: got 'no such line', need a line about KV-cache memory"):
        parse_log(lines)


def test_memory_alone_lists_every_planner() -> None:
    log = parse_log(["Available KV cache memory: 26.46 GiB"])
    answer = explain(
        log, stacks("deepseek-v4-pro", "flashinfer"), max_model_len=131_072, max_in_flight_tokens=8192
    )
    assert answer.explained == ()
    assert {fit.label.partition(",")[0] for fit in answer.fits} == {
        "padded",
        "bucketed",
        "overlay",
        "standard",
    }
    assert any((fit.num_blocks, fit.block_stride) == (23_116, 1_228_800) for fit in answer.fits)


def test_absurd_numbers_are_passed_over() -> None:
    digits = "0" * 5000 + "21"
    with pytest.raises(InputError, match="no such line"):
        parse_log([f"num_gpu_blocks is: {digits}", f"GPU KV cache size: {'9' * 5000} tokens"])


def test_a_length_must_be_known() -> None:
    with pytest.raises(InputError, match="max_model_len: got 'no line that states it', need --max-model-len"):
        explain(parse_log(["Available KV cache memory: 26.46 GiB"]), stacks("deepseek-v4-pro", "flashinfer"))


@given(text=st.text(max_size=200), number=st.text(alphabet="0123456789,.", max_size=30))
@settings(deadline=None, max_examples=200)
def test_any_text_is_read_or_refused(text: str, number: str) -> None:
    lines = [text, f"GPU KV cache size: {number} tokens", f"Available KV cache memory: {number} GiB", text]
    try:
        parse_log(lines)
    except PlanError as error:
        assert "\n" not in str(error)


def test_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "engine.log"
    path.write_text("\n".join(BEFORE), encoding="utf-8")
    assert main(["explain", str(path)]) == 0
    out = capsys.readouterr().out
    assert "line 4: cache_tokens = 3192641" in out and "formula legacy" in out and "21,709" in out
    assert main(["explain", str(path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["version"] == "0.26.0"
    assert [line["fact"] for line in answer["lines"]] == ["cache_tokens", "concurrency"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(AFTER)))
    assert main(["explain", "-", "--indexer", "mxfp4"]) == 0
    assert "overlay, mxfp4" in capsys.readouterr().out


def test_the_commands_faults(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    empty = tmp_path / "empty.log"
    empty.write_text("nothing", encoding="utf-8")
    log = tmp_path / "engine.log"
    log.write_text("\n".join(BEFORE), encoding="utf-8")
    for arguments, message in (
        (["explain", str(tmp_path / "missing.log")], "No such file or directory"),
        (["explain", str(tmp_path)], "Is a directory"),
        (["explain", str(empty)], "need a line about KV-cache memory"),
        (["explain"], "Missing argument 'LOG'"),
        (["plan", "deepseek-v4-pro", "--budget", "1GiB", "--max-model-len", "0"], "max_model_len: got 0"),
        (
            ["plan", "deepseek-v4-pro", "--budget", "1GiB", "--max-in-flight-tokens", "0"],
            "max_in_flight_tokens: got 0",
        ),
        (["compare", "deepseek-v4-pro", "--budget", "1GiB", "--dcp", "0"], "dcp: got 0"),
        (
            ["compare", "deepseek-v4-pro", "--budget", "1MiB"],
            "need one block: 1,185,792 in the smallest slab",
        ),
        (["explain", str(log), "--max-model-len", "0"], "max_model_len: got 0"),
        (["explain", str(log), "--dcp", "0"], "dcp: got 0"),
        (["results", "verify", "--dir", str(tmp_path / "nope")], "results directory: got"),
    ):
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert message in captured.err and captured.err.count("\n") == 1 and captured.out == ""
