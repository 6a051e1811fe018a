"""The tables under `results/`: what they are, how they are written, whether they still hold.

Every table is a CSV with a schema, units and sources in `datapackage.json` (a
Frictionless data package).  `write_results` computes them all again;
`stale_results` says which committed file differs from what the library computes.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from kvslab.cases import public_cases_table
from kvslab.errors import InputError
from kvslab.outputs import write_atomically
from kvslab.published import PR_44454, PR_44454_URL, PR_48993, PR_48993_URL
from kvslab.tables import (
    ablation_table,
    admission_table,
    capacity_table,
    gb200_table,
    pages_table,
    published_table,
    strides_table,
)

REGENERATE = "make results"

CONFIG_SOURCES = (
    ("DeepSeek-V4-Pro config.json", "https://huggingface.co/deepseek-ai/DeepSeek-V4-Pro"),
    ("DeepSeek-V4-Flash config.json", "https://huggingface.co/deepseek-ai/DeepSeek-V4-Flash"),
)

COLUMNS: Mapping[str, str] = {
    "id": "Name of the published number.",
    "quantity": "What is counted: row_bytes, block_stride, num_blocks, blocks_per_byte or num_groups.",
    "model": "Preset name of the model.",
    "backend": "Attention backend, which sets the latent row and the page alignment.",
    "indexer": "Row format of the indexer's keys.",
    "slab": "Generation of the slab planner.",
    "published": "The number as its source prints it.",
    "derived": "The number as computed here, printed to the same digits.",
    "difference": "derived - published, in the row's unit.",
    "unit": "Unit of published, derived and difference.",
    "verdict": "Whether the two agree to the last printed digit.",
    "source": "Where the row's facts come from.",
    "url": "Address of the source, where it has one.",
    "num_layers": "Cache layers.",
    "num_groups": "Cache groups (layers that share a block table).",
    "block_stride_bytes": "Bytes of one block.",
    "largest_group_bytes": "Bytes of all pages of the largest group.",
    "padding_bytes": "Bytes that no row uses: of the page, or of one block of each group.",
    "budget_printed_gib": "The budget as published, rounded to 0.01 GiB.",
    "budget_low_bytes": "Least budget at which the published counts hold together.",
    "budget_high_bytes": "First budget above them.",
    "stride_before_bytes": "Block stride before PR 48993.",
    "stride_after_bytes": "Block stride after PR 48993.",
    "stride_change_percent": "Change of the block stride.",
    "num_blocks_before": "Blocks before PR 48993.",
    "num_blocks_after": "Blocks after PR 48993.",
    "num_blocks_change_percent": "Change of the block count from the bucketed slab with FP8 rows.",
    "num_blocks": "Blocks of the pool, the null block included.",
    "max_model_len_tokens": "Length of the request.",
    "max_in_flight_tokens": "Tokens scheduled but not settled.",
    "blocks_per_request": "Blocks that one request of that length needs over all groups.",
    "max_concurrency": "num_blocks / blocks_per_request: the block_sum formula.",
    "what": "What the report is about.",
    "release": "Version of the engine, where the report states it.",
    "formula": "Concurrency formula or admission price.",
    "stated": "The number as the report prints it.",
    "budget_bytes": "Bytes of the pool.",
    "requests_legacy": "Requests at once by the formula of vLLM before PR 48317.",
    "requests_block_sum": "Requests at once by the formula since.",
    "requests_steady": "Requests at once, tokens in flight counted once for the batch, the null block kept.",
    "auto_fit_engine_tokens": "Longest request by the generation's own price, the null block ignored.",
    "auto_fit_exact_tokens": "Longest request by the block stride, the null block kept.",
    "price_tuple_bytes": "What vLLM up to 0.28 charges for a block.",
    "price_change_percent": "price_tuple_bytes relative to block_stride_bytes.",
    "admission_tuple_bytes": "price_tuple_bytes * blocks_per_request.",
    "admission_stride_bytes": "block_stride_bytes * blocks_per_request.",
    "longest_engine_tokens": "Longest request that the tuple price admits in budget_bytes.",
    "longest_exact_tokens": "Longest request that fits there, the null block kept.",
    "wrong_tokens": "longest_engine_tokens - longest_exact_tokens: wrongly admitted; refused where negative.",
    "layer": "Name of the cache layer.",
    "cache": "What the layer stores.",
    "group": "Index of its cache group.",
    "offset_bytes": "First byte of its page, from the start of the block.",
    "block_size_tokens": "Tokens of one block.",
    "rows_per_page": "Rows of one page.",
    "row_bytes": "Bytes of one row.",
    "payload_bytes": "Bytes of one page that rows use.",
    "page_bytes": "Bytes of one page, alignment and raising included.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """One table of `results/`.

    Args:
        name: File name without `.csv`.
        title: One line.
        build: Computes it.
        sources: `(title, url)` of what it rests on.
        columns: Descriptions that differ from `COLUMNS` here.
    """

    name: str
    title: str
    build: Callable[[], pd.DataFrame]
    sources: tuple[tuple[str, str], ...] = ((PR_48993, PR_48993_URL), *CONFIG_SOURCES)
    columns: Mapping[str, str] = field(default_factory=dict)


_VERBATIM = ("published", "derived", "difference", "budget_printed_gib")

RESULT_TABLES: tuple[ResultTable, ...] = (
    ResultTable(
        name="published",
        title="Numbers that pull requests state or releases gave, derived again",
        build=published_table,
        sources=((PR_48993, PR_48993_URL), (PR_44454, PR_44454_URL), *CONFIG_SOURCES),
    ),
    ResultTable(name="strides", title="Block stride by model, backend, rows and slab", build=strides_table),
    ResultTable(name="gb200_blocks", title="DeepSeek-V4-Pro on GB200, before and after", build=gb200_table),
    ResultTable(name="ablation", title="Planner x row format, each change alone", build=ablation_table),
    ResultTable(name="capacity", title="Requests by three formulas, by length", build=capacity_table),
    ResultTable(
        name="admission", title="What admission charges for a block, and what it costs", build=admission_table
    ),
    ResultTable(
        name="public_cases",
        title="Public reports of capacity, each number derived again",
        build=public_cases_table,
        sources=(("Public reports, named row by row", "https://github.com/vllm-project/vllm/issues"),),
        columns={
            "id": "Name of the report.",
            "model": "The model, as the report names it.",
            "quantity": "What is stated, see kvslab.case_file.",
            "unit": "Unit of stated and derived, where it is no count.",
        },
    ),
    ResultTable(name="pages", title="One row per cache layer, before and after", build=pages_table),
)


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
    """The text of every file of `results/`, by file name."""
    files: dict[str, str] = {}
    resources = []
    for table in RESULT_TABLES:
        frame = table.build()
        files[f"{table.name}.csv"] = frame.to_csv(index=False, lineterminator="\n")
        resources.append(_resource(table, frame))
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
    return files


def _resource(table: ResultTable, frame: pd.DataFrame) -> dict[str, object]:
    described = {**COLUMNS, **table.columns}
    missing = [name for name in frame.columns if name not in described]
    if missing:
        raise InputError(table.name, missing, "columns that COLUMNS describes")
    fields = [
        {"name": name, "type": _field_type(name, frame[name]), "description": described[name]}
        for name in frame.columns
    ]
    return {
        "name": table.name,
        "path": f"{table.name}.csv",
        "title": table.title,
        "format": "csv",
        "mediatype": "text/csv",
        "encoding": "utf-8",
        "sources": [{"title": title, "path": url} for title, url in table.sources],
        "regenerate": REGENERATE,
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
