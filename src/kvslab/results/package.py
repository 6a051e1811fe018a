"""A directory of results: what the library computes, described as a Frictionless data package.

Every table has an id, a schema with units, sources, a command that makes it again and a
checksum.  `write_results` computes all that can be computed; `verify_results` says which
file is not what it should be.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from kvslab import __version__
from kvslab.errors import InputError
from kvslab.files import write_atomically
from kvslab.results.citation import AUTHORS, LICENSE, TITLE
from kvslab.results.columns import COLUMNS, unit_of
from kvslab.results.measured import KEPT_TABLES, KeptTable
from kvslab.results.records import broken_records, sha256_of_bytes
from kvslab.results.registry import REGENERATE, RESULT_TABLES, ResultTable
from kvslab.tables import gb200_table

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


def rendered_results(directory: Path) -> dict[str, str]:
    """The text of every file that the library computes, by file name.

    Args:
        directory: Where the kept tables lie, which `datapackage.json` describes too.
    """
    files = {name: text for name, (text, _) in _computed().items()}
    headline = headline_table()
    files["gb200_blocks.md"] = headline.to_markdown(index=False, disable_numparse=True) + "\n"
    resources = [
        _resource(table, f"{table.name}.csv", text.encode(), columns)
        for table in RESULT_TABLES
        for text, columns in (_computed()[f"{table.name}.csv"],)
    ]
    for kept in KEPT_TABLES:
        for path in kept.files(directory):
            name = path.relative_to(directory).as_posix()
            resources.append(_resource(kept, name, path.read_bytes(), kept.fields))
    package = {
        "name": "kvslab-results",
        "id": "kvslab",
        "title": TITLE,
        "version": __version__,
        "contributors": [{"title": AUTHORS, "role": "author"}],
        "licenses": [{"name": LICENSE}],
        "regenerate": REGENERATE,
        "resources": resources,
    }
    files["datapackage.json"] = json.dumps(package, indent=2, ensure_ascii=False) + "\n"
    return files


@lru_cache(maxsize=1)
def _computed() -> dict[str, tuple[str, tuple[tuple[str, str], ...]]]:
    """File name -> its text and the types of its columns."""
    files = {}
    for table in RESULT_TABLES:
        frame = table.build()
        columns = tuple((name, _field_type(name, frame[name])) for name in frame.columns)
        files[f"{table.name}.csv"] = (frame.to_csv(index=False, lineterminator="\n"), columns)
    return files


def _resource(
    table: ResultTable | KeptTable, path: str, data: bytes, columns: Sequence[tuple[str, str]]
) -> dict[str, object]:
    described = {**COLUMNS, **table.columns}
    fields = []
    for name, kind in columns:
        if name not in described:
            raise InputError(f"{table.name}.{name}", "no description", "a column that COLUMNS describes")
        described_as = {"name": name, "type": kind, "description": described[name]}
        unit = unit_of(name)
        fields.append(described_as | ({"unit": unit} if unit and kind in ("integer", "number") else {}))
    name = path.removesuffix(".csv").replace("/", "-")
    return {
        "name": name,
        "id": f"kvslab/{path.removesuffix('.csv')}",
        "path": path,
        "title": table.title,
        "format": "csv",
        "mediatype": "text/csv",
        "encoding": "utf-8",
        "bytes": len(data),
        "hash": f"sha256:{sha256_of_bytes(data)}",
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
    """Compute every table and write it, each file whole or not at all; kept tables stay as they are.

    Raises:
        InputError: The directory is not there, or cannot be written.
    """
    _check_directory(directory)
    paths = []
    for name, text in rendered_results(directory).items():
        write_atomically(directory / name, text)
        paths.append(directory / name)
    return tuple(paths)


def _check_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise InputError("results directory", str(directory), "a directory that exists")


def verify_results(directory: Path) -> dict[str, str]:
    """What is wrong with a directory of results: file -> fault; empty where every table holds.

    Tables that the library computes are computed again and compared; kept ones are held
    against their checksums and their schema.

    Raises:
        InputError: The directory is not there.
    """
    _check_directory(directory)
    faults = {}
    for name, text in rendered_results(directory).items():
        path = directory / name
        if not path.is_file():
            faults[name] = "is missing"
        elif path.read_bytes() != text.encode():
            faults[name] = "differs from what the library computes"
    return faults | broken_records(directory)
