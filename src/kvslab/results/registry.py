"""The result tables: their names, what computes them, and what they rest on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pandas as pd

from kvslab.published import PR_44454, PR_44454_URL, PR_48993, PR_48993_URL
from kvslab.tables import (
    ablation_table,
    admission_table,
    breakdown_table,
    capacity_table,
    fit_table,
    frontier_table,
    gb200_table,
    models_table,
    pages_table,
    peers_table,
    public_cases_table,
    published_table,
    strides_table,
    transfer_table,
)

REGENERATE = "make results"
"""The command that computes `RESULT_TABLES` again."""

CONFIG_SOURCES = (
    ("DeepSeek-V4-Pro config.json", "https://huggingface.co/deepseek-ai/DeepSeek-V4-Pro"),
    ("DeepSeek-V4-Flash config.json", "https://huggingface.co/deepseek-ai/DeepSeek-V4-Flash"),
)


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
            "quantity": "What is stated, see kvslab.published.case_file.",
            "unit": "Unit of stated and derived, where it is no count.",
        },
    ),
    ResultTable(name="pages", title="One row per cache layer, before and after", build=pages_table),
    ResultTable(name="fit", title="The fitted planner, the merged change and the bounds", build=fit_table),
    ResultTable(
        name="peers", title="Ways to divide the same bytes", build=peers_table, sources=_PEER_SOURCES
    ),
    ResultTable(name="breakdown", title="Where the bytes of a budget go", build=breakdown_table),
    ResultTable(name="frontier", title="What more groups buy, and what they cost", build=frontier_table),
    ResultTable(
        name="models", title="Padding of other models, and what packing and fitting bring", build=models_table
    ),
    ResultTable(name="transfer", title="A plan fitted to one length, used at another", build=transfer_table),
)
"""Tables that the library computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTable:
    """A table that needs a file which the package does not have: described here, never called stale.

    Args:
        name: File name without `.csv`.
        title: One line.
        fields: `(column, type)`.
        sources: `(title, url)` of what it rests on.
        regenerate: The command that computes it again.
        columns: Descriptions that differ from `COLUMNS` here.
    """

    name: str
    title: str
    fields: tuple[tuple[str, str], ...]
    sources: tuple[tuple[str, str], ...]
    regenerate: str
    columns: Mapping[str, str] = field(default_factory=dict)


_TRACE_TABLES: tuple[KeptTable, ...] = (
    KeptTable(
        name="trace_simulation",
        title="One hour of a production chat service, or its first requests, played against several planners",
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
        regenerate="kvslab simulate MODEL --backend BACKEND --indexer INDEXER --budget BUDGET_BYTES"
        " --trace conversation_trace.jsonl --limit NUM_REQUESTS --slab SLAB [--slab SLAB ...]"
        " --append results/trace_simulation.csv, once for each setup of the table",
    ),
)

_MEASURED = (("device", "string"), ("software", "string"), ("date", "string"))
_KERNEL_SOURCES = (
    ("OCP Microscaling Formats (MX) v1.0", "https://www.opencompute.org/documents/"),
    (PR_48993, PR_48993_URL),
)

RECORD_TABLES: tuple[KeptTable, ...] = (
    KeptTable(
        name="mxfp4_cpu",
        title="MXFP4 on a CPU beside a copy and other packages",
        fields=(
            *((name, "string") for name in ("operation", "dtype")),
            *((name, "number") for name in ("threads", "rows")),
            *((name, "string") for name in ("contender", "status")),
            *((name, "number") for name in ("bytes_equal", "gb_s", "gb_s_p10", "gb_s_p90")),
            *((name, "number") for name in ("ours_over", "ours_over_p10", "ours_over_p90", "rounds")),
            *_MEASURED,
            ("note", "string"),
        ),
        sources=_KERNEL_SOURCES,
        regenerate="python benchmarks/mxfp4_cpu.py",
        columns={"rows": "Rows of 128 elements."},
    ),
    KeptTable(
        name="indexer_recall",
        title="Recall and lost score mass of an indexer that ranks with quantized keys",
        fields=(
            ("keys", "string"),
            ("num_keys", "integer"),
            ("format", "string"),
            ("rotated", "boolean"),
            ("rule", "string"),
            ("k", "integer"),
            *((name, "number") for name in ("recall", "recall_95", "lost_mass", "lost_mass_95")),
            *((name, "integer") for name in ("seeds", "queries")),
            *_MEASURED,
            *((name, "number") for name in ("needle_recall", "needle_recall_exact")),
        ),
        sources=_KERNEL_SOURCES,
        regenerate="python benchmarks/indexer_recall.py",
    ),
    KeptTable(
        name="kernel_resources",
        title="What the Triton kernels take, compiled ahead of time",
        fields=(
            *((name, "string") for name in ("kernel", "variant")),
            ("capability", "integer"),
            ("triton", "string"),
            *(
                (name, "integer")
                for name in ("num_warps", "registers", "spill_store_bytes", "spill_load_bytes")
            ),
            *((name, "integer") for name in ("stack_bytes", "shared_bytes", "ptx_instructions")),
            *((name, "integer") for name in ("flushed_instructions", "tile", "repeats")),
            ("date", "string"),
        ),
        sources=_KERNEL_SOURCES,
        regenerate="python benchmarks/kernel_resources.py",
    ),
    KeptTable(
        name="mxfp4_rules",
        title="Bytes that the rules of public implementations write for the same microblock",
        fields=(
            *((name, "string") for name in ("microblock", "rule")),
            ("scale_byte", "integer"),
            *((name, "string") for name in ("codes", "first_values")),
        ),
        sources=_KERNEL_SOURCES,
        regenerate="python benchmarks/indexer_recall.py",
    ),
)

KEPT_TABLES: tuple[KeptTable, ...] = _TRACE_TABLES + RECORD_TABLES
"""Tables that were measured, or that need a file which the package does not have."""
