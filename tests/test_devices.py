"""Guards the page that shows several GPUs: a device left out, or a number under the wrong device's name."""

import subprocess
from pathlib import Path

import pandas as pd
from matplotlib.patches import Rectangle

from kvslab.plots import devices_figure
from kvslab.tables import devices_table

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
