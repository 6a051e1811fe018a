"""Guards every file that the project writes: a run that is killed must not leave half a table behind.

Each writer runs again and again in a forked process that is killed: before the k-th call
that changes a file, for every k until the writer comes through, and by the kernel in the
midst of the write itself, once half of the bytes are on the disk.  Then the target holds
the old file or the new one, byte for byte.
"""

import ast
import io
import json
import os
import re
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

import kvslab
from kvslab import generation_named, load_layers
from kvslab.book.notebook import main as resolve_notebooks
from kvslab.cli import main
from kvslab.files import write_atomically
from kvslab.plots import save_figure
from kvslab.results import export_results, package
from kvslab.results.records import write_record
from kvslab.simulate import Request, Simulation, replay_all
from kvslab.sweep import grid_points, run_sweep

SOURCE = Path(kvslab.__file__).parent
REPOSITORY = Path(__file__).parent.parent
BENCHMARKS, RESULTS = REPOSITORY / "benchmarks", REPOSITORY / "results"

# --- a process that is killed at a chosen moment ------------------------------------------

# Calls that change a file or a directory, by name: of `os`, of a stream, or `open` itself.
CHANGES = {
    *("open", "mkdir", "replace", "rename", "link", "symlink", "unlink", "remove", "rmdir"),
    *("chmod", "fchmod", "truncate", "ftruncate", "write", "pwrite", "writelines", "fsync", "fdatasync"),
    *("flush", "close", "__exit__", "sendfile", "copy_file_range"),
}
RENAMES = {"replace", "rename", "link"}
# What Python reports before it changes the file system; until the first, nothing can be half.
FIRST_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate", "os.chmod"}
FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def _kill_at(moment: int) -> None:
    """From now on this process is killed at this moment, from 0.

    A moment is before a call that changes a file, or after one that renames it.
    """
    seen, is_counting = 0, False

    def profile(_frame: FrameType, event: str, called: Any) -> None:
        nonlocal seen
        name = getattr(called, "__name__", "")
        if name not in CHANGES or not (event == "c_call" or (event == "c_return" and name in RENAMES)):
            return
        owner = getattr(called, "__self__", None)
        is_system = getattr(called, "__module__", None) in ("posix", "io", "_io")
        if not is_system and not isinstance(getattr(owner, "buffer", owner), io.FileIO | io.BufferedWriter):
            return  # a stream in memory
        seen += 1
        if seen > moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal is_counting, seen
        opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & FOR_WRITING
        if not is_counting and (opens or event in FIRST_CHANGES):
            is_counting, seen = True, 1
            if moment == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            sys.setprofile(profile)

    sys.addaudithook(audit)


def run_and_kill(
    write: Callable[[], object], *, moment: int | None = None, most_bytes: int | None = None
) -> bool:
    """Run a writer in a forked process that is killed; says whether it came through instead.

    Args:
        write: The writer.
        moment: Kill at this moment, see `_kill_at`.
        most_bytes: Kill, by the kernel's own limit, as soon as a file grows beyond so many bytes.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of a fork beside threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            sys.stdout = sys.stderr = io.StringIO()  # pytest's own are files
            if most_bytes is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
            if moment is not None:
                _kill_at(moment)
            write()
            sys.setprofile(None)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXFSZ)
        return False
    assert os.WEXITSTATUS(status) == 0, "the writer failed by itself"
    return True


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory but the temporary ones, which a kill may leave."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            found[path.relative_to(directory).as_posix()] = path.read_bytes()
    return found


def strays(directory: Path) -> list[Path]:
    """The temporary files that a kill left."""
    return [path for path in directory.rglob(".*") if path.is_file()]


def put_back(directory: Path, files: dict[str, bytes]) -> None:
    """Make a directory hold these files and nothing else."""
    for path in sorted(directory.rglob("*"), reverse=True):
        if path.is_file():
            path.unlink()
    for name, data in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)


# --- every writer -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A writer of the project.

    Args:
        where: The functions that write, as `file:function` of the package.
        write: Writes into a directory; version 0 and 1 write other bytes to the same names.
        starts_empty: Whether the walk is done once more where nothing was before.
        every: Kill at every so many moments only; of many files each is written alike.
        whole: Says of a file's bytes that they are a whole state between the old and the new one.
    """

    where: tuple[str, ...]
    write: Callable[[Path, int], object]
    starts_empty: bool = True
    every: int = 1
    whole: Callable[[bytes], bool] = lambda data: False


def _command(text: str) -> Callable[[Path, int], None]:
    """A command line; `DIR` is the directory, `a|b` is `a` in version 0 and `b` in version 1."""

    def run(directory: Path, version: int) -> None:
        words = [word.split("|")[version if "|" in word else 0] for word in text.split()]
        assert main([word.replace("DIR", str(directory)) for word in words]) == 0

    return run


def _figure(directory: Path, version: int) -> None:
    with mpl.rc_context({"svg.hashsalt": "the same"}):
        _, ax = plt.subplots(figsize=(1, 1))
        ax.set_axis_off()
        ax.plot([0, 1], [version, 1])
        save_figure(ax, directory / "figure.svg")


def _replay(directory: Path, version: int) -> None:
    requests = [Request(arrival_step=0, prompt_tokens=500, output_tokens=3 + 2 * version)] * 2
    groups = generation_named("overlay").lay_out(load_layers("gpt-oss-20b")).groups
    replay_all(
        {"a": lambda: Simulation(groups, 200, max_num_batched_tokens=1_024)},
        lambda: requests,
        key={"version": version},
        checkpoint=directory / f"{version}.json",
        steps_between_checkpoints=2,
    )


def _is_checkpoint(data: bytes) -> bool:
    return set(json.loads(data)) == {"format", "key", "done", "current"}


def _sweep(directory: Path, version: int) -> None:
    budgets = ["1GiB", "2GiB"][: 1 + version]
    points = grid_points({"models": ["gpt-oss-20b"], "budgets": budgets, "lengths": [8_192]})
    run_sweep(points, directory / "rows.parquet", runner="sequential", num_jobs=1)


def _record(directory: Path, version: int) -> None:
    row = {"reader": "config", "inputs": version, "device": "a", "date": "2026-07-18"}
    write_record(directory, "fuzz_inputs", [row] * 50)


def _results(directory: Path, version: int) -> None:
    texts = {f"{name}.csv": f"{name}\n" + f"{version}\n" * 5_000 for name in ("a", "b")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(package, "rendered_results", lambda _directory: texts)
        package.write_results(directory)


def _export(directory: Path, version: int) -> None:
    source = directory.parent / f"source {version}"
    if not source.is_dir():
        _make_source(source, version)
    export_results(source, directory)


def _make_source(source: Path, version: int) -> None:
    source.mkdir()
    described = json.loads((RESULTS / "datapackage.json").read_text(encoding="utf-8"))
    (table,) = (entry for entry in described["resources"] if entry["name"] == "strides")
    (source / "datapackage.json").write_text(json.dumps({"resources": [table]}), encoding="utf-8")
    lines = (RESULTS / "strides.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (source / "strides.csv").write_text("".join(lines[: len(lines) - 1 + version]), encoding="utf-8")


def _notebook(directory: Path, version: int) -> None:
    """Version 0 is what another program left; version 1 is what the book's own step makes of it."""
    path = directory / "chapter.ipynb"
    if version == 0:
        cells = [{"cell_type": "markdown", "id": "a", "metadata": {}, "source": "text " * 2_000}]
        path.write_text(json.dumps({"cells": cells, "metadata": {}}), encoding="utf-8")
    else:
        assert resolve_notebooks([str(path)]) == 0


WRITERS = {
    "text": Writer(
        where=("files.py:write_atomically",),
        write=lambda directory, version: write_atomically(directory / "t.txt", f"{version}" * 100_000),
    ),
    "figure": Writer(where=("plots/style.py:save_figure",), write=_figure),
    "layer file": Writer(
        where=("cli/planning.py:layers",),
        write=_command("layers gpt-oss-20b --kv-cache-dtype auto|fp8 --output DIR/l.json"),
        starts_empty=False,
    ),
    "plan file": Writer(
        where=("cli/fitting.py:fit_command",),
        write=_command("fit llama-3.1-8b --budget 8GiB|9GiB --max-model-len 8192 --export DIR/p.json"),
        starts_empty=False,
    ),
    "simulated rows": Writer(
        where=("cli/fitting.py:_append",),
        write=_command(
            "simulate llama-3.1-8b --budget 60GiB --num-requests 1 --seed 0|1 --slab overlay --quiet"
            " --append DIR/s.csv"
        ),
    ),
    "checkpoint": Writer(where=("simulate/trace.py:replay_all",), write=_replay, whole=_is_checkpoint),
    "sweep": Writer(where=("sweep.py:_write",), write=_sweep),
    "record": Writer(where=("results/records.py:write_record", "results/records.py:seal"), write=_record),
    "results": Writer(where=("results/package.py:write_results",), write=_results),
    "export": Writer(
        where=("results/exports.py:export_results",), write=_export, starts_empty=False, every=4
    ),
    "notebook": Writer(where=("book/notebook.py:main",), write=_notebook, starts_empty=False),
}


def _check(writer: Writer, directory: Path, old: dict[str, bytes], new: dict[str, bytes], what: str) -> None:
    for name, data in contents(directory).items():
        known = [files[name] for files in (old, new) if name in files]
        assert data in known or writer.whole(data), f"{what}: {name} holds half of something"
    assert old.keys() <= contents(directory).keys(), f"{what}: a file is gone"
    for path in strays(directory):  # what it ends in makes no glob of results find it
        assert re.fullmatch(r"\.[^.]+\..+\.[a-z0-9_]{8}", path.name), path


@pytest.mark.parametrize("name", WRITERS)
def test_a_killed_writer(name: str, tmp_path: Path) -> None:
    writer = WRITERS[name]
    tmp_path /= "target"
    tmp_path.mkdir()
    writer.write(tmp_path, 0)
    old = contents(tmp_path)
    writer.write(tmp_path, 1)
    new = contents(tmp_path)
    assert old and new != old
    for before in (old, {}) if writer.starts_empty else (old,):
        after = new
        if not before:
            put_back(tmp_path, {})
            writer.write(tmp_path, 1)
            after = contents(tmp_path)
        killed, moment, left_old, left_new = 0, 0, 0, 0
        while True:
            put_back(tmp_path, before)
            is_through = run_and_kill(lambda: writer.write(tmp_path, 1), moment=moment)
            _check(writer, tmp_path, before, after, f"moment {moment}")
            if is_through:
                assert contents(tmp_path) == after
                break
            killed += 1
            left_old += contents(tmp_path) == before
            left_new += contents(tmp_path) == after
            moment += writer.every
            assert moment < 2_000, "a writer without an end"
        assert killed >= 9 and left_old * writer.every >= 8, "kills before the change"
        assert left_new or writer.every > 1, "a kill after it"
    changed = [len(data) for file, data in new.items() if data != old.get(file)]
    for most_bytes in sorted({0, min(changed) // 2, max(changed) - 1}):
        put_back(tmp_path, old)
        assert not run_and_kill(lambda: writer.write(tmp_path, 1), most_bytes=most_bytes)
        _check(writer, tmp_path, old, new, f"{most_bytes} bytes")


def test_the_kill_hits_half_of_the_data(tmp_path: Path) -> None:
    """The test of the test: a plain write is caught with half a file."""
    path = tmp_path / "t.txt"
    path.write_text("old", encoding="utf-8")
    assert not run_and_kill(lambda: path.write_text("new" * 10_000, encoding="utf-8"), most_bytes=9_000)
    assert path.stat().st_size == 9_000
    halves = set()
    for moment in range(40):
        path.write_text("old", encoding="utf-8")
        if run_and_kill(lambda: path.write_text("new", encoding="utf-8"), moment=moment):
            break
        halves.add(path.read_text(encoding="utf-8"))
    assert halves >= {"old", ""}, "killed before it opened the file, and after it emptied it"


# --- nobody else writes -------------------------------------------------------------------


def _calls(path: Path) -> Iterator[tuple[str, str, ast.Call]]:
    """Function around it, name of what is called, and the call."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        # The outermost function that the call stands in: a helper inside it is part of it.
        around = [f for f in functions if f.lineno <= node.lineno <= (f.end_lineno or f.lineno)]
        yield min(around, key=lambda f: f.lineno).name if around else "", name, node


def test_every_writer_is_killed_here() -> None:
    found = {
        f"{path.relative_to(SOURCE).as_posix()}:{function}"
        for path in sorted(SOURCE.rglob("*.py"))
        for function, name, _ in _calls(path)
        if name == "write_atomically"
    }
    tested = {where for writer in WRITERS.values() for where in writer.where}
    assert found == tested - {"files.py:write_atomically"}


OPENS_FOR_WRITING = re.compile(r"[rbt]*[wax+][rwaxbt+]*")
WRITES = {
    *("write_text", "write_bytes", "savefig", "to_csv", "to_parquet", "to_json", "to_latex", "tofile"),
    *("dump", "savetxt", "savez", "save", "copyfile", "copy2", "rename", "replace", "move"),
}


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.name)
def test_a_benchmark_writes_whole_files_only(path: Path) -> None:
    for _, name, call in _calls(path):
        literals = [
            a.value for a in (*call.args, *(k.value for k in call.keywords)) if isinstance(a, ast.Constant)
        ]
        if name == "open":
            modes = [text for text in literals if isinstance(text, str) and OPENS_FOR_WRITING.fullmatch(text)]
            assert not modes, f"{path.name}:{call.lineno} opens a file to write"
        is_text = name == "replace" and len(call.args) == 2  # of a string
        assert name not in WRITES or is_text, f"{path.name}:{call.lineno} writes by {name}"
