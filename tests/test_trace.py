"""Guards the replay of traces: a checkpoint that loses a request or a token goes unnoticed in a mean."""

import gzip
import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvslab.capacity import Load
from kvslab.cli import main
from kvslab.errors import InputError
from kvslab.files import parse_json
from kvslab.fit import rival_plans, steady_requests
from kvslab.models import load_layers
from kvslab.published import after, slab_of
from kvslab.simulate import Replay, Request, Simulation, load_of_requests, read_trace, replay_all, sha256_of
from kvslab.tables.replay import replay_table, trace_requests

GROUPS = slab_of(after("flashinfer")).groups


def write_trace(path: Path, num_requests: int, *, seed: int = 0, zipped: bool = False) -> Path:
    """A trace of the Mooncake form, made up."""
    rng, lines, at = random.Random(seed), [], 0
    for i in range(num_requests):
        lines.append(
            json.dumps(
                {
                    "timestamp": at,
                    "input_length": rng.choice([900, 7_000, 30_000]),
                    "output_length": rng.choice([1, 40, 200]),
                    "hash_ids": [0, i],
                }
            )
        )
        at += rng.randrange(0, 4000)
    raw = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(raw) if zipped else raw)
    return path


def make() -> Simulation:
    return Simulation(GROUPS, 1_200, max_num_batched_tokens=2048)


def test_reading(tmp_path: Path) -> None:
    plain = write_trace(tmp_path / "a.jsonl", 30)
    zipped = write_trace(tmp_path / "a.jsonl.gz", 30, zipped=True)
    assert list(read_trace(plain)) == list(read_trace(zipped))
    assert sha256_of(plain) == sha256_of(zipped) == hashlib.sha256(plain.read_bytes()).hexdigest()
    assert trace_requests(plain).name == "a.jsonl"
    assert {request.arrival_step for request in read_trace(plain)} == {0}
    steps = [request.arrival_step for request in read_trace(plain, step_ms=100)]
    assert steps == sorted(steps) and steps[-1] > 100
    assert list(read_trace(plain, limit=7)) == list(read_trace(plain))[:7]
    load = load_of_requests(read_trace(plain), max_in_flight_tokens=1)
    assert sum(weight for _, weight in load.lengths) == 30


def test_a_trace_is_not_held(tmp_path: Path) -> None:
    """A fault in the last line shows only when that line is reached."""
    path = write_trace(tmp_path / "a.jsonl", 5)
    with path.open("a", encoding="utf-8") as stream:
        stream.write("{broken\n")
    requests = read_trace(path)
    assert [next(requests) for _ in range(5)]
    with pytest.raises(InputError, match=r"a\.jsonl, line 6: got .*, need a JSON object"):
        next(requests)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", r"line 1: got \[\], need a JSON object"),
        ('{"timestamp": 0, "input_length": 5}', "output_length: got nothing"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 5}', "input_length: got 0"),
        ('{"timestamp": 0, "input_length": 1.5, "output_length": 5}', r"input_length: got 1\.5"),
        ('{"timestamp": -1, "input_length": 1, "output_length": 5}', "timestamp: got -1"),
        (
            '{"timestamp": 0, "input_length": 99999999999, "output_length": 5}',
            "input_length: got 99999999999",
        ),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 5}', "NaN is no JSON number"),
        ("", "got 'no request'"),
        ("\udcff", "no UTF-8 text"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(InputError, match=message):
        list(read_trace(path))


def test_other_faults(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        list(read_trace(tmp_path / "none.jsonl"))
    with pytest.raises(InputError, match="a readable trace file"):
        list(read_trace(tmp_path))
    back = tmp_path / "back.jsonl"
    rows = [{"timestamp": t, "input_length": 1, "output_length": 1} for t in (5, 4)]
    back.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    with pytest.raises(InputError, match="line 2: timestamp: got 4, need at least 5"):
        list(read_trace(back))
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(write_trace(tmp_path / "a.gz", 50, zipped=True).read_bytes()[:-20])
    with pytest.raises(InputError, match="a readable trace file"):
        list(read_trace(cut))
    with pytest.raises(InputError, match="step_ms: got 0"):
        list(read_trace(back, step_ms=0))


def test_a_replay_is_the_simulation(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.jsonl", 25)
    for step_ms in (None, 50):
        whole = make().run(read_trace(path, step_ms=step_ms))
        replay = Replay(make(), read_trace(path, step_ms=step_ms))
        while not replay.is_done:
            replay.advance()
        tally = replay.tally
        assert (tally.num_steps, tally.num_finished) == (whole.num_steps, 25)
        assert (tally.peak_running, tally.peak_used_blocks) == (whole.peak_running, whole.peak_used_blocks)
        assert tally.num_shortfalls == 0
        assert 0 < tally.crowded_running <= tally.crowded_steps * tally.peak_running


@given(stops=st.lists(st.integers(1, 400), min_size=1, max_size=4), step_ms=st.sampled_from([None, 50]))
@settings(deadline=None, max_examples=15)
def test_a_replay_stopped_anywhere_ends_the_same(stops: list[int], step_ms: int | None) -> None:
    rng = random.Random(3)
    at = 0
    requests = []
    for _ in range(12):
        requests.append(
            Request(
                arrival_step=0 if step_ms is None else at,
                prompt_tokens=rng.choice([700, 9000, 30_000]),
                output_tokens=rng.choice([1, 50]),
            )
        )
        at += rng.randrange(0, 60)
    whole = Replay(make(), requests)
    while not whole.is_done:
        whole.advance()
    replay = Replay(make(), requests)
    for stop in stops:
        for _ in range(stop):
            if not replay.is_done:
                replay.advance()
        state = parse_json(json.dumps(replay.state), "state")
        replay = Replay(make(), requests, state)
    while not replay.is_done:
        replay.advance()
    assert replay.tally == whole.tally


def test_an_interrupted_run_continues_from_its_checkpoint(tmp_path: Path) -> None:
    path, checkpoint = write_trace(tmp_path / "a.jsonl", 25), tmp_path / "checkpoint.json"
    simulations = {"a": make, "b": make}

    class Interrupted(Exception):
        pass

    def interrupting() -> Iterator[Request]:
        for i, request in enumerate(read_trace(path)):
            if i == 20:
                raise Interrupted
            yield request

    reads = [0]

    def reader() -> Iterator[Request]:
        reads[0] += 1
        return interrupting() if reads[0] == 2 else read_trace(path)

    expected = replay_all(simulations, lambda: read_trace(path), key={"k": 1})
    with pytest.raises(Interrupted):
        replay_all(simulations, reader, key={"k": 1}, checkpoint=checkpoint, steps_between_checkpoints=20)
    saved = json.loads(checkpoint.read_text(encoding="utf-8"))
    assert set(saved["done"]) == {"a"} and saved["current"]["b"]["running"]
    seen: list[tuple[str, int]] = []
    found = replay_all(
        simulations,
        lambda: read_trace(path),
        key={"k": 1},
        checkpoint=checkpoint,
        on_progress=lambda name, done: seen.append((name, done)),
    )
    assert found == expected
    assert {name for name, _ in seen} == {"b"} and seen[-1] == ("b", 25)
    with pytest.raises(InputError, match="a checkpoint of another run"):
        replay_all(simulations, lambda: read_trace(path), key={"k": 2}, checkpoint=checkpoint)
    checkpoint.write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="format: got nothing"):
        replay_all(simulations, lambda: read_trace(path), key={"k": 1}, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tally", {}, "num_steps: got nothing"),
        ("running", [[1, 2]], "rows of four integers"),
        ("running", [[0, 5, 5, 11]], "computed_tokens: got 11, need an integer from 0 to 10"),
        ("running", [[0, "5", 5, 1]], "prompt_tokens: got '5'"),
    ],
)
def test_a_wrong_state_is_refused(field: str, value: object, message: str) -> None:
    request = Request(arrival_step=0, prompt_tokens=10, output_tokens=2)
    state: dict[str, Any] = Replay(make(), [request]).state | {field: value}
    with pytest.raises(InputError, match=message):
        Replay(make(), [request], state)


def test_the_ranking_of_steady_is_what_requests_see(tmp_path: Path) -> None:
    source = trace_requests(write_trace(tmp_path / "a.jsonl", 120), name="made up")
    load = source.load(max_in_flight_tokens=2048)
    plans = rival_plans(load_layers("deepseek-v4-pro"), load, 2 * 2**30)
    frame = replay_table(source, plans, load, {"model": "pro"}).set_index("slab")
    steady = {name: steady_requests(plan, load) for name, plan in plans.items()}
    assert steady["fitted"] > steady["overlay"] > steady["bucketed"]
    mean = frame["mean_running"]
    assert mean["fitted"] > mean["overlay"] > mean["bucketed"]
    assert frame["num_steps"]["fitted"] < frame["num_steps"]["overlay"] < frame["num_steps"]["bucketed"]
    assert set(frame["num_finished"]) == {120} and set(frame["num_shortfalls"]) == {0}


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, table = str(write_trace(tmp_path / "a.jsonl", 30)), tmp_path / "t.csv"
    common = ["simulate", "deepseek-v4-flash", "--budget", "2GiB", "--trace", trace, "--quiet"]
    few = [*common, "--max-num-batched-tokens", "2048", "--slab", "overlay", "--slab", "fitted"]
    for _ in range(2):  # the second run replaces the rows of the first
        assert main([*few, "--checkpoint", str(tmp_path / "c.json"), "--append", str(table), "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        assert [row["slab"] for row in rows] == ["overlay", "fitted"]
    assert list(pd.read_csv(table)["slab"]) == ["overlay", "fitted"]
    assert main([*few, "--step-ms", "50"]) == 0
    assert "30 requests, as recorded, 50 ms a step" in capsys.readouterr().out
    made = ["simulate", "deepseek-v4-flash", "--budget", "4GiB", "--num-requests", "8", "--slab", "overlay"]
    results = []
    for seed in ("1", "1", "2"):
        assert main([*made, "--seed", seed, "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert results[0] == results[1] != results[2]
    for wrong, message in (
        ([*common, "--slab", "best"], "slab: got 'best'"),
        ([*common, "--limit", "0"], "limit: got 0"),
        ([*made, "--limit", "3"], "limit: got 3, need no such option without --trace"),
        ([*common[:-2], str(tmp_path / "none")], "No such file"),
        ([*few[:3], "1MiB", *few[4:]], "need"),
        ([*few, "--append", trace], "need a CSV that this command wrote"),
    ):
        assert main(wrong) == 2, wrong
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1, wrong


def test_a_mixture_is_what_the_trace_holds(tmp_path: Path) -> None:
    requests = list(read_trace(write_trace(tmp_path / "a.jsonl", 40)))
    load = load_of_requests(requests, max_in_flight_tokens=64)
    assert load.mean(lambda tokens: tokens) * 40 == sum(request.total_tokens for request in requests)
    assert isinstance(load, Load)
