"""What a pool serves: price against cost, requests against length and batch size, blocks over time."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from kvslab.plots.style import AFTER, BEFORE, BOUND, INK, use_style
from kvslab.simulate import SimulationResult

FORMULA_COLOURS = {"legacy": "#999999", "block_sum": "#D55E00", "steady": "#0072B2"}
FORMULA_MARKERS = {"legacy": "s", "block_sum": "o", "steady": "^"}
FORMULA_WIDTHS = {"legacy": 3.5, "block_sum": 1.5, "steady": 1.5}
# Line ends nearer than this factor share one label.
NEAR = 1.4


def price_figure(frame: pd.DataFrame) -> Axes:
    """Draw how far the tuple price lies below or above the block stride.

    Args:
        frame: `kvslab.tables.admission_table()`.
    """
    use_style()
    _, ax = plt.subplots(figsize=(7.6, 0.3 * len(frame) + 0.8))
    labels = (
        frame["model"].str.removeprefix("deepseek-v4-") + ", " + frame["backend"] + ", " + frame["indexer"]
    )
    names = [str(label) for label in labels]
    values = [float(value) for value in frame["price_change_percent"]]
    ax.barh(names, values, color=["#D55E00" if value < 0 else BEFORE for value in values], height=0.62)
    for y, value in enumerate(values):
        ax.annotate(
            f"{value:+.1f} %",
            (value, y),
            xytext=(4 if value >= 0 else -4, 0),
            textcoords="offset points",
            va="center",
            ha="left" if value >= 0 else "right",
            fontsize=9,
        )
    ax.axvline(0, color=BOUND, ls="--", lw=1.2)
    ax.set_xlim(min(0.0, *values) - 1.5, max(0.0, *values) + 1.5)
    ax.invert_yaxis()
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("price of a block relative to its stride (%)")
    return ax


def formulas_figure(points: pd.DataFrame, *, x: str, label: str) -> Axes:
    """Draw requests by three formulas against one variable, both axes logarithmic.

    Args:
        points: Columns `x`, `legacy`, `block_sum`, `steady`.
        x: Name of the column on the horizontal axis.
        label: Its axis label, with the unit.
    """
    use_style()
    _, ax = plt.subplots(figsize=(7.6, 3.2))
    tokens = [int(value) for value in points[x]]
    for formula, colour in FORMULA_COLOURS.items():
        requests = [float(value) for value in points[formula]]
        ax.plot(
            tokens, requests, color=colour, marker=FORMULA_MARKERS[formula], ms=4, lw=FORMULA_WIDTHS[formula]
        )
    ends = {formula: float(points[formula].iloc[-1]) for formula in FORMULA_COLOURS}
    labels: list[list[str]] = []
    for formula in sorted(ends, key=lambda name: ends[name]):
        if labels and ends[formula] < NEAR * ends[labels[-1][-1]]:
            labels[-1].append(formula)
        else:
            labels.append([formula])
    for names in labels:
        ax.annotate(
            ", ".join(names),
            (tokens[-1], ends[names[0]]),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=INK,
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.margins(y=0.1)
    ax.set_xlim(tokens[0] / 1.4, tokens[-1] * (tokens[-1] / tokens[0]) ** 0.22)  # room for the labels
    ax.set_xticks(tokens, [_short(value) for value in tokens])
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}" if y >= 1 else f"{y:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(label)
    ax.set_ylabel("requests at once")
    return ax


def _short(tokens: int) -> str:
    if tokens >= 2**20:
        return f"{tokens // 2**20}M"
    return f"{tokens // 1024}K" if tokens >= 1024 else str(tokens)


def occupancy_figure(results: Sequence[tuple[str, SimulationResult]], num_blocks: int) -> Axes:
    """Draw the blocks in use, step by step, under each admission rule.

    Args:
        results: `(label, result)`.
        num_blocks: Blocks of the pool, drawn as a bound.
    """
    use_style()
    _, ax = plt.subplots(figsize=(7.6, 3.0))
    colours = (FORMULA_COLOURS["block_sum"], AFTER)
    for (label, result), colour in zip(results, colours, strict=False):
        ax.plot(range(result.num_steps), result.used_blocks, color=colour, lw=1.3, label=label)
    ax.legend(loc="upper right", bbox_to_anchor=(1, 0.9))
    ax.axhline(num_blocks, color=BOUND, ls="--", lw=1.2)
    ax.annotate(
        f"{num_blocks:,} blocks",
        (1, num_blocks),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        color=BOUND,
    )
    ax.set_ylim(0, 1.12 * num_blocks)
    ax.set_xlim(left=0)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    ax.set_xlabel("step")
    ax.set_ylabel("blocks in use")
    return ax
