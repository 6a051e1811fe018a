"""The tables of `results/` in other forms: Parquet, LaTeX, BibTeX.

They are made from the committed CSV files and `datapackage.json`, so they say what those say.
"""

import io
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from kvslab.errors import InputError, PlanError
from kvslab.files import Fields, read_json, write_atomically
from kvslab.results.citation import software_bibtex, table_bibtex

FORMS = ("csv", "parquet", "tex", "bib")
MOST_ROWS_ON_A_PAGE = 40
_DTYPES = {"integer": "Int64", "number": "Float64", "boolean": "boolean", "string": "string"}


def resources(directory: Path) -> list[dict[str, Any]]:
    """The tables that `datapackage.json` describes.

    Raises:
        InputError: The file is missing or no data package.
    """
    package = Fields(read_json(directory / "datapackage.json"), "datapackage.json")
    return [
        dict(Fields(entry, f"resources[{i}]").items())
        for i, entry in enumerate(package.sequence("resources"))
    ]


def export_results(directory: Path, target: Path) -> tuple[Path, ...]:
    """Write every table as CSV, Parquet, LaTeX and BibTeX, and `kvslab.bib` with all entries.

    Args:
        directory: The directory of the results.
        target: Where the files go; made where it is missing.

    Raises:
        InputError: A table is missing or is not as its schema says, or a file cannot be written.
        PlanError: pyarrow, which writes Parquet, is missing.
    """
    if find_spec("pyarrow") is None:
        raise PlanError("Parquet needs pyarrow: pip install 'kvslab[sweep]'")
    target.mkdir(parents=True, exist_ok=True)
    written = []

    def write(name: str, data: str | bytes) -> None:
        write_atomically(target / name, data)
        written.append(target / name)

    entries = [software_bibtex()]
    for resource in resources(directory):
        name = str(resource["name"])
        try:
            data = (directory / resource["path"]).read_bytes()
        except OSError as error:
            raise InputError(
                resource["path"], error.strerror or "an error", "a table that can be read"
            ) from None
        cells = pd.read_csv(io.BytesIO(data), dtype="string", keep_default_na=False)
        fields = [field["name"] for field in resource["schema"]["fields"]]
        if list(cells.columns) != fields:
            raise InputError(resource["path"], list(cells.columns), f"the columns {', '.join(fields)}")
        write(f"{name}.csv", data)
        write(f"{name}.parquet", _parquet(cells, resource))
        write(f"{name}.tex", _latex(cells, resource))
        entry = table_bibtex(resource["id"], resource["title"], str(resource["hash"]).removeprefix("sha256:"))
        write(f"{name}.bib", entry)
        entries.append(entry)
    write("kvslab.bib", "\n".join(entries))
    return tuple(written)


def _parquet(cells: pd.DataFrame, resource: dict[str, Any]) -> bytes:
    """Typed columns by the schema; an empty cell of a number is missing."""
    typed = {}
    for field in resource["schema"]["fields"]:
        column = cells[field["name"]]
        try:
            if field["type"] in ("integer", "number"):
                typed[field["name"]] = pd.to_numeric(column.replace("", pd.NA)).astype(_DTYPES[field["type"]])
            elif field["type"] == "boolean":
                typed[field["name"]] = column.map({"True": True, "False": False}).astype("boolean")
            else:
                typed[field["name"]] = column
        except (ValueError, TypeError):
            where = f"{resource['path']}: {field['name']}"
            raise InputError(where, "a cell of another type", f"type {field['type']}") from None
    frame = pd.DataFrame(typed)
    frame.attrs = {
        "id": resource["id"],
        "title": resource["title"],
        "sources": json.dumps(resource["sources"]),
    }
    stream = io.BytesIO()
    frame.to_parquet(stream, index=False)
    return stream.getvalue()


def _latex(cells: pd.DataFrame, resource: dict[str, Any]) -> str:
    kinds = [field["type"] for field in resource["schema"]["fields"]]
    return (
        cells.style.hide(axis="index")
        .format(escape="latex")
        .format_index(escape="latex", axis=1)
        .to_latex(
            hrules=True,
            column_format="".join("r" if kind in ("integer", "number") else "l" for kind in kinds),
            caption=str(resource["title"]).replace("%", r"\%").replace("&", r"\&"),
            label=f"tab:{resource['name']}",
            environment="longtable" if len(cells) > MOST_ROWS_ON_A_PAGE else None,
        )
    )
