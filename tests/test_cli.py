"""Guards the command line end to end: keys that scripts read, exit codes, and one line for every fault."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvslab.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_plan_json(capsys: pytest.CaptureFixture[str]) -> None:
    plan = run_json(capsys, "plan", "deepseek-v4-pro", "--backend", "flashmla", "--budget", "28017682284")
    assert plan["block_stride"] == 1_315_008
    assert plan["num_blocks"] == 21_306
    assert [group["bytes"] for group in plan["groups"]] == [
        1_315_008,
        1_160_640,
        1_123_200,
        1_017_792,
        1_244_160,
    ]
    assert len(plan["offsets"]) == 243 == sum(len(group["layers"]) for group in plan["groups"])
    assert plan["offsets"]["model.layers.1.attn"] == 1728
    assert plan["padding_bytes"] == sum(group["padding_bytes"] for group in plan["groups"])
    assert sorted(name for tensor in plan["tensors"] for name in tensor["layers"]) == sorted(plan["offsets"])


def test_plan_options(capsys: pytest.CaptureFixture[str]) -> None:
    model = ("deepseek-v4-flash", "--backend", "flashinfer-bf16", "--indexer", "fp8", "--mtp", "1")
    slab = ("--slab", "bucketed", "--budget", "1GiB", "--num-blocks-override", "1000")
    plan = run_json(capsys, "plan", *model, *slab)
    assert (plan["block_stride"], plan["num_blocks"]) == (1_665_536, 1000)
    assert plan["remaining_bytes"] == 2**30 - 1000 * 1_665_536
    assert "model.layers.43.attn.swa_cache" in plan["offsets"]


def test_plan_text(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "plan", "deepseek-v4-pro", "--budget", "26.459GiB")
    assert code == 0
    assert "1,228,800 bytes" in out and "23,120 in 28,410,134,921 bytes" in out


def test_compare(capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_json(capsys, "compare", "deepseek-v4-pro", "--budget", "28410134921")["plans"]
    found = {
        (row["slab"], row["rows"]): (row["block_stride"], row["num_blocks"], row["change_percent"])
        for row in rows
    }
    assert found["bucketed", "fp8"] == (1_308_672, 21_709, 0.0)
    assert found["overlay", "mxfp4"] == (1_228_800, 23_120, 6.5)
    assert len(found) == 10
    steady = {(row["slab"], row["rows"]): row["max_concurrency"]["steady"] for row in rows}
    assert steady["fitted", "mxfp4"] > 1.05 * steady["overlay", "mxfp4"]
    code, out, _ = run(capsys, "compare", "deepseek-v4-pro", "--budget", "28410134921")
    assert code == 0 and "+6.50 %" in out


def test_layer_file_round_trip(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    code, out, _ = run(capsys, "layers", "deepseek-v4-pro", "-o", str(path))
    assert code == 0 and "243 layers" in out
    assert json.loads(path.read_text(encoding="utf-8")) == run_json(capsys, "layers", "deepseek-v4-pro")
    from_file = run_json(capsys, "plan", str(path), "--budget", "26.459GiB")
    from_preset = run_json(capsys, "plan", "deepseek-v4-pro", "--budget", "26.459GiB")
    assert from_file["offsets"] == from_preset["offsets"]
    code, out, _ = run(capsys, "layers", str(path))
    assert code == 0 and "indexer keys" in out


def test_compare_prints_a_refusal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    window = {"name": "w", "kind": "sliding_window_mla", "block_size": 4, "row_bytes": 9, "sliding_window": 8}
    latent = {"name": "m", "kind": "mla_attention", "block_size": 4, "row_bytes": 8}
    path.write_text(json.dumps({"layers": [latent, window]}), encoding="utf-8")
    code, out, _ = run(capsys, "compare", str(path), "--budget", "1MB")
    assert code == 0
    assert "bucketed refuses as given: layer 'w' has a page of 36 bytes" in out


def test_reproduce(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "reproduce")
    assert found["differs"] == 0 and found["matches"] == len(found["numbers"]) >= 40
    code, out, _ = run(capsys, "reproduce")
    assert code == 0 and f"{found['matches']} of {found['matches']} match" in out


def test_reproduce_fails_on_a_mismatch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from kvslab.cli import records
    from kvslab.published import STATED, reproduce

    wrong = reproduce([replace(STATED[0], value="133")])
    monkeypatch.setattr(records, "reproduce", lambda: wrong)
    code, out, _ = run(capsys, "reproduce")
    assert code == 1 and "differs" in out


@pytest.mark.parametrize("suffix", ["svg", "pdf", "png"])
def test_draw(capsys: pytest.CaptureFixture[str], tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"slab.{suffix}"
    code, out, err = run(
        capsys, "draw", "deepseek-v4-flash", "--slab", "bucketed", "--slab", "overlay", "-o", str(path)
    )
    assert (code, err) == (0, "") and "bucketed, overlay drawn" in out
    start = path.read_bytes()[:300]
    assert {"svg": b"<svg", "pdf": b"%PDF", "png": b"\x89PNG"}[suffix] in start


def test_results(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(capsys, "results", "write", "--dir", str(tmp_path))[0] == 0
    assert run(capsys, "results", "verify", "--dir", str(tmp_path))[:2] == (0, "every table holds\n")
    (tmp_path / "pages.csv").write_text("half", encoding="utf-8")
    code, out, _ = run(capsys, "results", "verify", "--dir", str(tmp_path))
    assert code == 1 and "pages.csv: differs" in out


PLAN = ("plan", "deepseek-v4-pro", "--budget", "1GiB")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan",), "Missing argument 'MODEL'"),
        (("plan", "deepseek-v4-pro"), "Missing option '--budget'"),
        (("plan", "nothing", "--budget", "1GiB"), "model: got 'nothing'"),
        (("plan", "nothing.json", "--budget", "1GiB"), "No such file or directory"),
        (
            ("plan", "deepseek-v4-pro", "--budget", "1MiB"),
            "budget: got 1,048,576 bytes, need one block: 1,228,800",
        ),
        (("plan", "deepseek-v4-pro", "--budget=-3"), "budget: got '-3'"),
        (("plan", "deepseek-v4-pro", "--budget", "lots"), "budget: got 'lots'"),
        ((*PLAN, "--backend", "xformers"), "backend: got 'xformers', need one of flashinfer"),
        ((*PLAN, "--indexer", "fp4"), "indexer: got 'fp4', need one of fp8, mxfp4"),
        ((*PLAN, "--slab", "fitting"), "slab: got 'fitting', need one of padded, bucketed, overlay"),
        ((*PLAN, "--mtp", "2"), "mtp: got 2, need 0 to 1"),
        ((*PLAN, "--mtp", "one"), "'--mtp'"),
        ((*PLAN, "--num-blocks-override", "0"), "num_blocks_override: got 0"),
        (
            (
                *PLAN,
                "--frobnicate",
            ),
            "No such option",
        ),
        (("frobnicate",), "No such command"),
        (
            ("draw", "deepseek-v4-pro", "-o", "slab.bmp"),
            "output: got 'slab.bmp', need a file name that ends in",
        ),
        (("draw", "deepseek-v4-pro", "-o", "missing/slab.svg"), "No such file or directory"),
        (("layers", "deepseek-v4-pro", "-o", "missing/layers.json"), "No such file or directory"),
        (("results", "write", "--dir", "missing"), "results directory: got 'missing'"),
    ],
)
def test_faults_are_one_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("kvslab: ") and err.count("\n") == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_layer_files_state_their_own_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    run(capsys, "layers", "deepseek-v4-pro", "-o", str(path))
    code, _, err = run(capsys, "plan", str(path), "--budget", "1GiB", "--backend", "flashmla")
    assert code == 2 and "backend: got 'flashmla', need no such option for a layer file" in err


def test_the_installed_command() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from kvslab.cli import main; sys.exit(main())", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("kvslab 0.")


def test_plan_says_what_it_serves(capsys: pytest.CaptureFixture[str]) -> None:
    """The 0.27.0 answers of the vector gb200-flashinfer-mxfp4, and the null block by hand."""
    options = ("--budget", "28410134921", "--max-model-len", "1048576", "--max-in-flight-tokens", "8192")
    plan = run_json(capsys, "plan", "deepseek-v4-pro", *options)
    assert plan["blocks_per_request"] == [4096, 131, 131, 1041, 2051]
    assert plan["admission_bytes"] == {"tuple": 8_868_480_000, "stride": 9_154_560_000}
    assert plan["max_concurrency"]["block_sum"] == pytest.approx(3.1033557046979867)
    assert plan["max_concurrency"]["steady"] == pytest.approx((23_119 - 128 - 128 - 1024 - 2048) / 4122)
    assert plan["auto_fit_max_model_len"] == {"engine": 1_048_576, "exact": 1_048_576}
    rows = run_json(capsys, "compare", "deepseek-v4-pro", *options, "--dcp", "2")["plans"]
    assert rows[0]["dcp"] == 2 and rows[0]["blocks_per_request"][0] == 2048


def test_a_layer_file_needs_a_length(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    run(capsys, "layers", "deepseek-v4-pro", "-o", str(path))
    assert run_json(capsys, "plan", str(path), "--budget", "1GiB")["max_concurrency"] is None
    told = run_json(capsys, "plan", str(path), "--budget", "1GiB", "--max-model-len", "100")
    assert told["max_concurrency"]["steady"] >= 0


def test_tables_stay_whole_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    code, out, _ = run(capsys, "compare", "deepseek-v4-pro", "--budget", "28410134921")
    assert code == 0
    for whole in ("padded", "bucketed", "overlay", "standard", "mxfp4", "1,228,800", "23,120", "+6.50 %"):
        assert whole in out


def test_names_are_no_markup(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "[bold]m.json"
    run(capsys, "layers", "deepseek-v4-pro", "-o", str(path))
    code, out, _ = run(capsys, "layers", str(path))
    assert code == 0 and "[bold]m.json" in out
