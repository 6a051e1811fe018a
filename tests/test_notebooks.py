"""Guards chapters as notebooks: one that ignores a parameter would show the default's numbers for it.

Every chapter runs with other parameters than the book's, and what it computes is held
against the library; with a value that nobody knows, and must end in one line; and two go
through the commands that the book prints.
"""

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvslab import Load, Plan, PlanError, book, max_concurrency
from kvslab.book import chapter
from kvslab.book.notebook import main as resolve_notebooks
from kvslab.capacity import block_price_bytes
from kvslab.models import load_layers
from kvslab.published import STATED, Setup, slab_of
from kvslab.slab import SlabLayout
from kvslab.tables.models import models_table
from notebooks import executed, notebook_of

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
CHAPTERS = sorted((ROOT / "book" / "chapters").glob("*.md"))
OTHERS = [ROOT / "book" / name for name in ("index.md", "reference/layer-file.md", "reference/rerun.md")]
PAGES = [*CHAPTERS, *OTHERS]
TAKES = {path.stem: book.parameters_of(path.read_text(encoding="utf-8")) for path in CHAPTERS}
NAMES = {parameter.name for parameters in TAKES.values() for parameter in parameters}
TAKES_NONE = {"13-speed"}  # it shows what a device measured

OTHER: dict[str, object] = {
    "model": "deepseek-v4-flash",
    "backend": "flashmla",
    "budget": "20GiB",
    "max_model_len": 131_072,
    "max_in_flight_tokens": 4_096,
    "seed": 7,
    "num_keys": 16_384,
    "top_k": 1_024,
    "kernel_backend": "reference",
}
UNKNOWN: dict[str, object] = {
    "model": "deepseek-v5",
    "backend": "tritonmla",
    "budget": "a lot",
    "max_model_len": 0,
    "max_in_flight_tokens": "many",
    "seed": "x",
    "num_keys": 3,
    "top_k": 3,
    "kernel_backend": "abacus",
}
# Captions that name a model or backend whatever the parameters: what was recorded, or is of both.
FIXED = ("tab-trace", "tab-cases", "tab-headline", "tab-fit")

Given = dict[str, Any]


def slab(given: Given, indexer: str, name: str) -> SlabLayout:
    return slab_of(Setup(model=given["model"], backend=given["backend"], indexer=indexer, slab=name))


def stride(given: Given, indexer: str = "mxfp4", name: str = "overlay") -> int:
    return slab(given, indexer, name).block_stride


def keys_bytes(given: Given, indexer: str) -> int:
    layers = load_layers(given["model"], backend=given["backend"], indexer=indexer)
    return sum(layer.spec.page_bytes for layer in layers if layer.name.endswith("indexer.k_cache"))


def load(given: Given) -> Load:
    return Load.of(given["max_model_len"], max_in_flight_tokens=given["max_in_flight_tokens"])


def requests(plan: Plan, given: Given, formula: Any) -> float:
    return float(max_concurrency(plan.slab.groups, plan.num_blocks, load(given), formula))


def plan(given: Given, indexer: str = "mxfp4", name: str = "overlay") -> Plan:
    budget_bytes = book.budget_bytes(given["budget"], given["backend"])
    return Plan(slab=slab(given, indexer, name), budget_bytes=budget_bytes)


def price_change(given: Given) -> float:
    placed = slab(given, "mxfp4", "overlay")
    price = block_price_bytes(placed.groups, placed.block_stride, "tuple")
    return round(100 * (1 - price / placed.block_stride), 2)


def stated(given: Given, when: str) -> int:
    return next(int(n.value) for n in STATED if n.id == f"{given['backend']}-blocks-{when}")


def recorded(given: Given, **where: object) -> pd.Series:
    frame = pd.read_csv(ROOT / "results" / "indexer_recall.csv")
    for column, value in (where | {"num_keys": given["num_keys"], "k": given["top_k"]}).items():
        frame = frame[frame[column] == value]
    return frame["recall"]


def gain(given: Given) -> float:
    frame = pd.read_csv(ROOT / "results" / "fit.csv")
    where = {
        "model": given["model"],
        "backend": given["backend"],
        "indexer": "mxfp4",
        "max_model_len_tokens": 1_048_576,
        "max_in_flight_tokens": 1,
        "block_sizes": "kernel-legal",
    }
    for column, value in where.items():
        frame = frame[frame[column] == value]
    return float(frame["gain_percent"].iloc[0])


def padding(given: Given) -> float:
    frame = models_table(
        given["max_model_len"],
        budget_bytes=book.budget_bytes(given["budget"], "flashinfer"),
        max_in_flight_tokens=given["max_in_flight_tokens"],
    )
    return float(frame.set_index("model").loc["gemma-3-27b", "padding_percent"])


def spread(given: Given) -> float:
    both = recorded(given, format="mxfp4 both", keys="gaussian", rotated=False)
    return float(both.max() - both.min())


# What a chapter must say of its parameters, computed from the library beside it.
EXPECTED: dict[str, dict[str, Callable[[Given], object]]] = {
    "01-anatomy": {"long_page": lambda g: max(slab(g, "mxfp4", "overlay").groups[0].page_bytes)},
    "02-indexer-key": {"saved": lambda g: keys_bytes(g, "fp8") - keys_bytes(g, "mxfp4")},
    "03-bucketed": {
        "stride": lambda g: stride(g, "fp8", "bucketed"),
        "padded_stride": lambda g: stride(g, "fp8", "padded"),
    },
    "04-overlay": {
        "old_stride": lambda g: stride(g, "fp8", "bucketed"),
        "new_stride": stride,
        "num_blocks": lambda g: plan(g).num_blocks,
    },
    "05-gb200": {
        "base_blocks": lambda g: stated(g, "before"),
        "stated_blocks": lambda g: stated(g, "after"),
    },
    "06-admission": {
        "length": lambda g: g["max_model_len"],
        "in_flight": lambda g: g["max_in_flight_tokens"],
        "stride": stride,
        "change": price_change,
    },
    "07-capacity": {
        "num_blocks": lambda g: plan(g).num_blocks,
        "steady": lambda g: requests(plan(g), g, "steady"),
        "logged": lambda g: requests(plan(g), g, "block_sum"),
    },
    "08-logs": {
        "log_blocks": lambda g: plan(g, "fp8", "bucketed").num_blocks,
        "log_steady": lambda g: requests(plan(g, "fp8", "bucketed"), g, "steady"),
    },
    "09-ownership": {
        "stride": stride,
        "latent_payload": lambda g: slab(g, "mxfp4", "overlay").groups[0].payload_bytes,
    },
    "10-layouts": {"overlay": stride, "block_major": lambda g: stride(g, "mxfp4", "standard")},
    "11-accuracy": {
        "keys4": lambda g: float(
            recorded(g, format="mxfp4 keys", keys="gaussian", rotated=False, rule="vllm").iloc[0]
        ),
        "top_k": lambda g: g["top_k"],
    },
    "12-rules": {"spread": spread},
    "14-limit": {"gain_1m": gain},
    "15-models": {"gemma": padding, "budget": lambda g: f"{book.budget_bytes(g['budget'], '') / 2**30:g}"},
}


def turns() -> list[tuple[str, str]]:
    """`(chapter, parameter)`: one or two of each chapter, so that all names have their turn."""
    used: Counter[str] = Counter()
    chosen = []
    for stem, parameters in TAKES.items():
        names = sorted((parameter.name for parameter in parameters), key=lambda name: used[name])
        for name in names[: 2 if stem in ("11-accuracy", "12-rules") else 1]:
            chosen.append((stem, name))
            used[name] += 1
    return chosen


def rerun(chapter: Path, out: Path, *parameters: str, pipe: bool = False) -> subprocess.CompletedProcess[str]:
    """The commands of the page on rerunning; or Jupytext and Papermill joined by a pipe."""
    environment = os.environ | {"JUPYTER_PREFER_ENV_PATH": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    convert = f'"{BIN}/jupytext" --quiet --to ipynb --output {"-" if pipe else out} {chapter}'
    run = f'"{BIN}/papermill" {"-" if pipe else out} {out} --no-progress-bar --cwd {chapter.parent}'
    command = (
        f"{convert} {'|' if pipe else '&&'} {run} {' '.join(parameters)}"
        f' && "{sys.executable}" -m kvslab.book {out}'
    )
    return subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[object, Future[Any]]]:
    """Everything that runs, two at a time, longest first."""
    folder = tmp_path_factory.mktemp("notebooks")
    overlay, admission = (path for path in CHAPTERS if path.stem in ("04-overlay", "06-admission"))
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        found: dict[object, Future[Any]] = {
            "good": pool.submit(rerun, overlay, folder / "good.ipynb", "-p", "backend", "flashmla"),
            "bad": pool.submit(
                rerun, admission, folder / "bad.ipynb", "-p", "model", "deepseek-v5", pipe=True
            ),
            "folder": Future(),
        }
        found["folder"].set_result(folder)
        for path in sorted(PAGES, key=lambda path: path.stem not in ("09-ownership", "14-limit")):
            given = {parameter.name: OTHER[parameter.name] for parameter in TAKES.get(path.stem, ())}
            found[path.stem] = pool.submit(executed, path, given)
        for stem, name in turns():
            path = next(path for path in CHAPTERS if path.stem == stem)
            found[stem, name] = pool.submit(executed, path, {name: UNKNOWN[name]})
        yield found


def glued(notebook: Any) -> dict[str, object]:
    values = {}
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            name = output["metadata"].get("scrapbook", {}).get("name")
            text = output["data"].get("application/papermill.record/text/plain")
            if name and text and not text.startswith("<"):
                values[name] = ast.literal_eval(text)
    return values


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_chapter_is_a_notebook(path: Path) -> None:
    notebook = notebook_of(path)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.metadata.kernelspec.language == "python", "Papermill asks for it"
    assert sum(cell.cell_type == "code" for cell in notebook.cells) <= 8
    assert notebook.cells[0].source.startswith("# "), "the title comes first"


def test_one_naming_scheme() -> None:
    assert {stem for stem, parameters in TAKES.items() if not parameters} == TAKES_NONE
    assert NAMES == OTHER.keys() == UNKNOWN.keys(), "a new parameter needs a value here"
    assert EXPECTED.keys() == TAKES.keys() - TAKES_NONE
    assert all(parameter.meaning for parameters in TAKES.values() for parameter in parameters)
    assert {name for _, name in turns()} == NAMES, "each name has its turn"


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_is_short(path: Path) -> None:
    """1,500 words: a chapter that grows past that has a second question in it."""
    text = path.read_text(encoding="utf-8").split("---\n", 2)[2]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert len(prose.split()) <= 1_500
    title = re.search(r"^# (.+)$", prose, flags=re.MULTILINE)
    assert title is not None and title[1].endswith("?"), "a chapter's title is a question"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_chapter_follows_its_parameters(path: Path, runs: dict[object, Future[Any]]) -> None:
    run = runs[path.stem].result()
    assert (run["error"], run["stderr"]) == ("", ""), "the book takes a warning for a failure"
    defaults = {parameter.name: parameter.default for parameter in TAKES.get(path.stem, ())}
    values = glued(run["notebook"])
    for name, of in EXPECTED.get(path.stem, {}).items():
        expected = of(defaults | OTHER)
        assert values[name] == expected, name
        assert expected != of(OTHER | defaults), f"{name} says nothing about the parameters"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_reader_sees_tables_figures_and_plain_text(path: Path, runs: dict[object, Future[Any]]) -> None:
    notebook = json.loads(json.dumps(runs[path.stem].result()["notebook"]))
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    source = path.read_text(encoding="utf-8")
    drawn = sum("image/svg+xml" in output["data"] for output in outputs)
    assert drawn == source.count("  figure:\n") or (drawn and path.stem in TAKES_NONE)
    shown = {
        output["metadata"]["scrapbook"]["name"].removesuffix(" in a notebook"): output["data"][
            "text/markdown"
        ]
        for output in outputs
        if "scrapbook" in output["metadata"] and "text/markdown" in output["data"]
    }
    placed = re.findall(r"^```\{glue:md\} (\S+)", source, re.MULTILINE)
    assert set(placed) <= shown.keys()
    if {"model", "backend"} <= {parameter.name for parameter in TAKES.get(path.stem, ())}:
        captions = [shown[name].splitlines()[0] for name in placed if name not in FIXED]
        assert not [text for text in captions if re.search(r"\bPro\b", text)], "a caption of other parameters"
    book.resolve(notebook)
    text = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    assert not re.findall(r"\{[a-z:]+\}`|^```\{", text, re.MULTILINE), "the book's own markup is left"
    assert all(f"**Table {number}.**" in text for number in range(1, len(placed) + 1))
    again = json.dumps(notebook)
    book.resolve(notebook)
    assert json.dumps(notebook) == again


@pytest.mark.parametrize(("stem", "name"), turns())
def test_an_unknown_value_ends_in_one_line(stem: str, name: str, runs: dict[object, Future[Any]]) -> None:
    error = runs[stem, name].result()["error"]
    assert error.count("\n") == 1 and error.startswith("InputError: ")
    assert repr(UNKNOWN[name]) in error


def test_the_printed_commands(runs: dict[object, Future[Any]]) -> None:
    good = runs["good"].result()
    assert good.returncode == 0, good.stderr
    notebook = json.loads((runs["folder"].result() / "good.ipynb").read_text(encoding="utf-8"))
    text = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    given = {"model": "deepseek-v4-pro", "backend": "flashmla"}
    assert f"{stride(given):,} bytes instead of {stride(given, 'fp8', 'bucketed'):,}" in text
    assert "*Run with `backend = 'flashmla'`." in text
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    assert sum("image/svg+xml" in output.get("data", ()) for output in outputs) == 2


def test_the_printed_commands_with_an_unknown_model(runs: dict[object, Future[Any]]) -> None:
    bad = runs["bad"].result()
    assert bad.returncode != 0
    assert (
        "InputError: model: got 'deepseek-v5', need one of deepseek-v4-pro, deepseek-v4-flash" in bad.stderr
    )


def test_records_without_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chapter in a folder of downloads, with the library installed from a wheel."""
    monkeypatch.chdir(tmp_path)
    frame = book.records("indexer_recall")
    assert frame is not None and len(frame), "beside the library's own source"
    monkeypatch.setattr(
        chapter, "__file__", str(tmp_path / "site-packages" / "kvslab" / "book" / "chapter.py")
    )
    with pytest.raises(PlanError, match="need results/ of a checkout of kvslab"):
        book.records("indexer_recall")


def test_records_of_several_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "results" / "mxfp4_gpu"
    folder.mkdir(parents=True)
    (tmp_path / "results" / "datapackage.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(folder)
    assert book.records("mxfp4_gpu") is None
    for device in ("a", "b"):
        (folder / f"{device}.csv").write_text(f"device,us\n{device},1\n", encoding="utf-8")
    frame = book.records("mxfp4_gpu")
    assert frame is not None and list(frame["device"]) == ["a", "b"]


def test_resolving_what_is_no_notebook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "layers.json"
    path.write_text('{"layers": []}', encoding="utf-8")
    assert resolve_notebooks([str(path)]) == 2
    assert capsys.readouterr().err == f"error: {path}: got 'JSON without cells', need a notebook\n"
