"""The tables under `results/`: what they are, how they are written, whether they still hold.

Every table is a CSV with a schema, units and sources in `datapackage.json` (a
Frictionless data package).  `write_results` computes them all again;
`stale_results` says which committed file differs from what the library computes.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from kvslab.cases import public_cases_table
from kvslab.errors import InputError
from kvslab.outputs import write_atomically
from kvslab.published import PR_48993, PR_48993_URL
from kvslab.tables import (
    ablation_table,
    admission_table,
    breakdown_table,
    capacity_table,
    fit_table,
    frontier_table,
    gb200_table,
    pages_table,
    peers_table,
    published_table,
    strides_table,
    transfer_table,
)

REGENERATE = "make results"

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
    "block_sizes": "Which block sizes the fitted planner may choose: keep, kernel-legal or free.",
    "overlay_stride_bytes": "Bytes of one block of the merged change.",
    "overlay_groups": "Its cache groups.",
    "overlay_requests": "Requests that it serves at once, by steady.",
    "fitted_stride_bytes": "Bytes of one block of the fitted plan.",
    "fitted_groups": "Its cache groups.",
    "fitted_splits": "Groups x tokens of a block, for each class of layers, full histories first.",
    "fitted_requests": "Requests that it serves at once, by steady.",
    "gain_percent": "fitted_requests relative to overlay_requests.",
    "zero_waste_requests": "Requests that would fit if every byte of the pool were a live row.",
    "below_zero_waste_percent": "How far fitted_requests lies below that.",
    "whole_page_requests": "Requests that would fit if pages were whole and nothing else were lost.",
    "below_whole_page_percent": "How far fitted_requests lies below that.",
    "overlay_table_entries": "Block-table entries of one request under the merged change.",
    "fitted_table_entries": "Block-table entries of one request under the fitted plan.",
    "overlay_blocks_per_1000_tokens": "Blocks handed out per 1,000 tokens of a request, merged change.",
    "fitted_blocks_per_1000_tokens": "Blocks handed out per 1,000 tokens of a request, fitted plan.",
    "fitted_to_tokens": "Length of the requests that the plan was fitted to.",
    "peer": "A way to divide the bytes: a generation, a design of another engine, or fitted.",
    "change_from_overlay_percent": "Requests relative to those of the merged change.",
    "num_tables": "Block tables of one request.",
    "table_entries": "Block-table entries of one request.",
    "blocks_per_1000_tokens": "Blocks handed out while a request grows by 1,000 tokens.",
    "note": "What sets the number, or why there is none.",
    "live_bytes": "Bytes of rows that the next token can see.",
    "inside_pages_bytes": "Bytes of rows in held pages that no token needs.",
    "inside_blocks_bytes": "Bytes of held blocks that no page of their group covers.",
    "transient_bytes": "Bytes of blocks kept for tokens in flight.",
    "null_block_bytes": "Bytes of the block that is never handed out.",
    "left_over_bytes": "Bytes of the budget past the last block.",
    "arrivals": "When requests of the trace arrive.",
    "num_requests": "Requests played.",
    "trace_sha256": "SHA-256 of the text of the trace that was played.",
    "mean_running": "Requests running, averaged over the steps in which another waited for blocks.",
    "peak_running": "Most requests running at once.",
    "num_steps": "Steps of the engine until the last request finished.",
    "steps_change_percent": "num_steps relative to those of the merged change.",
    "crowded_steps": "Steps in which a request waited for blocks.",
    "mean_wait_steps": "Steps that a request waited before it was let in, on average.",
    "num_finished": "Requests that finished.",
    "num_shortfalls": "Steps in which the pool would have run out of blocks.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """One table of `results/`.

    Args:
        name: File name without `.csv`.
        title: One line.
        build: Computes it.
        sources: `(title, url)` of what it rests on.
    """

    name: str
    title: str
    build: Callable[[], pd.DataFrame]
    sources: tuple[tuple[str, str], ...] = ((PR_48993, PR_48993_URL),)

    @property
    def regenerate(self) -> str:
        """The command that computes it again."""
        return REGENERATE


MOONCAKE_URL = "https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release/traces"
_PEER_SOURCES = (
    (PR_48993, PR_48993_URL),
    ("SGLang issue 23602", "https://github.com/sgl-project/sglang/issues/23602"),
    ("Jenga, SOSP 2025", "https://doi.org/10.1145/3731569.3764823"),
)
_VERBATIM = ("published", "derived", "difference", "budget_printed_gib")

RESULT_TABLES: tuple[ResultTable, ...] = (
    ResultTable(name="published", title="Every published number, derived again", build=published_table),
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
    ),
    ResultTable(name="pages", title="One row per cache layer, before and after", build=pages_table),
    ResultTable(name="fit", title="The fitted planner, the merged change and the bounds", build=fit_table),
    ResultTable(
        name="peers", title="Ways to divide the same bytes", build=peers_table, sources=_PEER_SOURCES
    ),
    ResultTable(name="breakdown", title="Where the bytes of a budget go", build=breakdown_table),
    ResultTable(name="frontier", title="What more groups buy, and what they cost", build=frontier_table),
    ResultTable(name="transfer", title="A plan fitted to one length, used at another", build=transfer_table),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTable:
    """A table that needs a file which the package does not have: described here, never called stale.

    Args:
        name: File name without `.csv`.
        title: One line.
        fields: `(column, type)`.
        sources: `(title, url)` of what it rests on.
        regenerate: The command that computes it again.
    """

    name: str
    title: str
    fields: tuple[tuple[str, str], ...]
    sources: tuple[tuple[str, str], ...]
    regenerate: str


KEPT_TABLES: tuple[KeptTable, ...] = (
    KeptTable(
        name="trace_simulation",
        title="One hour of a production chat service, played against four planners",
        fields=(
            *((name, "string") for name in ("model", "backend", "indexer")),
            *((name, "integer") for name in ("budget_bytes", "max_in_flight_tokens")),
            ("arrivals", "string"),
            ("num_requests", "integer"),
            *((name, "string") for name in ("trace_sha256", "slab")),
            ("num_groups", "integer"),
            *((name, "number") for name in ("requests_steady", "mean_running")),
            *((name, "integer") for name in ("peak_running", "num_steps")),
            ("steps_change_percent", "number"),
            ("crowded_steps", "integer"),
            ("mean_wait_steps", "number"),
            *((name, "integer") for name in ("num_finished", "num_shortfalls")),
            ("source", "string"),
        ),
        sources=(("Mooncake traces, FAST'25 release", MOONCAKE_URL),),
        regenerate="kvslab simulate MODEL --trace conversation_trace.jsonl --budget BUDGET --append"
        " results/trace_simulation.csv, once for each model and budget of the table",
    ),
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
    missing = [name for name, _ in columns if name not in COLUMNS]
    if missing:
        raise InputError(table.name, missing, "columns that COLUMNS describes")
    fields = [{"name": name, "type": kind, "description": COLUMNS[name]} for name, kind in columns]
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
    if not directory.is_dir():
        raise InputError("results directory", str(directory), "a directory that exists")
    paths = []
    for name, text in rendered_results().items():
        write_atomically(directory / name, text)
        paths.append(directory / name)
    return tuple(paths)


def stale_results(directory: Path) -> tuple[str, ...]:
    """Names of files that are missing or differ from what the library computes."""
    return tuple(
        name
        for name, text in rendered_results().items()
        if not (directory / name).is_file() or (directory / name).read_text(encoding="utf-8") != text
    )
