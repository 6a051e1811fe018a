"""Guards what a benchmark leaves: a record changed by hand, or one that hides another, is no measurement."""

from pathlib import Path

import pytest

from kvslab.cli import main
from kvslab.errors import InputError
from kvslab.results import read_record, verify_results, write_record, write_results
from kvslab.results.records import SUMS, broken_records, machine, read_sums

# Made up: only the form of two devices' records matters here.
POINT = {"operation": "gather", "contender": "kvslab triton", "layout": "slab", "rows": 4096, "status": "ok"}
FACTS = {"driver": "580.1", "software": "torch 2.13.0", "commit": "0123456789ab", "date": "2026-11-29"}


def record(device: str, us: float) -> list[dict[str, object]]:
    return [POINT | {"us": us} | FACTS | {"device": device}]


def test_two_devices_lie_side_by_side(tmp_path: Path) -> None:
    first = write_record(tmp_path, "mxfp4_gpu", record("NVIDIA H200, sm_90", 7.5))
    second = write_record(tmp_path, "mxfp4_gpu", record("NVIDIA GB200, sm_100", 3.5))
    assert first == tmp_path / "mxfp4_gpu" / "nvidia-h200-sm-90.csv"
    assert second == tmp_path / "mxfp4_gpu" / "nvidia-gb200-sm-100.csv"
    frame = read_record(tmp_path, "mxfp4_gpu")
    assert frame is not None
    assert dict(zip(frame["device"], frame["us"], strict=True)) == {
        "NVIDIA H200, sm_90": 7.5,
        "NVIDIA GB200, sm_100": 3.5,
    }
    write_record(tmp_path, "mxfp4_gpu", record("NVIDIA H200, sm_90", 7.25))
    again = read_record(tmp_path, "mxfp4_gpu")
    assert again is not None and sorted(again["us"]) == [3.5, 7.25], "a rerun replaces its own device only"
    assert broken_records(tmp_path) == {}
    write_results(tmp_path)
    assert verify_results(tmp_path) == {}


def test_a_record_changed_by_hand_is_noticed(tmp_path: Path) -> None:
    path = write_record(tmp_path, "mxfp4_gpu", record("NVIDIA H200, sm_90", 7.5))
    path.write_text(path.read_text(encoding="utf-8").replace("7.5", "5.7"), encoding="utf-8")
    (fault,) = broken_records(tmp_path).items()
    assert fault == (
        "mxfp4_gpu/nvidia-h200-sm-90.csv",
        "is not the file that its benchmark wrote (another checksum)",
    )
    path.unlink()
    assert broken_records(tmp_path) == {"mxfp4_gpu/nvidia-h200-sm-90.csv": "is missing"}


def test_a_record_without_a_checksum_is_noticed(tmp_path: Path) -> None:
    write_record(tmp_path, "mxfp4_gpu", record("NVIDIA H200, sm_90", 7.5))
    (tmp_path / SUMS).unlink()
    assert list(broken_records(tmp_path).values()) == [f"has no checksum in {SUMS}"]
    (tmp_path / SUMS).write_text("no checksum\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"measured\.sha256:1: got 'no checksum', need a SHA-256"):
        read_sums(tmp_path)


def test_a_record_that_its_schema_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mxfp4_gpu\.speed: got 3, need one of operation, contender"):
        write_record(tmp_path, "mxfp4_gpu", [{"speed": 3, "device": "a"}])
    with pytest.raises(InputError, match="mxfp4_gpu: got 'no rows', need at least one"):
        write_record(tmp_path, "mxfp4_gpu", [])
    with pytest.raises(InputError, match="table: got 'no_such', need one of"):
        write_record(tmp_path, "no_such", record("a", 1.0))
    assert not list(tmp_path.iterdir())


def test_the_stamp_names_device_driver_versions_commit_and_day() -> None:
    on_cpu = machine(("numpy",))
    assert set(on_cpu) == {"device", "driver", "software", "commit", "date"}
    assert "cores" in on_cpu["device"] and on_cpu["driver"] == "" and "numpy" in on_cpu["software"]
    assert machine((), gpu="NVIDIA H200, sm_90")["device"] == "NVIDIA H200, sm_90"


def test_rows_that_a_replay_appends_get_a_new_checksum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"timestamp": 0, "input_length": 9000, "output_length": 5, "hash_ids": []}\n' * 3, "utf-8"
    )
    table = tmp_path / "trace_simulation.csv"
    (tmp_path / SUMS).write_text("", encoding="utf-8")
    command = [
        "simulate",
        "deepseek-v4-flash",
        "--budget",
        "16GiB",
        "--trace",
        str(trace),
        "--slab",
        "overlay",
    ]
    assert main([*command, "--append", str(table)]) == 0
    first = read_sums(tmp_path)["trace_simulation.csv"]
    assert main([*command, "--slab", "padded", "--backend", "flashmla", "--append", str(table)]) == 0
    capsys.readouterr()
    assert read_sums(tmp_path)["trace_simulation.csv"] != first
    assert broken_records(tmp_path) == {}
