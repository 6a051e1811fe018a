"""What the book's chapters share: figure settings, numbers for the text, numbered tables, parameters.

A chapter is read in two places.  In the book its text takes numbers and tables from
its code by name, and the code cells that compute them are not shown.  In a notebook
the same cells show the tables and a list of the numbers, and `resolve` writes both
into the text of a notebook that has run::

    jupytext --to ipynb --output out.ipynb chapter.md
    papermill out.ipynb out.ipynb -p backend flashmla
    python -m kvslab.book out.ipynb

Chapters run in Jupyter, which brings IPython; nothing else in the package needs it.
"""

import ast
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd

from kvslab.capacity import Load, max_concurrency
from kvslab.errors import BudgetError, InputError, PlanError
from kvslab.files import read_json, write_atomically
from kvslab.intmath import parse_bytes
from kvslab.plan import Plan
from kvslab.plots import use_style
from kvslab.tables.serving import published_budget_bytes

PUBLISHED = "published"
"""The budget that a chapter has where nobody asks for another: the published one of its backend."""

_GLUED = "application/papermill.record/"  # myst-nb takes outputs of such types out of a cell, by name
_SHOWN = " in a notebook"
_TITLES = {"deepseek-v4-pro": "DeepSeek-V4-Pro", "deepseek-v4-flash": "DeepSeek-V4-Flash"}


def begin() -> None:
    """Set up a chapter: vector figures in the project's style, a user's mistake in one line."""
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    set_matplotlib_formats("svg")
    use_style()
    # IPython asks an exception for its traceback; a fault of the input needs none.
    PlanError._render_traceback_ = lambda error: [f"{type(error).__name__}: {error}"]  # type: ignore[attr-defined]


def numbers(**values: int | float | str | Fraction) -> None:
    """Make values known to the chapter's text: `` {glue:text}`name:,` `` prints one.

    Fractions become floats here, where they are printed.
    """
    plain = {name: float(value) if isinstance(value, Fraction) else value for name, value in values.items()}
    for name, value in plain.items():
        _glue(name, value)
    _show("-".join(plain), " · ".join(f"{name} {_cell(value)}" for name, value in plain.items()))


def table(frame: pd.DataFrame, name: str, caption: str) -> None:
    """Make a numbered table known as `name`; `` {glue:md}`name` `` places it.

    Numbers stand right with thousands separators, missing ones as a dash; text that
    is a number as printed elsewhere keeps its digits.  Underscores in column names
    become spaces.
    """
    from IPython.display import Markdown

    columns = {
        str(label).replace("_", " "): [_cell(value) for value in frame[label]] for label in frame.columns
    }
    aligned = ["right" if all(map(_is_number, cells)) else "left" for cells in columns.values()]
    body = pd.DataFrame(columns).to_markdown(index=False, disable_numparse=True, colalign=aligned)
    _glue(name, Markdown(f":::{{table}} {caption}\n:name: {name}\n:align: left\n\n{body}\n:::"))
    _show(name, f"*{caption}*\n\n{body}")


def _glue(name: str, value: object) -> None:
    """Hand a value to the book by name, as `myst_nb.glue(..., display=False)` does without Sphinx."""
    from IPython.core.formatters import format_display_data
    from IPython.display import display

    data, about = format_display_data(value)
    about["scrapbook"] = {"name": name, "mime_prefix": _GLUED}
    display({_GLUED + kind: text for kind, text in data.items()}, raw=True, metadata=about)


def _show(name: str, text: str) -> None:
    """Show Markdown in a notebook; the book takes it for a glued value that nobody places."""
    from IPython.display import display

    about = {"scrapbook": {"name": name + _SHOWN, "mime_prefix": _GLUED}}
    display({"text/markdown": text, "text/plain": text}, raw=True, metadata=about)


def _cell(value: object) -> str:
    if value is None or value is pd.NA or value != value:  # a missing number
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _is_number(cell: str) -> bool:
    return cell == "-" or re.fullmatch(r"[+-]?[\d,]+(\.\d+)?( %)?", cell) is not None


def records(name: str) -> pd.DataFrame | None:
    """The records of a benchmark, `results/<name>.csv`; None where no device has measured it yet.

    Where every device has a file of its own, `results/<name>/*.csv`, they come as one frame.
    The folder is looked for from here upward, then beside the library's own source.

    Raises:
        InputError: There is no such folder: the library was installed without its repository.
    """
    folder = _results(name)
    path = folder / f"{name}.csv"
    files = [path] if path.is_file() else sorted((folder / name).glob("*.csv"))
    return pd.concat([pd.read_csv(file) for file in files], ignore_index=True) if files else None


def _results(name: str) -> Path:
    here = Path.cwd()
    for directory in (here, *here.parents, *Path(__file__).resolve().parents):
        if (directory / "results" / "datapackage.json").is_file():
            return directory / "results"
    need = f"results/ of a checkout of kvslab here or further up; no package has them (looked from {here})"
    raise InputError(f"records {name}", "no folder of measured tables", need)


def renamed(frame: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """The columns of a frame that a reader should see, under readable names, in that order."""
    return frame[list(columns)].rename(columns=dict(columns))


def one_of(field: str, value: object, allowed: Collection[object]) -> None:
    """Check a chapter's parameter against what its tables hold.

    Raises:
        InputError: The value is none of them.

    >>> one_of("model", "deepseek-v5", ("deepseek-v4-pro", "deepseek-v4-flash"))
    Traceback (most recent call last):
    kvslab.errors.InputError: model: got 'deepseek-v5', need one of deepseek-v4-pro, deepseek-v4-flash
    """
    if value not in allowed:
        raise InputError(field, value, f"one of {', '.join(map(str, allowed))}")


def budget_bytes(budget: str | int, backend: str) -> int:
    """A chapter's budget in bytes: the published one of its backend, a number, or text with a unit.

    Raises:
        InputError: It is none of these.

    >>> budget_bytes("published", "flashmla"), budget_bytes("40GiB", "flashmla")
    (28017560448, 42949672960)
    """
    return published_budget_bytes(backend) if budget == PUBLISHED else parse_bytes(budget)


def check_room(plan: Plan, load: Load) -> None:
    """Check that a plan holds more than one batch in flight, so that requests can be compared.

    Raises:
        BudgetError: It does not.

    >>> from kvslab import generation_named, load_layers
    >>> slab = generation_named("overlay").lay_out(load_layers("deepseek-v4-pro"))
    >>> check_room(Plan(slab=slab, budget_bytes=2**30), Load.of(1_048_576, max_in_flight_tokens=8192))
    Traceback (most recent call last):
    kvslab.errors.BudgetError: budget: got 1,073,741,824 bytes, need more than 8,192 tokens in flight take
    """
    if not max_concurrency(plan.slab.groups, plan.num_blocks, load, "steady"):
        tokens = load.max_in_flight_tokens
        raise BudgetError(
            f"budget: got {plan.budget_bytes:,} bytes, need more than {tokens:,} tokens in flight take"
        )


def model_title(model: str) -> str:
    """How text and captions call a preset; a file keeps its path.

    >>> model_title("deepseek-v4-flash")
    'DeepSeek-V4-Flash'
    """
    return _TITLES.get(model, model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a chapter, as its `parameters` cell states it.

    Args:
        name: What Papermill calls it.
        default: Its value in the book.
        meaning: The comment beside it.
    """

    name: str
    default: object
    meaning: str


def parameters_of(chapter: str) -> tuple[Parameter, ...]:
    r"""The parameters that a chapter takes, from its Markdown source.

    >>> text = "```{code-cell} python\n:tags: [parameters]\n\nseed = 0  # of the noise\n```"
    >>> parameters_of(text)
    (Parameter(name='seed', default=0, meaning='of the noise'),)
    """
    cell = re.search(r"^```\{code-cell\}.*\n:tags: \[parameters\b.*\n((?s:.*?))^```$", chapter, re.MULTILINE)
    return _assigned(cell[1]) if cell else ()


def _assigned(source: str) -> tuple[Parameter, ...]:
    lines = source.splitlines()
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            meaning = lines[node.lineno - 1].partition("  # ")[2]
            found.append(
                Parameter(name=node.targets[0].id, default=ast.literal_eval(node.value), meaning=meaning)
            )
    return tuple(found)


_ROLE = re.compile(r"\{(glue:text|numref|term|cite|download)\}`([^`]+)`")
_PLACE = re.compile(r"^```\{glue:md\} (\S+)\n(?::.*\n)*```$", re.MULTILINE)
_CHAPTER_LINK = re.compile(r"\]\((?:chapters/)?(\d\d-[\w-]+)\.md\)")


def resolve(notebook: dict[str, Any]) -> None:
    """Write what a chapter computed into its text: a notebook that reads well without the book.

    Numbers and tables take the places that name them, references become words, figures
    get their captions, and what the book does not show is folded.  Where parameters were
    given, the first lines say so.  A second time changes nothing.

    Args:
        notebook: An executed notebook, parsed; changed in place.
    """
    about = notebook["metadata"]
    if about.get("kvslab") == "resolved":
        return
    about["kvslab"] = "resolved"
    text = _Text.of(notebook["cells"])
    cells: list[dict[str, Any]] = []
    for cell in notebook["cells"]:
        cells.append(cell)
        if cell["cell_type"] == "markdown":
            cell["source"] = text.plain("".join(cell["source"]))
            continue
        _fold(cell)
        figure = _figure(cell)
        if figure:
            label = text.labels[figure["name"]]
            cells.append(_markdown(f"*{label}.* {figure['caption'].strip()}", figure["name"]))
    given = _given(cells)
    if given:
        note = f"*Run with {given}. Words that no code computes were written for the defaults.*"
        cells.insert(1, _markdown(note, "run-with"))
    notebook["cells"] = cells


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """What the text of a notebook may name: glued values, tables as shown, numbers of both and of figures."""

    values: Mapping[str, str]
    tables: Mapping[str, str]
    labels: Mapping[str, str]

    @classmethod
    def of(cls, cells: Sequence[Mapping[str, Any]]) -> "_Text":
        values: dict[str, str] = {}
        tables: dict[str, str] = {}
        labels: dict[str, str] = {}
        for cell in cells:
            if cell["cell_type"] == "markdown":
                placed = _PLACE.findall("".join(cell["source"]))
                start = 1 + sum(label.startswith("Table") for label in labels.values())
                labels |= {name: f"Table {number}" for number, name in enumerate(placed, start)}
                continue
            figure = _figure(cell)
            if figure:
                number = 1 + sum(label.startswith("Figure") for label in labels.values())
                labels[figure["name"]] = f"Figure {number}"
            for name, data in _glued(cell):
                if name.endswith(_SHOWN):
                    tables[name.removesuffix(_SHOWN)] = "".join(data["text/markdown"])
                elif _GLUED + "text/plain" in data:
                    values[name] = "".join(data[_GLUED + "text/plain"])
        return cls(values=values, tables=tables, labels=labels)

    def plain(self, text: str) -> str:
        """Markdown that any notebook shows."""
        text = _PLACE.sub(self._table, text)
        return _CHAPTER_LINK.sub(r"](\1.ipynb)", _ROLE.sub(self._role, text))

    def _table(self, place: re.Match[str]) -> str:
        name = place[1]
        return f"**{self.labels[name]}.** {self.tables[name]}" if name in self.tables else place[0]

    def _role(self, role: re.Match[str]) -> str:
        kind, body = role.groups()
        match kind:
            case "glue:text":
                name, _, form = body.partition(":")
                return _printed(self.values[name], form) if name in self.values else role[0]
            case "numref":
                return self.labels.get(body, body)
            case "cite":
                return f"[{body.replace(',', ', ')}]"
            case _:
                return body.partition("<")[0].strip()


def _printed(value: str, form: str) -> str:
    """A glued value as the book prints it: `value` is its `repr`, `form` a format specification."""
    try:
        return format(ast.literal_eval(value), form)
    except (SyntaxError, ValueError):
        return value


def _glued(cell: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for output in cell.get("outputs", ()):
        about = output.get("metadata", {}).get("scrapbook")
        if about:
            yield about["name"], output["data"]


def _figure(cell: Mapping[str, Any]) -> Mapping[str, str]:
    """Name and caption of the figure that a cell has drawn."""
    if not any("image/svg+xml" in output.get("data", ()) for output in cell.get("outputs", ())):
        return {}
    found: Mapping[str, str] = cell["metadata"].get("mystnb", {}).get("figure", {})
    return found


def _tags(cell: Mapping[str, Any]) -> set[str]:
    return set(cell["metadata"].get("tags", ()))


def _fold(cell: dict[str, Any]) -> None:
    """Fold what the book hides; the parameters stay open, they are what a reader changes."""
    tags = _tags(cell)
    if tags & {"remove-cell", "hide-input"} and "parameters" not in tags:
        cell["metadata"]["jupyter"] = {"source_hidden": True, "outputs_hidden": "remove-cell" in tags}


def _given(cells: Sequence[Mapping[str, Any]]) -> str:
    """The parameters that this run was given and the chapter takes, in words."""
    taken: dict[str, object] = {}
    given: dict[str, object] = {}
    for cell in cells:
        for tag, found in (("parameters", taken), ("injected-parameters", given)):
            if tag in _tags(cell):
                found |= {item.name: item.default for item in _assigned("".join(cell["source"]))}
    return ", ".join(f"`{name} = {value!r}`" for name, value in given.items() if name in taken)


def _markdown(source: str, name: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}


def main(paths: Sequence[str]) -> int:
    """Resolve executed notebooks in place; `python -m kvslab.book NOTEBOOK...`."""
    for path in map(Path, paths):
        try:
            notebook = read_json(path)
            if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
                raise InputError(str(path), "JSON without cells", "a notebook")
        except PlanError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        resolve(notebook)
        write_atomically(path, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
