"""A chapter that ran as a notebook, made readable without the book."""

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvslab.book.chapter import GLUED, SHOWN
from kvslab.book.parameters import assigned
from kvslab.errors import InputError, PlanError
from kvslab.files import read_json, write_atomically

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
                if name.endswith(SHOWN):
                    tables[name.removesuffix(SHOWN)] = "".join(data["text/markdown"])
                elif GLUED + "text/plain" in data:
                    values[name] = "".join(data[GLUED + "text/plain"])
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
                found |= {item.name: item.default for item in assigned("".join(cell["source"]))}
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
