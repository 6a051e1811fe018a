"""Other models: padding of today's slab, and what packing brings of it."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from kvslab.plots.style import AFTER, BEFORE, BOUND, HATCH, use_style

LEAST_PERCENT = 0.05
"""Gains below it are nothing to draw."""


def models_figure(frame: pd.DataFrame) -> Axes:
    """Draw each model's padding beside the requests that packing and a searched plan add, and their bound.

    Args:
        frame: `kvslab.tables.models_table()`.
    """
    use_style()
    rows = frame.sort_values("padding_percent", ascending=False, kind="stable").to_dict("records")
    _, axes = plt.subplots(1, 2, figsize=(7.6, 0.3 * len(rows) + 0.8), sharey=True)
    left, right = axes
    for y, row in enumerate(rows):
        left.barh(y, row["padding_percent"], height=0.62, facecolor="none", edgecolor=BEFORE, hatch=HATCH)
        _label(left, row["padding_percent"], y, f"{row['padding_percent']:.1f} %")
        gain, fitted = row["overlay_change_percent"], row["fitted_change_percent"]
        right.barh(y, gain, height=0.62, color=AFTER)
        bound = row["bound_percent"]
        if bound:
            right.plot([bound, bound], [y - 0.4, y + 0.4], color=BOUND, ls="--", lw=1.2)
        if fitted >= LEAST_PERCENT:
            right.plot([fitted], [y], color=AFTER, marker="^", ms=6, ls="")
        _label(right, max(gain, bound, fitted), y, _gains(gain, fitted))
    left.set_yticks(range(len(rows)), [str(row["model"]) for row in rows])
    left.invert_yaxis()
    for ax, column, label in (
        (left, "padding_percent", "padding (% of what a request holds)"),
        (right, "fitted_change_percent", "more requests if packed (%)"),
    ):
        ax.tick_params(axis="y", length=0)
        ax.set_xlim(0, 1.75 * max(1.0, float(frame[column].max())))
        ax.set_xlabel(label)
    first: Axes = left
    return first


def _gains(packed: float, fitted: float) -> str:
    if max(packed, fitted) < LEAST_PERCENT:
        return "nothing to gain"
    return f"{packed:+.1f} %, fitted {fitted:+.1f} %"


def _label(ax: Axes, x: float, y: float, text: str) -> None:
    ax.annotate(text, (x, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
