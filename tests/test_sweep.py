"""Guards sweeps: a row lost or computed twice, or a cluster that gives other numbers, spoils a study."""

from pathlib import Path
from typing import Any

import distributed
import pandas as pd
import pytest

from kvslab.cli import main
from kvslab.errors import InputError
from kvslab.sweep import KEY, Point, compute, grid_points, read_grid, run_sweep

GRID = """
models: [deepseek-v4-pro, deepseek-v4-flash]
backends: [flashinfer, flashmla]
budgets: [26.46GiB, 300000]
lengths: [8192, 1048576]
"""


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "grid.yaml"
    path.write_text(GRID, encoding="utf-8")
    return path


def test_points(grid: Path) -> None:
    points = read_grid(grid)
    assert len(points) == 16 == len({point.key for point in points})
    assert points[0] == Point(
        model="deepseek-v4-pro",
        backend="flashinfer",
        indexer="mxfp4",
        budget_bytes=28_411_208_663,
        max_model_len_tokens=8192,
        max_in_flight_tokens=1,
        block_sizes="kernel-legal",
    )
    twice = {"models": ["deepseek-v4-pro"] * 2, "budgets": ["1GiB", 2**30], "lengths": [8]}
    assert len(grid_points(twice)) == 1


def test_models_without_backends(tmp_path: Path) -> None:
    grid = {
        "models": ["gpt-oss-20b", "deepseek-v3.2", "deepseek-v4-pro"],
        "backends": ["flashinfer", "flashmla"],
        "budgets": ["40GiB"],
        "lengths": [8192],
    }
    points = grid_points(grid)
    assert [(point.model, point.backend, point.indexer) for point in points] == [
        ("gpt-oss-20b", "", ""),
        ("deepseek-v3.2", "", "mxfp4"),
        ("deepseek-v4-pro", "flashinfer", "mxfp4"),
        ("deepseek-v4-pro", "flashmla", "mxfp4"),
    ]
    output = tmp_path / "a.parquet"
    frame = run_sweep(points, output, runner="sequential", num_jobs=1)
    assert (frame["refused"] == "").all() and (frame["fitted_requests"] > 0).all()
    done: list[int] = []
    again = run_sweep(points, output, runner="sequential", num_jobs=1, on_progress=done.append)
    assert done == [4], "nothing was missing"
    pd.testing.assert_frame_equal(again, frame)


def test_local_and_cluster_give_equal_rows(grid: Path, tmp_path: Path) -> None:
    points = read_grid(grid)
    expected = run_sweep(points, tmp_path / "a.parquet", runner="sequential", num_jobs=1)
    local = run_sweep(points, tmp_path / "b.parquet", runner="loky", num_jobs=2)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert len(client.scheduler_info()["workers"]) == 2
        on_cluster = run_sweep(points, tmp_path / "c.parquet", runner="dask")
    pd.testing.assert_frame_equal(local, expected)
    pd.testing.assert_frame_equal(on_cluster, expected)
    for name in "bc":
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / f"{name}.parquet"), expected)
    refused = expected[expected["refused"] != ""]
    assert set(refused["budget_bytes"]) == {300_000} and refused["fitted_requests"].isna().all()
    done = expected[expected["refused"] == ""]
    assert (done["gain_percent"] >= 0).all()
    assert (done["fitted_requests"] <= done["whole_page_requests"]).all()
    assert (done["whole_page_requests"] <= done["zero_waste_requests"]).all()


def test_a_sweep_resumes(grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points, output = read_grid(grid), tmp_path / "a.parquet"
    expected = run_sweep(points, tmp_path / "whole.parquet", runner="sequential", num_jobs=1)
    computed: list[Point] = []

    def counting(point: Point) -> dict[str, Any]:
        if len(computed) == 10:
            raise KeyboardInterrupt
        computed.append(point)
        return compute(point)

    monkeypatch.setattr("kvslab.sweep.compute", counting)
    monkeypatch.setattr("kvslab.sweep.POINTS_A_BATCH", 4)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(points, output, runner="sequential", num_jobs=1)
    assert len(pd.read_parquet(output)) == 8  # two whole batches
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    computed.clear()
    progress: list[int] = []
    frame = run_sweep(points, output, runner="sequential", num_jobs=1, on_progress=progress.append)
    assert [point.key for point in computed] == [point.key for point in points[8:]]
    assert progress == [8, 12, 16]
    pd.testing.assert_frame_equal(frame, expected)
    pd.testing.assert_frame_equal(pd.read_parquet(output), expected)
    # Another grid adds its rows and keeps these.
    more = grid_points({"models": ["deepseek-v4-pro"], "budgets": ["1GiB"], "lengths": [4096]})
    computed.clear()
    assert len(run_sweep(more, output, runner="sequential", num_jobs=1)) == 1
    kept = pd.read_parquet(output)
    assert len(kept) == 17 and not kept.duplicated(list(KEY)).any()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: [a", "need a YAML mapping"),
        ("- 1", "need a JSON object"),
        ("budgets: [1GiB]", "models: got nothing"),
        ("models: [deepseek-v4-pro]", "budgets: got nothing"),
        ("models: [deepseek-v5]\nbudgets: [1GiB]", r"models\[0\]\.model: got 'deepseek-v5'"),
        ("models: [deepseek-v4-pro]\nbudgets: [many]", r"budgets\[0\]: got 'many'"),
        ("models: [deepseek-v4-pro]\nbudgets: [1.5]", r"budgets\[0\]: got 1\.5"),
        ("models: [deepseek-v4-pro]\nbudgets: []", "at least one entry"),
        ("models: [deepseek-v4-pro]\nbudgets: [1GiB]\nlengths: [0]", r"lengths\[0\]: got 0"),
        ("models: [deepseek-v4-pro]\nbudgets: [1GiB]\nlengths: [true]", r"lengths\[0\]: got True"),
        ("models: [deepseek-v4-pro]\nbudgets: [1GiB]\nbackends: [cuda]", r"backends\[0\]: got 'cuda'"),
        ("models: [deepseek-v4-pro]\nbudgets: [1GiB]\nsize: 3", "size: got 3, need no such field"),
        ("models: &a [*a]\nbudgets: [1GiB]", "models"),
        ("models: !!python/object/apply:os.getcwd []\nbudgets: [1GiB]", "need a YAML mapping"),
        (f"models: [deepseek-v4-pro]\nbudgets: [1GiB]\nlengths: {list(range(1, 1200))}\n"
         f"max_in_flight_tokens: {list(range(1, 1200))}", "1,437,601 points"),
    ],
)  # fmt: skip
def test_a_wrong_grid_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_grid(path)
    assert main(["sweep", str(path), "-o", str(tmp_path / "o.parquet")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("kvslab: ") and err.count("\n") == 1


def test_other_faults(grid: Path, tmp_path: Path) -> None:
    points = read_grid(grid)[:1]
    started: list[int] = []
    with pytest.raises(InputError, match="runner: got 'slurm'"):
        run_sweep(points, tmp_path / "a.parquet", runner="slurm", on_progress=started.append)
    assert not started, "a wrong option is refused before anything is reported"
    with pytest.raises(InputError, match="no such option for runner loky"):
        run_sweep(points, tmp_path / "a.parquet", address="tcp://localhost:1")
    with pytest.raises(InputError, match="jobs: got 0"):
        run_sweep(points, tmp_path / "a.parquet", num_jobs=0)
    with pytest.raises(InputError, match="No such file"):
        read_grid(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="need a Parquet file of a sweep"):
        run_sweep(points, grid)
    other = tmp_path / "other.parquet"
    pd.DataFrame({"a": [1]}).to_parquet(other)
    with pytest.raises(InputError, match="need the columns of a sweep"):
        run_sweep(points, other)
    with pytest.raises(InputError, match="need a file that can be written"):
        run_sweep(points, tmp_path / "none" / "a.parquet", runner="sequential", num_jobs=1)


def test_command(grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "o.parquet"
    assert main(["sweep", str(grid), "-o", str(output), "--runner", "sequential", "--jobs", "1"]) == 0
    captured = capsys.readouterr()
    assert "16 points in" in captured.out and "8 without a plan" in captured.out
    assert "16/16" in captured.err
    assert len(pd.read_parquet(output)) == 16
