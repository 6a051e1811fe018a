"""What the book's chapters share: figure settings, numbers for the text, numbered tables.

The book is built by Jupyter Book, which brings IPython and myst-nb; nothing else in
the package needs them.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pandas as pd

from kvslab.plots import use_style


def begin() -> None:
    """Set up a chapter: vector figures in the project's style."""
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    set_matplotlib_formats("svg")
    use_style()


def numbers(**values: int | float | str | Fraction) -> None:
    """Make values known to the chapter's text: `` {glue:text}`name:,` `` prints one.

    Fractions become floats here, where they are printed.
    """
    from myst_nb import glue

    for name, value in values.items():
        glue(name, float(value) if isinstance(value, Fraction) else value, display=False)


def table(frame: pd.DataFrame, name: str, caption: str) -> None:
    """Make a numbered table known as `name`; `` {glue:md}`name` `` places it.

    Numbers stand right with thousands separators, missing ones as a dash; text that
    is a number as printed elsewhere keeps its digits.  Underscores in column names
    become spaces.
    """
    from IPython.display import Markdown
    from myst_nb import glue

    columns = {
        str(label).replace("_", " "): [_cell(value) for value in frame[label]] for label in frame.columns
    }
    aligned = ["right" if all(map(_is_number, cells)) else "left" for cells in columns.values()]
    body = pd.DataFrame(columns).to_markdown(index=False, disable_numparse=True, colalign=aligned)
    text = f":::{{table}} {caption}\n:name: {name}\n:align: left\n\n{body}\n:::"
    glue(name, Markdown(text), display=False)


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

    Chapters run inside the repository: `results/` is looked for from here upward.
    """
    for directory in (Path.cwd(), *Path.cwd().parents):
        path = directory / "results" / f"{name}.csv"
        if path.is_file():
            return pd.read_csv(path)
    return None


def renamed(frame: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """The columns of a frame that a reader should see, under readable names, in that order."""
    return frame[list(columns)].rename(columns=dict(columns))
