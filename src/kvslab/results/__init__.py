"""The tables under `results/`: what they are, how they are written, whether they still hold.

Every table is a CSV with a schema, units and sources in `datapackage.json` (a
Frictionless data package).  `write_results` computes them all again;
`stale_results` says which committed file differs from what the library computes.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from kvslab.errors import InputError
from kvslab.files import write_atomically
from kvslab.results.columns import COLUMNS
from kvslab.results.registry import KEPT_TABLES, REGENERATE, RESULT_TABLES, KeptTable, ResultTable
from kvslab.tables import gb200_table

__all__ = [
    "COLUMNS",
    "KEPT_TABLES",
    "REGENERATE",
    "RESULT_TABLES",
    "KeptTable",
    "ResultTable",
    "headline_table",
    "rendered_results",
    "stale_results",
    "write_results",
]

_VERBATIM = ("published", "derived", "difference", "budget_printed_gib")


def headline_table() -> pd.DataFrame:
    """The headline as a reader meets it: one row a backend, numbers grouped by thousands."""
    frame = gb200_table()
    return pd.DataFrame(
        {
            "backend": frame["backend"],
            "KV budget (GiB)": frame["budget_printed_gib"],
            "stride before (bytes)": frame["stride_before_bytes"].map("{:,}".format),
            "stride after (bytes)": frame["stride_after_bytes"].map("{:,}".format),
            "blocks before": frame["num_blocks_before"].map("{:,}".format),
            "blocks after": frame["num_blocks_after"].map("{:,}".format),
            "blocks gained": frame["num_blocks_change_percent"].map("{:+.2f} %".format),
        }
    )


def _latex(frame: pd.DataFrame) -> str:
    body = frame.map(lambda cell: str(cell).replace("%", r"\%"))
    return body.to_latex(index=False, column_format="ll" + "r" * (len(frame.columns) - 2))


def rendered_results() -> dict[str, str]:
    """The text of every file of `results/` but the kept ones, by file name."""
    return dict(_rendered())


@lru_cache(maxsize=1)
def _rendered() -> tuple[tuple[str, str], ...]:
    files: dict[str, str] = {}
    resources = []
    for table in RESULT_TABLES:
        frame = table.build()
        files[f"{table.name}.csv"] = frame.to_csv(index=False, lineterminator="\n")
        columns = [(name, _field_type(name, frame[name])) for name in frame.columns]
        resources.append(_resource(table, columns))
    resources += [_resource(kept, kept.fields) for kept in KEPT_TABLES]
    headline = headline_table()
    files["gb200_blocks.md"] = headline.to_markdown(index=False, disable_numparse=True) + "\n"
    files["gb200_blocks.tex"] = _latex(headline)
    package = {
        "name": "kvslab-results",
        "title": "kvslab: what one KV-cache block costs",
        "licenses": [{"name": "Apache-2.0"}],
        "regenerate": REGENERATE,
        "resources": resources,
    }
    files["datapackage.json"] = json.dumps(package, indent=2, ensure_ascii=False) + "\n"
    return tuple(files.items())


def _resource(table: ResultTable | KeptTable, columns: Sequence[tuple[str, str]]) -> dict[str, object]:
    described = {**COLUMNS, **table.columns}
    missing = [name for name, _ in columns if name not in described]
    if missing:
        raise InputError(table.name, missing, "columns that COLUMNS describes")
    fields = [{"name": name, "type": kind, "description": described[name]} for name, kind in columns]
    return {
        "name": table.name,
        "path": f"{table.name}.csv",
        "title": table.title,
        "format": "csv",
        "mediatype": "text/csv",
        "encoding": "utf-8",
        "sources": [{"title": title, "path": url} for title, url in table.sources],
        "regenerate": table.regenerate,
        "schema": {"fields": fields},
    }


def _field_type(name: str, column: "pd.Series[Any]") -> str:
    if name in _VERBATIM:  # digits as printed; with thousands separators they stay text
        return "string" if any("," in str(value) for value in column) else "number"
    if pd.api.types.is_integer_dtype(column):
        return "integer"
    return "number" if pd.api.types.is_float_dtype(column) else "string"


def write_results(directory: Path) -> tuple[Path, ...]:
    """Compute every table and write it, each file whole or not at all.

    Raises:
        InputError: The directory is not there, or cannot be written.
    """
    _check_directory(directory)
    paths = []
    for name, text in rendered_results().items():
        write_atomically(directory / name, text)
        paths.append(directory / name)
    return tuple(paths)


def _check_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise InputError("results directory", str(directory), "a directory that exists")


def stale_results(directory: Path) -> tuple[str, ...]:
    """Names of files that are missing or differ from what the library computes.

    Raises:
        InputError: The directory is not there.
    """
    _check_directory(directory)
    return tuple(
        name
        for name, text in rendered_results().items()
        if not (directory / name).is_file() or (directory / name).read_text(encoding="utf-8") != text
    )
