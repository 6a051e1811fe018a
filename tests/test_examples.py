"""Guards what a new user types first: a command on a page that no longer runs as printed."""

import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvslab.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "book").glob("*.md")),
    *sorted((ROOT / "book" / "chapters").glob("*.md")),
    *sorted((ROOT / "book" / "reference").glob("*.md")),
]

# What a page prints and this file does not run: it needs the repository, a shell or a cluster.
ELSEWHERE = {
    "bash",
    "cd",
    "cp",
    "conda",
    "git",
    "jupytext",
    "make",
    "papermill",
    "pip",
    "pytest",
    "python",
    "ruff",
    "sbatch",
    "source",
}
# These read and write the repository: test_results and test_sweep run them.
ELSEWHERE_KVSLAB = ("kvslab results", "kvslab sweep")
PLACEHOLDERS = {"kvslab explain LOG --model deepseek-v4-pro", "kvslab fit --mix"}

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SAVE = re.compile(r"[Ss]ave (?:this|it) as `(\S+)`")
_GOES_ON = re.compile(r"([|\\])[ \t]*(?:#.*)?\n")
_INLINE = re.compile(r"`(kvslab [a-z][^`]*)`")


def blocks(text: str, *languages: str) -> list[str]:
    return [body for language, body in _FENCE.findall(text) if language in languages]


def commands(text: str) -> Iterator[str]:
    """Every command of a page, a pipe with what feeds it, and those inside a sentence."""
    for block in blocks(text, "shell", "bash", "sh", "console"):
        joined = _GOES_ON.sub(lambda end: "| " if end[1] == "|" else " ", block)
        lines = [line.strip() for line in joined.splitlines()]
        yield from (line for line in lines if line and not line.startswith("#"))
    yield from _INLINE.findall(_FENCE.sub("", text))


def found() -> list[tuple[str, str]]:
    return [
        (path.relative_to(ROOT).as_posix(), command)
        for path in PAGES
        for command in commands(path.read_text(encoding="utf-8"))
    ]


def runs_here(command: str) -> bool:
    head = shlex.split(command, comments=True)[0]
    return head not in ELSEWHERE and not command.startswith(ELSEWHERE_KVSLAB) and command not in PLACEHOLDERS


def save_files(text: str, folder: Path) -> None:
    """Save each JSON block under the name that the page gives it."""
    names, bodies = _SAVE.findall(text), blocks(text, "json")
    assert len(names) == len(bodies), "every JSON block is saved under a name"
    for name, body in zip(names, bodies, strict=True):
        (folder / name).write_text(body, encoding="utf-8")


@pytest.mark.parametrize(("page", "command"), [case for case in found() if runs_here(case[1])])
def test_a_printed_command_runs(
    page: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    save_files((ROOT / page).read_text(encoding="utf-8"), tmp_path)
    fed, _, last = command.rpartition("| ")
    words = shlex.split(last, comments=True)
    assert words[0] == "kvslab", "run it, or name it in ELSEWHERE"
    if fed:
        echo, *text = shlex.split(fed, comments=True)
        assert echo == "echo"
        monkeypatch.setattr("sys.stdin", io.StringIO(" ".join(text) + "\n"))
    code = main(words[1:])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    assert captured.out
    for option in ("-o", "--output"):
        if option in words:
            assert (tmp_path / words[words.index(option) + 1]).stat().st_size


def test_every_command_is_accounted_for() -> None:
    pages = {page for page, command in found() if runs_here(command)}
    assert {
        "README.md",
        "book/index.md",
        "book/chapters/15-models.md",
        "book/reference/layer-file.md",
    } <= pages
    printed = {command for _, command in found()}
    assert printed >= PLACEHOLDERS, "a placeholder that no page prints"


def test_python_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks((ROOT / "README.md").read_text(encoding="utf-8"), "python")
    exec(compile(block, "README.md", "exec"), {})
    printed = [int(word) for word in capsys.readouterr().out.split()]
    command = (
        "plan deepseek-v4-pro --backend flashmla --indexer mxfp4 --slab overlay --budget 28017682284 --json"
    )
    assert main(command.split()) == 0
    plan = json.loads(capsys.readouterr().out)
    assert printed == [plan["block_stride"], plan["num_blocks"], plan["offsets"]["model.layers.2.attn"]]


def test_the_layer_file_tutorial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What its prose says of Otter, command by command."""
    text = (ROOT / "book" / "reference" / "layer-file.md").read_text(encoding="utf-8")
    save_files(text, tmp_path)
    otter = tmp_path / "otter.json"
    plan = ("plan", str(otter), "--slab", "standard", "--budget", "1GiB")
    assert main([*plan, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["block_stride"] == 32_768
    assert sorted(group["block_size"] for group in answer["groups"]) == [16, 32, 32, 32]
    assert [len(group["layers"]) for group in answer["groups"]] == [1, 1, 1, 1]
    wider = otter.read_text(encoding="utf-8").replace('"row_bytes": 1024', '"row_bytes": 1536')
    otter.write_text(wider, encoding="utf-8")
    assert main(plan) == 2
    refusal = capsys.readouterr().err
    assert refusal.count("\n") == 1
    assert all(part in refusal for part in ("layers.0.window", "layers.3.full", "24,576", "32,768")), refusal
    assert main([*plan, "--packed"]) == 0
    otter.write_text(wider.replace('"block_size"', '"block_sise"', 1), encoding="utf-8")
    assert main(plan) == 2, "a field that nobody reads is refused"
    assert "block_sise" in capsys.readouterr().err
