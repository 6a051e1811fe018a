"""The tables that the library computes: their names, what computes them, and what they rest on."""

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
    rules_table,
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


_PEER_SOURCES = (
    (PR_48993, PR_48993_URL),
    ("SGLang issue 23602", "https://github.com/sgl-project/sglang/issues/23602"),
    ("Jenga, SOSP 2025", "https://doi.org/10.1145/3731569.3764823"),
)

KERNEL_SOURCES = (
    ("OCP Microscaling Formats (MX) v1.0", "https://www.opencompute.org/documents/"),
    (PR_48993, PR_48993_URL),
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
    ResultTable(
        name="mxfp4_rules",
        title="Bytes that the rules of public implementations write for the same microblock",
        build=rules_table,
        sources=KERNEL_SOURCES,
    ),
)
"""Tables that the library computes."""
