"""Guards work that was interrupted: a row lost, computed twice or half done spoils a study in silence.

Nothing here raises an exception to interrupt: a child process is killed by SIGKILL, as by
a batch system that has run out of time, and another one goes on from the files it left.
"""

import csv
import importlib.util
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

from kvslab import generation_named, load_layers
from kvslab.cli import main
from kvslab.files import read_json
from kvslab.simulate import Request, Simulation, replay_all
from kvslab.sweep import KEY, Point, compute, read_grid, run_sweep
from test_killed_writers import run_and_kill

GRID = """
models: [gpt-oss-20b, llama-3.1-8b]
budgets: [26.46GiB, 300000]
lengths: [4096, 8192, 16384, 131072]
"""
BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "fuzz_inputs.py"


def die() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "grid.yaml"
    path.write_text(GRID, encoding="utf-8")
    return path


@pytest.mark.parametrize("killed_at", [0, 3, 4, 10, 15])
def test_a_killed_sweep_goes_on(
    killed_at: int, grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, whole = tmp_path / "a.parquet", tmp_path / "whole.parquet"
    points = read_grid(grid)
    monkeypatch.setattr("kvslab.sweep.POINTS_A_BATCH", 4)
    run_sweep(points, whole, runner="sequential", num_jobs=1)
    computed: list[Point] = []
    last: list[int] = [killed_at]

    def counting(point: Point) -> dict[str, Any]:
        if len(computed) in last:
            die()
        computed.append(point)
        return compute(point)

    monkeypatch.setattr("kvslab.sweep.compute", counting)
    command = ["sweep", str(grid), "-o", str(output), "--runner", "sequential", "--jobs", "1", "--quiet"]
    assert not run_and_kill(lambda: main(command))
    num_kept = killed_at // 4 * 4
    assert (len(pd.read_parquet(output)) if output.exists() else 0) == num_kept, "whole batches"
    last.clear()
    assert main(command) == 0
    assert [point.key for point in computed] == [point.key for point in points[num_kept:]]
    assert output.read_bytes() == whole.read_bytes()
    kept = pd.read_parquet(output)
    assert len(kept) == len(points) == 16 and not kept.duplicated(list(KEY)).any()
    computed.clear()
    assert main(command) == 0 and not computed, "nothing is missing any more"


def test_a_sweep_killed_from_outside_goes_on(grid: Path, tmp_path: Path) -> None:
    """With worker processes, at whatever moment it is in after its first rows are on the disk."""
    output, whole = tmp_path / "a.parquet", tmp_path / "whole.parquet"
    run_sweep(read_grid(grid), whole, runner="sequential", num_jobs=1)
    code = "import sys; from kvslab import cli, sweep; sweep.POINTS_A_BATCH = 2; cli.main(sys.argv[1:])"
    options = ["sweep", str(grid), "-o", str(output), "--runner", "loky", "--jobs", "2", "--quiet"]
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", code, *options], dict(os.environ))
    give_up = time.monotonic() + 120
    while not output.exists() and time.monotonic() < give_up:
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0  # or it was faster
    before = len(pd.read_parquet(output))
    assert before >= 2 and before % 2 == 0
    progress: list[int] = []
    run_sweep(read_grid(grid), output, runner="sequential", num_jobs=1, on_progress=progress.append)
    assert progress[0] == before, "the rows on the disk are not computed again"
    assert output.read_bytes() == whole.read_bytes()


GROUPS = generation_named("overlay").lay_out(load_layers("gpt-oss-20b")).groups
REQUESTS = [
    Request(arrival_step=3 * i, prompt_tokens=200 + 900 * (i % 3), output_tokens=5 + i % 7) for i in range(20)
]


def _replay(checkpoint: Path | None, on_step: Callable[[], None]) -> dict[str, Any]:
    def make() -> Simulation:
        simulation = Simulation(GROUPS, 900, max_num_batched_tokens=512)
        advance = simulation.advance

        def stepping() -> tuple[list[int], int]:
            on_step()
            return advance()

        simulation.advance = stepping  # type: ignore[method-assign]
        return simulation

    return replay_all(
        {"a": make, "b": make},
        lambda: iter(REQUESTS),
        key={"trace": "t"},
        checkpoint=checkpoint,
        steps_between_checkpoints=10,
    )


def test_a_killed_replay_goes_on(tmp_path: Path) -> None:
    steps = [0]

    def count() -> None:
        steps[0] += 1

    expected = _replay(None, count)
    num_steps = steps[0]
    assert num_steps > 60
    for killed_at in range(1, num_steps, 13):
        checkpoint = tmp_path / f"{killed_at}.json"
        steps[0] = 0

        def dying(killed_at: int = killed_at) -> None:
            count()
            if steps[0] == killed_at:
                die()

        assert not run_and_kill(lambda c=checkpoint, d=dying: _replay(c, d))
        steps[0] = 0
        assert _replay(checkpoint if checkpoint.exists() else None, count) == expected
        # What came before the last checkpoint is not played again.
        per_pool = num_steps // 2
        in_second, at = divmod(killed_at - 1, per_pool)
        assert steps[0] == num_steps - (in_second * per_pool + at // 10 * 10)


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """`benchmarks/fuzz_inputs.py` as a module."""
    spec = importlib.util.spec_from_file_location("fuzz_inputs", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    sys.modules["fuzz_inputs"] = module  # its worker processes look for it
    spec.loader.exec_module(module)
    sys.path[:] = path
    yield module
    del sys.modules["fuzz_inputs"]


def test_a_killed_fuzz_run_goes_on(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "INPUTS_A_PART", 6)
    write, written = benchmark.write_atomically, [0]

    def dying(path: Path, data: str) -> None:
        if written[0] == 5:
            die()
        written[0] += 1
        write(path, data)

    def run(name: str, jobs: int = 1) -> list[dict[str, str]]:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        arguments = ["--inputs", "24", "--seed", "7", "--jobs", str(jobs), "--results", str(directory)]
        assert benchmark.main(arguments) == 0
        rows = csv.DictReader((directory / "fuzz_inputs.csv").read_text(encoding="utf-8").splitlines())
        return [
            {name: row[name] for name in row if name not in ("slowest_ms", "date", "commit")} for row in rows
        ]

    expected = run("whole")
    assert [row["reader"] for row in expected] == ["config", "layers", "log", "trace"]
    assert all(int(row["accepted"]) + int(row["refused"]) == 24 and row["unclear"] == "0" for row in expected)
    monkeypatch.setattr(benchmark, "write_atomically", dying)
    assert not run_and_kill(lambda: run("killed"))
    checkpoint = tmp_path / "killed" / ".fuzz_inputs.json"
    saved = read_json(checkpoint)
    assert isinstance(saved, dict) and len(saved["done"]) == 5
    assert not (tmp_path / "killed" / "fuzz_inputs.csv").exists()
    monkeypatch.setattr(benchmark, "write_atomically", write)
    capsys.readouterr()
    assert run("killed", jobs=2) == expected
    assert "5 of 16 parts are done already" in capsys.readouterr().out
    assert not checkpoint.exists(), "what is done is in the record now"


def test_a_fuzz_run_that_finds_a_bug_says_which_input(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(benchmark.fuzzing, "explain", broken)
    assert benchmark.main(["--inputs", "9", "--seed", "7", "--jobs", "1", "--results", str(tmp_path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines and all(
        re.match(r"  seed 7, (config|layers|log|trace) \d+: \w+Error: ", line) for line in lines
    )
    assert benchmark.main(["--inputs", "0", "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("fuzz_inputs: inputs: got 0")
