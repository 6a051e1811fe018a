"""What a chapter's code hands to its text: figure settings, numbers, numbered tables, records."""

import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pandas as pd

from kvslab.errors import InputError, PlanError
from kvslab.plots import use_style
from kvslab.results import read_record

GLUED = "application/papermill.record/"
"""How myst-nb marks a glued value: it takes outputs of such types out of a cell, by name."""

SHOWN = " in a notebook"
"""How the name of what only a notebook shows ends."""


def begin() -> None:
    """Set up a chapter: vector figures in the project's style, a user's mistake in one line."""
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    set_matplotlib_formats("svg")
    use_style()
    # IPython asks an exception for its traceback; a fault of the input needs none.
    PlanError._render_traceback_ = lambda error: [f"{type(error).__name__}: {error}"]  # type: ignore[attr-defined]


def numbers(**values: int | float | str | Fraction) -> None:
    """Make values known to the chapter's text: the role `glue:text` prints one, in the format that it gives.

    Fractions become floats here, where they are printed.
    """
    plain = {name: float(value) if isinstance(value, Fraction) else value for name, value in values.items()}
    for name, value in plain.items():
        _glue(name, value)
    _show("-".join(plain), " · ".join(f"{name} {_cell(value)}" for name, value in plain.items()))


def table(frame: pd.DataFrame, name: str, caption: str) -> None:
    """Make a numbered table known as `name`; the directive `glue:md` places it.

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
    about["scrapbook"] = {"name": name, "mime_prefix": GLUED}
    display({GLUED + kind: text for kind, text in data.items()}, raw=True, metadata=about)


def _show(name: str, text: str) -> None:
    """Show Markdown in a notebook; the book takes it for a glued value that nobody places."""
    from IPython.display import display

    about = {"scrapbook": {"name": name + SHOWN, "mime_prefix": GLUED}}
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
    """A table that is kept as it was measured; None where no device has measured it yet.

    `results/` is looked for from here upward, then beside the library's own source; see
    `kvslab.results.read_record`.

    Raises:
        InputError: There is no such folder (the library was installed without its
            repository), or no such table.
    """
    return read_record(_results(name), name)


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
