"""Numbers of the published change: blocks, budget intervals, the ablation."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from kvslab.plots.style import AFTER, BEFORE, BOUND, use_style
from kvslab.printed import BudgetInterval


def headline_figure(frame: pd.DataFrame) -> Axes:
    """Draw blocks before and after PR 48993.

    Args:
        frame: `kvslab.tables.gb200_table()`.
    """
    use_style()
    _, ax = plt.subplots(figsize=(7.6, 0.95 * len(frame) + 0.6))
    for y, row in enumerate(frame.to_dict("records")):
        for shift, count, colour, when in (
            (-0.2, row["num_blocks_before"], BEFORE, "before"),
            (0.2, row["num_blocks_after"], AFTER, "after"),
        ):
            ax.barh(y + shift, count, height=0.36, color=colour)
            gain = f"  ({row['num_blocks_change_percent']:+.2f} %)" if when == "after" else ""
            ax.annotate(
                f"{when}: {count:,}{gain}",
                (count, y + shift),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
            )
    ax.set_yticks(
        range(len(frame)), [f"{row.backend}\n{row.budget_printed_gib} GiB" for row in frame.itertuples()]
    )
    ax.invert_yaxis()
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(0, 1.3 * float(frame["num_blocks_after"].max()))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    ax.set_xlabel("blocks")
    return ax


def interval_figure(rows: Sequence[tuple[str, BudgetInterval]], marks: Sequence[tuple[str, int]]) -> Axes:
    """Draw budget intervals under one another, with single budgets marked.

    Args:
        rows: `(label, interval)`, from top to bottom.
        marks: `(label, budget_bytes)`, drawn as dashed lines.
    """
    use_style()
    _, ax = plt.subplots(figsize=(7.6, 0.5 * len(rows) + 1.1))
    mib = 1024 * 1024
    origin = min(interval.low_bytes for _, interval in rows)
    for y, (label, interval) in enumerate(rows):
        width = (interval.high_bytes - interval.low_bytes) / mib
        last = y == len(rows) - 1
        ax.barh(
            y, width, left=(interval.low_bytes - origin) / mib, color=AFTER if last else BEFORE, height=0.55
        )
        ax.annotate(
            label,
            ((interval.low_bytes - origin) / mib, y - 0.28),
            xytext=(0, 2),
            textcoords="offset points",
            fontsize=9,
        )
    for label, budget in marks:
        x = (budget - origin) / mib
        ax.axvline(x, color=BOUND, ls="--", lw=1.2)
        ax.annotate(
            label, (x, len(rows) - 0.45), xytext=(3, 2), textcoords="offset points", color=BOUND, fontsize=9
        )
    ax.set_ylim(len(rows) - 0.4, -0.75)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_xlabel(f"budget above {origin:,} bytes (MiB)")
    return ax


def ablation_figure(frame: pd.DataFrame) -> Axes:
    """Draw the ablation twice: blocks of the pool, and requests that they serve.

    Args:
        frame: `kvslab.tables.ablation_table()`, one backend.
    """
    use_style()
    _, axes = plt.subplots(1, 2, figsize=(7.6, 2.6), sharey=True)
    names = [f"{row.slab}, {row.indexer}" for row in frame.itertuples()]
    colours = [
        AFTER if row.slab == "overlay" and row.indexer == "mxfp4" else BEFORE for row in frame.itertuples()
    ]
    for ax, column, text, label in (
        (axes[0], "num_blocks", "{:,.0f}", "blocks"),
        (axes[1], "max_concurrency", "{:.2f}", "requests of 1M tokens"),
    ):
        ax.barh(names, frame[column], color=colours, height=0.62)
        for y, value in enumerate(frame[column]):
            ax.annotate(
                text.format(value), (value, y), xytext=(4, 0), textcoords="offset points", va="center"
            )
        ax.set_xlim(0, 1.2 * float(frame[column].max()))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if x >= 10 else f"{x:g}"))
        ax.set_xlabel(label)
        ax.tick_params(axis="y", length=0)
    axes[0].invert_yaxis()
    first: Axes = axes[0]
    return first
