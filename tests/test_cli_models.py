"""Guards the command line's way to the other models: options that are dropped silently still print a plan."""

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from kvslab import plots
from kvslab.cli import main
from kvslab.models import OTHER_PRESETS, PRESETS
from kvslab.tables import models_table
from model_cases import DATA

EAGLE = str(DATA / "configs" / "eagle-llama-3.1-8b.json")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize("model", [*PRESETS, *OTHER_PRESETS])
def test_compare_works_for_each(capsys: pytest.CaptureFixture[str], model: str) -> None:
    rows = run_json(capsys, "compare", model, "--budget", "40GiB", "--max-model-len", "8192")["plans"]
    packed = [row for row in rows if row["rows"].endswith(", packed")]
    assert len(packed) == (0 if model in PRESETS else 3)
    assert {row["slab"] for row in rows} == {"padded", "bucketed", "overlay", "standard", "fitted"}
    steady = {row["slab"]: row["max_concurrency"]["steady"] for row in rows if not row["refused"]}
    assert steady["fitted"] >= steady["overlay"], "a searched plan is never worse"
    assert all(row["max_concurrency"]["steady"] > 1 for row in rows if not row["refused"])
    code, out, _ = run(capsys, "compare", model, "--budget", "40GiB", "--packed")
    assert code == 0 and ", packed" not in out


@pytest.mark.parametrize(
    ("options", "stride"),
    [
        ((), 16 * 32 * 4096),
        (("--tensor-parallel", "2"), 16 * 32 * 2048),
        (("--kv-cache-dtype", "fp8"), 16 * 32 * 2048),
        (("--block-size", "32"), 32 * 32 * 4096),
        (("--draft", EAGLE), 16 * 33 * 4096),
        (("--tensor-parallel", "16", "--kv-cache-dtype", "nvfp4"), 16 * 32 * 144),
    ],
)
def test_every_option_arrives(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: tuple[str, ...], stride: int
) -> None:
    model = ("llama-3.1-8b", *options)
    assert run_json(capsys, "plan", *model, "--budget", "20GiB")["block_stride"] == stride
    rows = run_json(capsys, "compare", *model, "--budget", "20GiB")["plans"]
    assert {row["block_stride"] for row in rows if row["slab"] != "fitted"} == {stride}
    layers = run_json(capsys, "layers", *model)["layers"]
    assert sum(layer["block_size"] * layer["row_bytes"] for layer in layers) == stride
    code, _, err = run(capsys, "draw", *model, "-o", str(tmp_path / "slab.svg"))
    assert (code, err) == (0, "")


def test_windows_can_keep_everything(capsys: pytest.CaptureFixture[str]) -> None:
    off = ("gpt-oss-20b", "--disable-hybrid-kv-cache-manager")
    plan = run_json(capsys, "plan", *off, "--budget", "20GiB")
    assert len(plan["groups"]) == 1 and "keep every row" in plan["notes"][0]
    code, out, _ = run(capsys, "layers", *off)
    assert code == 0 and "note: hybrid manager off: 12 layers" in out


def test_notes_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "plan", "qwen3-next-80b", "--budget", "20GiB")
    assert code == 0 and "note           attention block raised from 16 to 544 tokens in 12 layers" in out


def test_stages(capsys: pytest.CaptureFixture[str]) -> None:
    model = ("plan", "qwen3-coder-30b", "--pipeline-parallel", "16,32")
    plan = run_json(capsys, *model, "--budget", "3.18GiB,10GiB")
    assert [stage["num_layers"] for stage in plan["stages"]] == [16, 32]
    assert [stage["blocks_alone"] for stage in plan["stages"]] == [6512, 10240]
    assert plan["num_blocks"] == 6512 == plan["stages"][1]["num_blocks"]
    assert plan["max_concurrency"]["block_sum"] == pytest.approx(6512 / 16384)
    code, out, _ = run(capsys, *model, "--budget", "10GiB")
    assert code == 0 and "10,240 on every stage, the smallest pool" in out
    code, out, _ = run(capsys, "plan", "gemma-3-27b", "--pipeline-parallel", "4", "--budget", "10GiB")
    assert code == 0 and "4 pipeline stages" in out and "one request    131,072 tokens" in out


def test_explain_reads_another_models_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The lines of vllm issue 19996; without the drafter nothing gives its token count."""
    log = tmp_path / "log"
    log.write_text(
        "INFO 06-23 14:21:48 [gpu_worker.py:232] Available KV cache memory: 51.63 GiB\n"
        "INFO 06-23 14:21:48 [kv_cache_utils.py:716] GPU KV cache size: 410,128 tokens\n"
        "INFO 06-23 14:21:48 [x.py:720] Maximum concurrency for 131,072 tokens per request: 3.13x\n",
        encoding="utf-8",
    )
    code, out, _ = run(capsys, "explain", str(log), "--model", "llama-3.1-8b", "--draft", EAGLE)
    assert code == 0 and "nothing here gives it" not in out
    code, out, _ = run(capsys, "explain", str(log), "--model", "llama-3.1-8b")
    assert code == 0 and "nothing here gives it" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("llama-3.1-8b", "--tensor-parallel", "3"), "num_attention_heads: got 32, need a multiple of"),
        (("llama-3.1-8b", "--tensor-parallel", "0"), "tensor_parallel: got 0, need an integer from 1"),
        (("llama-3.1-8b", "--kv-cache-dtype", "int3"), "kv_cache_dtype: got 'int3', need one of auto,"),
        (("llama-3.1-8b", "--pipeline-parallel", "two"), "pipeline_parallel: got 'two', need a number"),
        (("llama-3.1-8b", "--pipeline-parallel", "16,17"), "pipeline_parallel: got (16, 17), need sizes"),
        (("llama-3.1-8b", "--pipeline-parallel", "33"), "pipeline_parallel: got 33, need at most 32"),
        (("llama-3.1-8b", "--backend", "flashmla"), "backend: got 'flashmla', need no such option for"),
        (("deepseek-v4-pro", "--block-size", "64"), "block_size: got 64, need no such option for model type"),
        (("llama-3.1-8b", "--draft", "nothing"), "model: got 'nothing', need deepseek-v4-pro"),
    ],
)
def test_faults_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = run(capsys, "plan", *arguments, "--budget", "20GiB")
    assert (code, out) == (2, "")
    assert message in err and err.startswith("kvslab: ") and err.count("\n") == 1


def test_a_layer_file_settles_its_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    run(capsys, "layers", "gpt-oss-20b", "-o", str(path))
    code, _, err = run(capsys, "plan", str(path), "--budget", "1GiB", "--tensor-parallel", "2")
    assert code == 2 and "tensor_parallel: got 2, need no such option for a layer file" in err
    code, _, err = run(capsys, "plan", str(path), "--budget", "1GiB", "--mtp", "1")
    assert code == 2 and "mtp: got 1, need no such option for a layer file" in err
    plan = run_json(capsys, "plan", str(path), "--draft", EAGLE, "--budget", "1GiB")
    assert "draft.model.layers.0.self_attn.attn" in plan["offsets"]


def test_the_table_and_its_figure() -> None:
    mpl.use("Agg")
    frame = models_table()
    assert list(frame["model"]) == [*PRESETS, *OTHER_PRESETS]
    rows = {row["model"]: row for row in frame.to_dict("records")}
    # By hand: 52 windows in groups of 9 and 8, 10 full layers; 65 blocks of each window, 512 full.
    assert rows["gemma-3-27b"]["padding_percent"] == round(100 * (1 - (512 * 10 + 65 * 52) / (902 * 10)), 2)
    for name in ("llama-3.1-8b", "gpt-oss-20b", "llama-4-scout", "deepseek-v3"):
        assert rows[name]["padding_percent"] == rows[name]["bound_percent"] == 0
        assert rows[name]["overlay_change_percent"] == rows[name]["standard_change_percent"] == 0
    for name in PRESETS:
        assert 0 < rows[name]["overlay_change_percent"] <= rows[name]["bound_percent"]
    longer = models_table(131_072).set_index("model")["padding_percent"]
    assert (longer <= frame.set_index("model")["padding_percent"]).all()
    ax = plots.models_figure(frame)
    figure = ax.get_figure(root=True)
    assert figure is not None
    left, right = figure.axes
    assert len(left.patches) == len(frame) == len(right.patches)
    texts = [text.get_text() for text in right.texts]
    gains = frame[["overlay_change_percent", "fitted_change_percent"]].max(axis=1)
    assert "+7.8 %, fitted +15.9 %" in texts
    assert 0 < texts.count("nothing to gain") == (gains < 0.1).sum() < len(frame)
    assert left.get_xlim()[0] == right.get_xlim()[0] == 0


def test_fit_serves_as_compare_does(capsys: pytest.CaptureFixture[str]) -> None:
    served = ["gemma-3-27b", "--budget", "20GiB", "--tensor-parallel", "2", "--kv-cache-dtype", "fp8"]
    length = ["--max-model-len", "8192", "--json"]
    assert main(["compare", *served, *length]) == 0
    rows = {row["slab"]: row for row in json.loads(capsys.readouterr().out)["plans"]}
    assert main(["fit", *served, *length]) == 0
    fitted = json.loads(capsys.readouterr().out)
    assert fitted["block_stride"] == rows["fitted"]["block_stride"]
    assert fitted["max_concurrency"]["steady"] == rows["fitted"]["max_concurrency"]["steady"]
    assert main(["fit", "gemma-3-27b", "--budget", "20GiB", "--tensor-parallel", "0", *length]) == 2
    assert capsys.readouterr().err.count("\n") == 1
