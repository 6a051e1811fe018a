"""Guards the page that shows several GPUs: a device left out, or a number under the wrong device's name."""

import multiprocessing
import os
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.patches import Rectangle

from kvslab.plots import devices_figure
from kvslab.results import write_record
from kvslab.tables import devices_table
from notebooks import executed

ROOT = Path(__file__).parent.parent
H200, GB200 = "NVIDIA H200, sm_90", "NVIDIA GB200, sm_100"


def made_up_records() -> pd.DataFrame:
    """Two devices; the numbers are made up and appear nowhere but here."""
    rows = []
    for device, slow in ((H200, 2.0), (GB200, 1.0)):
        for operation in ("gather", "logits"):
            for layout in ("contiguous", "slab"):
                for count in (4_096, 65_536):
                    point = {"operation": operation, "layout": layout, "rows": count, "device": device}
                    point |= {"queries": 1 if operation == "logits" else None}
                    for name, us in (("kvslab triton a", 3.0), ("kvslab triton b", 2.0), ("torch", 8.0)):
                        share = 0.5 / slow * (2.0 / us)
                        rows.append(
                            point
                            | {"contender": name, "status": "ok", "us": us * slow * count, "of_copy": share}
                        )
                    rows.append(point | {"contender": "kvslab triton c", "status": "wrong bytes"})
    rows.append(
        {"operation": "copy", "device": H200, "contender": "torch", "status": "ok", "us": 1.0, "of_copy": 1.0}
    )
    return pd.DataFrame(rows)


def test_every_point_of_every_device_is_there_once() -> None:
    table = devices_table(made_up_records())
    assert len(table) == 2 * 2 * 2 * 2
    assert not table.duplicated(["operation", "layout", "rows", "queries", "device"]).any()
    assert set(table["device"]) == {H200, GB200}
    assert set(table["kernel"]) == {"triton b"}, "the fastest kernel whose bytes were right"
    point = table[(table["operation"] == "logits") & (table["layout"] == "slab") & (table["rows"] == 4_096)]
    assert dict(zip(point["device"], point["us"], strict=True)) == {H200: 16_384.0, GB200: 8_192.0}
    assert dict(zip(point["device"], point["of_copy_percent"], strict=True)) == {H200: 25.0, GB200: 50.0}
    assert set(point["other"]) == {"torch"} and set(point["over_other"]) == {4.0}


def test_the_figure_has_a_bar_for_every_device_and_operation() -> None:
    axes = devices_figure(devices_table(made_up_records()))
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_width() > 0]
    assert sorted(round(bar.get_width()) for bar in bars) == [25, 25, 50, 50]
    legend = axes.get_legend()
    assert legend is not None and {text.get_text() for text in legend.get_texts()} == {H200, GB200}
    assert {label.get_text() for label in axes.get_yticklabels()} == {"gather", "logits"}


def test_one_device_alone() -> None:
    records = made_up_records()
    axes = devices_figure(devices_table(records[records["device"] == H200]))
    assert len([p for p in axes.patches if isinstance(p, Rectangle) and p.get_width() > 0]) == 2


def test_the_node_script_refuses_in_one_line() -> None:
    script = ROOT / "benchmarks" / "gpu_node.sbatch"
    wrong = subprocess.run(["bash", script, "--fast"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr == "gpu_node: argument: got '--fast', need --rehearse or nothing\n"


def test_the_chapter_shows_every_device(tmp_path: Path) -> None:
    """Two made-up records beside the committed ones; without any, the page says so."""
    shutil.copytree(ROOT / "results", tmp_path / "results")
    shutil.rmtree(tmp_path / "results" / "mxfp4_gpu", ignore_errors=True)
    chapter = tmp_path / "book" / "chapters" / "13-speed.md"
    chapter.parent.mkdir(parents=True)
    shutil.copy(ROOT / "book" / "chapters" / "13-speed.md", chapter)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        without = pool.submit(executed, chapter).result()
        for device, rows in made_up_records().groupby("device"):
            points = rows.assign(date="2026-11-29", software="made up")
            points["queries"] = points["queries"].astype("Int64")
            records = [
                {name: value for name, value in row.items() if not pd.isna(value)}
                for row in points.to_dict("records")
            ]
            assert str(device) in (H200, GB200)
            write_record(tmp_path / "results", "mxfp4_gpu", records)
        both = pool.submit(executed, chapter).result()
    assert (without["error"], both["error"]) == ("", "")
    assert "Not measured on this device" in shown(without) and "NVIDIA" not in shown(without)
    assert H200 in shown(both) and GB200 in shown(both) and "Not measured" not in shown(both)
    assert shown(both).count("<svg") == shown(without).count("<svg") + 1


def shown(run: dict[str, Any]) -> str:
    """Everything that the cells of a chapter put out."""
    outputs = [output for cell in run["notebook"].cells for output in cell.get("outputs", ())]
    return "\n".join(str(value) for output in outputs for value in output["data"].values())


def test_the_node_script_rehearses() -> None:
    """All of its steps but the GPU's own, so that it does not fail first on somebody's cluster."""
    script = ROOT / "benchmarks" / "gpu_node.sbatch"
    environment = os.environ | {"PYTHON": sys.executable, "SLURM_SUBMIT_DIR": str(ROOT)}
    done = subprocess.run(
        ["bash", script, "--rehearse"], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "logits_fp8" in done.stdout and done.stdout.endswith("rehearsed: nothing was written\n")
    lines = [line.split() for line in done.stdout.splitlines()]
    ours = [line for line in lines if line[1:3] == ["kvslab", "cpu"]]
    assert len(ours) >= 8 and all(line[-1] == "ok" for line in ours), "every kernel's bytes were right"
