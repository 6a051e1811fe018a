"""Guards the door against whatever a file can hold: a traceback, a hang, or a file that is half understood.

The inputs are those of `fuzzing.py`, a seeded few hundred for each reader;
`benchmarks/fuzz_inputs.py` runs ten thousand.  Below them stand the inputs that once broke
a reader, each by itself.
"""

import gzip
import io
import json
import os
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fuzzing import READERS, Unclear, case, check, check_message
from kvslab.cli import main
from kvslab.errors import InputError, PlanError, RefusedError
from kvslab.files import is_there, parse_json, read_json, write_atomically
from kvslab.fit import plan_to_json
from kvslab.generations import GENERATIONS, generation_named
from kvslab.groups import chunk_size
from kvslab.intmath import round_up
from kvslab.layers import CacheLayer, LayerSpec, SlidingWindow, layers_from_json
from kvslab.logs import explain, parse_log, read_log
from kvslab.logs.lines import lines_of
from kvslab.models import layers_from_config, load_layers, preset_config, read_model
from kvslab.plan import Plan
from kvslab.simulate import read_trace, sha256_of
from kvslab.simulate.trace import MOST_BLANK_LINES
from kvslab.sweep import read_grid

SEED = 20_260_718
INPUTS = {"config": 200, "layers": 250, "log": 100, "trace": 250}
COMMANDS = {"config": 20, "layers": 20, "log": 15, "trace": 8}


@pytest.mark.parametrize("reader", READERS)
def test_a_few_hundred_inputs(reader: str, tmp_path: Path) -> None:
    accepted, refused = 0, set()
    for index in range(INPUTS[reader]):
        try:
            outcome = check(reader, SEED, index, tmp_path)
        except Unclear as error:
            pytest.fail(f"{reader} {SEED} {index}: {error}")
        accepted += outcome.accepted
        refused |= {outcome.message} - {""}
    # Neither all valid nor all garbage: both ways out are walked.
    assert 0.05 < accepted / INPUTS[reader] < 0.9
    assert len(refused) > (2 if reader == "log" else 20)


@pytest.mark.parametrize("reader", READERS)
def test_the_same_number_is_the_same_input(reader: str) -> None:
    assert [case(reader, 1, i) for i in range(20)] == [case(reader, 1, i) for i in range(20)]
    assert len({case(reader, 1, i) for i in range(20)}) > 15
    assert case(reader, 1, 0) != case(reader, 2, 0)


@pytest.mark.parametrize("reader", READERS)
def test_the_command_line(reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"input{READERS[reader].suffix}"
    command = [str(path) if word == "FILE" else word for word in READERS[reader].command]
    codes = []
    for index in range(COMMANDS[reader]):
        path.write_bytes(case(reader, SEED, index))
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)  # strict, as a terminal is
            patch.setattr(sys, "stderr", err)
            codes.append(main(command))
        err.seek(0)
        lines = err.read().splitlines()
        assert codes[-1] in (0, 2), (reader, index)
        assert len(lines) == (codes[-1] == 2), (reader, index, lines)
        assert all(line.startswith("kvslab: ") for line in lines)
    assert set(codes) == {0, 2}


# --- inputs that once broke a reader ------------------------------------------------------


def refusal(act: Any, *arguments: Any) -> str:
    """The message of the error that a call ends in; it must be readable."""
    with pytest.raises(PlanError) as caught:
        act(*arguments)
    check_message(caught.value)
    return str(caught.value)


GOOD = {"name": "a", "kind": "full_attention", "block_size": 16, "row_bytes": 64}


@pytest.mark.parametrize(
    "name",
    ["a\nb", "a\x1b[2Jb", "\u2028", "x" * 100_000, "", "\x00"],
    ids=["line", "escape", "u2028", "long", "", "nul"],
)
def test_a_field_of_any_name_is_named_in_one_line(name: str) -> None:
    message = refusal(layers_from_json, {"layers": [GOOD | {name: 1}]})
    assert "layers[0]." in message and "got 1, need no such field" in message
    assert "no such field" in refusal(layers_from_json, {"layers": [GOOD], name: 1})


def test_a_layer_of_any_name_is_refused_in_one_line() -> None:
    layers = layers_from_json(
        {
            "layers": [
                GOOD | {"name": "n" * 5_000},
                GOOD | {"name": "b\nc", "kind": "sliding_window", "sliding_window": 9, "row_bytes": 63},
            ]
        }
    )
    refusal(generation_named("overlay").lay_out, layers)


def _nest(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_a_value_of_any_size_is_shown_short() -> None:
    laughs: list[Any] = ["ha"] * 10
    for _ in range(12):
        laughs = [laughs] * 10  # 10 ** 13 words when printed
    itself: list[Any] = []
    itself.append(itself)
    for value in (
        laughs,
        itself,
        _nest(5_000),
        1 << 100_000,
        "x" * 10**6,
        {"a": laughs},
        (itself,),
        b"x" * 999,
    ):
        message = refusal(read_json_field, value)
        assert message.startswith("size: got ") and message.endswith(", need a number")
        assert len(message) < 120
    # As `repr` has it, where that is short.
    for value in ([1, (2,), ()], {"a": [None]}, (1, 2), "it's", b"x", 4.5, True):
        assert refusal(read_json_field, value) == f"size: got {value!r}, need a number"


def read_json_field(value: object) -> None:
    raise InputError("size", value, "a number")


def test_an_error_comes_back_whole_from_a_worker() -> None:
    error = pickle.loads(pickle.dumps(InputError("layers[1].name", 3, "a string")))
    assert (str(error), error.field, error.got) == (
        "layers[1].name: got 3, need a string",
        "layers[1].name",
        3,
    )
    assert str(pickle.loads(pickle.dumps(RefusedError("no")))) == "no"


def test_half_a_character_is_no_text() -> None:
    assert parse_json('{"a": "\\ud83d\\ude00"}', "f") == {"a": "\U0001f600"}
    assert "half a surrogate pair" in refusal(parse_json, '{"a": "\\uD83D"}', "f")
    assert "half a surrogate pair" in refusal(parse_json, '{"\\ud83d": 1}', "f")


def test_files_without_an_end(tmp_path: Path) -> None:
    assert "at most 67,108,864 bytes" in refusal(read_model, "/dev/zero")
    assert "at most 67,108,864 bytes" in refusal(read_grid, Path("/dev/zero"))
    assert "no ordinary file" in refusal(sha256_of, Path("/dev/zero"))
    endless = io.StringIO("0" * 200_000 + "\nGPU KV cache size: 12 tokens")
    assert [len(line) for line in lines_of(endless)] == [20_000, 28]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "no ordinary file" in refusal(lambda: list(read_trace(pipe)))
    config = tmp_path / "config"
    os.mkfifo(config)
    text = json.dumps(preset_config("gpt-oss-20b"))
    writer = threading.Thread(target=config.write_text, args=(text,))
    writer.start()
    assert load_layers(str(config)) == load_layers("gpt-oss-20b"), "a pipe can be read once, as <(...) is"
    writer.join()


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    for name in ("a" * 5_000, str(tmp_path / ("b" * 300)), "c\x00d"):
        for act in (read_model, lambda n: is_there(Path(n)), lambda n: write_atomically(Path(n), "")):
            refusal(act, name)
        for act in (lambda n: read_json(Path(n)), lambda n: read_log(Path(n)), lambda n: read_grid(Path(n))):
            refusal(act, name)
        refusal(lambda n: list(read_trace(Path(n))), name)
    # As long as a file system takes it: the temporary name must not be longer.
    write_atomically(tmp_path / ("d" * 250), "text")
    assert os.listdir(tmp_path) == ["d" * 250]


def test_a_damaged_gzip_file(tmp_path: Path) -> None:
    rows = "".join(
        json.dumps({"timestamp": i, "input_length": i + 1, "output_length": 1}) + "\n" for i in range(99)
    )
    raw, path = gzip.compress(rows.encode(), mtime=0), tmp_path / "t.gz"
    reasons = set()
    for at in range(0, len(raw), 3):
        for data in (raw[:at], raw[:at] + bytes([raw[at] ^ 0x55]) + raw[at + 1 :]):
            path.write_bytes(data)
            for act in (sha256_of, lambda p: list(read_trace(p))):
                try:
                    act(path)
                except PlanError as error:
                    check_message(error)
                    reasons.add(str(error).split(": got ")[1][:20])
    assert any("Error -3" in reason for reason in reasons), "zlib's own error was met"


def test_a_trace_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(b"\n" * (MOST_BLANK_LINES + 5)))
    assert "another blank line" in refusal(lambda: list(read_trace(path)))


@pytest.mark.parametrize(
    "text",
    [
        "!!int ''",
        "!!bool x",
        "!!timestamp x",
        "!!float x",
        "models: [0x" + "f" * 20_000 + "]",
        "- " * 900,
        "!!binary é",
    ],
    ids=["int", "bool", "timestamp", "float", "long", "deep", "binary"],
)
def test_a_grid_that_yaml_stumbles_over(text: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(text, encoding="utf-8")
    refusal(read_grid, path)


def test_a_grid_that_laughs(tmp_path: Path) -> None:
    lines = ["x0: &x0 [ha, ha, ha, ha, ha, ha, ha, ha, ha]"]
    lines += [f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]" for i in range(1, 12)]
    path = tmp_path / "grid.yaml"
    path.write_text("\n".join([*lines, "models: [*x11]", "budgets: [1GiB]"]), encoding="utf-8")
    refusal(read_grid, path)


def test_a_ratio_that_is_no_integer_moves_no_layer() -> None:
    """4.0 equals 4: it was taken for a ratio, left out of the list, and every later layer moved up one."""
    config = preset_config("deepseek-v4-flash")
    assert isinstance(config, dict)
    ratios = list(config["compress_ratios"])
    at = ratios.index(4)
    ratios[at] = 4.0
    message = refusal(layers_from_config, config | {"compress_ratios": ratios})
    assert f"compress_ratios[{at}]: got 4.0, need one of 0, 4, 128" in message


def test_a_slab_that_a_plan_file_cannot_give_back_is_refused() -> None:
    """Its shared slots were left out, so what came back was another slab."""
    slab = generation_named("bucketed").lay_out(load_layers("deepseek-v4-flash"))
    assert slab.slots and slab.block_outermost
    assert "no shared slot" in refusal(plan_to_json, Plan(slab=slab, budget_bytes=2**34))


# --- logs -------------------------------------------------------------------------------


def test_a_log_that_repeats_itself() -> None:
    stacks = {"bf16": load_layers("gpt-oss-20b")}
    lines = [
        "Available KV cache memory: 26.46 GiB",
        "Maximum concurrency for 4,096 tokens per request: 3.04x",
    ]
    once = explain(parse_log(lines), stacks)
    often = explain(parse_log(lines * 2_000), stacks)
    assert often.fits == once.fits
    assert {item.derived_by for item in often.explained} == {item.derived_by for item in once.explained}


def test_a_log_of_very_many_engines() -> None:
    stacks = {"bf16": load_layers("gpt-oss-20b")}
    lines = [f"GPU KV cache size: {i} tokens" for i in range(1, 2_000)]
    message = refusal(lambda: explain(parse_log(lines), stacks, max_model_len=4_096))
    assert "1,999 different statements about the cache" in message
    (contradiction,) = parse_log(lines).contradictions
    assert "1, 2, 3, 4, 5, 6, 7, 8 and 1,991 more" in contradiction
    crowded = " ".join(f"max_seq_len={i}" for i in range(1, 1_000))
    assert "over 100,000 statements" in refusal(parse_log, [crowded] * 101)


def test_a_line_of_digits_is_searched_once() -> None:
    digits = "1" * 19_000 + " GiB KV cache is needed"
    parse_log(["GPU KV cache size: 12 tokens", *[digits] * 200])
    log = parse_log(["to serve one request, 6.66 GiB KV cache is needed"])
    assert log.last("needed_gib") == "6.66"


def test_bytes_on_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    raw = io.BytesIO(b"\xff\xfe\nAvailable KV cache memory: 26.46 GiB\n\x80")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(raw, encoding="utf-8"))
    assert main(["explain", "-", "--max-model-len", "4096"]) == 0
    assert "line 2: available_gib" not in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["explain", "-"]) == 2
    assert capsys.readouterr().err == "kvslab: standard input: got None, need a log\n"


def test_a_terminal_that_knows_fewer_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["layers", "gpt-oss-20b", "-o", str(tmp_path / "Schicht-ä.json")]) == 0
    out.seek(0)
    assert "Schicht-\\xe4.json" in out.read()


# --- stacks that took hours or all memory -------------------------------------------------


def latent(i: int, row_bytes: int) -> CacheLayer:
    spec = LayerSpec(kind="mla_attention", block_size=64, row_bytes=row_bytes)
    return CacheLayer(name=f"latent.{i}", spec=spec)


def window(i: int, tokens: int) -> CacheLayer:
    spec = LayerSpec(
        kind="sliding_window_mla", block_size=64, row_bytes=64, retention=SlidingWindow(window_tokens=tokens)
    )
    return CacheLayer(name=f"window.{i}", spec=spec)


def test_slots_that_no_memory_holds() -> None:
    layers = [latent(i, 64) for i in range(600)] + [latent(i, i) for i in range(600, 1_000)] + [window(0, 9)]
    message = refusal(generation_named("padded").lay_out, layers)
    assert "600 slots of each of 401 page sizes: got 240,600 slots, need at most 200,000" in message
    generation_named("bucketed").lay_out(layers)


def test_thousands_of_groups_cost_seconds() -> None:
    # Before, every group looked for itself in a list of all: a minute for these, an hour for 20,000.
    layers = [latent(0, 64), *(window(i, i + 1) for i in range(3_000))]
    for generation in GENERATIONS.values():
        slab = generation.lay_out(layers)
        assert len(slab.groups) == 3_001 and slab.padding_bytes == 0


@pytest.mark.parametrize("counts", [[31, 61, 31, 30], [1], [7, 7, 7, 20, 3], [2, 9, 4, 4, 4, 11]])
def test_the_depth_is_the_one_that_wastes_least(counts: list[int]) -> None:
    first, everything = counts[0], [counts[0], *counts]
    waste = {d: sum(round_up(x, d) - x for x in everything) for d in range(first, max(everything) + 1)}
    assert chunk_size(first, counts) == max(d for d in waste if waste[d] == min(waste.values()))
