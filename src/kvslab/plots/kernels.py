"""MXFP4 in figures: rounding, recall of an indexer that ranks with it, speed against a ceiling."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from kvslab.plots.style import AFTER, BEFORE, BOUND, use_style

FORMAT_COLOURS = {"fp8": "#999999", "mxfp4 keys": "#0072B2", "mxfp4 both": "#D55E00"}
DEVICE_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
FORMAT_MARKERS = {"fp8": "s", "mxfp4 keys": "o", "mxfp4 both": "^"}


def rounding_figure(inputs: Sequence[float], outputs: Sequence[float], grid: Sequence[float]) -> Axes:
    """Draw what rounding does: input against output, the grid's values dashed.

    Args:
        inputs: Values, in units of the scale.
        outputs: What each becomes.
        grid: The magnitudes that the format has.
    """
    use_style()
    _, ax = plt.subplots(figsize=(7.6, 3.2))
    for value in grid:
        ax.axhline(value, color=BOUND, ls="--", lw=0.6)
    ax.plot(inputs, inputs, color=BEFORE, lw=1, label="exact")
    ax.plot(inputs, outputs, color=AFTER, lw=1.6, label="E2M1")
    ax.set_yticks(list(grid))
    ax.set_xlabel("value / scale")
    ax.set_ylabel("stored value / scale")
    ax.legend(loc="upper left")
    return ax


def recall_figure(frame: pd.DataFrame) -> Axes:
    """Draw top-k recall by format, one panel per kind of keys; bars are 95 % intervals.

    Args:
        frame: Rows of `results/indexer_recall.csv` of one k and one number of keys.
    """
    use_style()
    kinds = list(dict.fromkeys(frame["keys"]))
    _, axes = plt.subplots(1, len(kinds), figsize=(7.6, 2.7), sharey=True, squeeze=False)
    for ax, kind in zip(axes[0], kinds, strict=True):
        for name, colour in FORMAT_COLOURS.items():
            rows = frame[(frame["keys"] == kind) & (frame["format"] == name)].sort_values("rotated")
            ax.errorbar(
                ["rotated" if value else "plain" for value in rows["rotated"]],
                [float(value) for value in rows["recall"]],
                yerr=[float(value) for value in rows["recall_95"]],
                color=colour,
                marker=FORMAT_MARKERS[name],
                ms=5,
                lw=1.3,
                capsize=3,
                label=name,
            )
        ax.set_xlabel(f"{kind} keys")
        ax.margins(x=0.25)
    axes[0, 0].set_ylim(0, 1.03)
    axes[0, 0].set_ylabel("recall of the true top k")
    axes[0, -1].legend(loc="lower right")
    first: Axes = axes[0, 0]
    return first


def speed_figure(frame: pd.DataFrame, *, value: str, label: str, ceiling: float) -> Axes:
    """Draw the speed of every contender of one operation, the ceiling dashed.

    Args:
        frame: Rows with `contender` and the measured column.
        value: The measured column.
        label: Its axis label, with the unit.
        ceiling: What a copy reaches.
    """
    use_style()
    rows = frame.sort_values(value, ascending=False)
    names = [str(name) for name in rows["contender"]]
    speeds = [float(speed) for speed in rows[value]]
    _, ax = plt.subplots(figsize=(7.6, 0.32 * len(names) + 0.8))
    ax.barh(
        names,
        speeds,
        color=[AFTER if name == "kvslab cpu" else BEFORE for name in names],
        height=0.62,
    )
    for y, speed in enumerate(speeds):
        ax.annotate(
            f"{speed:.2f}", (speed, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9
        )
    ax.axvline(ceiling, color=BOUND, ls="--", lw=1.2)
    ax.annotate(
        f"copy {ceiling:.1f}", (ceiling, -0.6), xytext=(3, 0), textcoords="offset points", color=BOUND
    )
    ax.set_xlim(0, 1.12 * max(ceiling, *speeds))
    ax.invert_yaxis()
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(label)
    return ax


def devices_figure(frame: pd.DataFrame) -> Axes:
    """Draw each operation's share of a copy's speed, one bar a device, at the most rows in the slab.

    Args:
        frame: Rows of `kvslab.tables.devices_table`.
    """
    use_style()
    widest = frame[frame["layout"] != "contiguous"]
    widest = widest.loc[widest.groupby(["operation", "device"], sort=False)["rows"].idxmax()]
    operations = list(dict.fromkeys(widest["operation"]))
    devices = list(dict.fromkeys(frame["device"]))
    height = 0.8 / len(devices)
    _, ax = plt.subplots(figsize=(7.6, 0.5 + (0.2 + 0.24 * len(devices)) * len(operations)))
    for i, device in enumerate(devices):
        mine = widest[widest["device"] == device].set_index("operation")["of_copy_percent"]
        at = [operations.index(operation) + (i - (len(devices) - 1) / 2) * height for operation in mine.index]
        ax.barh(at, mine, height=0.9 * height, color=DEVICE_COLOURS[i % len(DEVICE_COLOURS)], label=device)
        for y, share in zip(at, mine, strict=True):
            ax.annotate(
                f"{share:.0f} %",
                (share, y),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
    ax.axvline(100, color=BOUND, ls="--", lw=1.2)
    ax.set_yticks(range(len(operations)), operations)
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(0, 1.15 * max(100, *widest["of_copy_percent"]))
    ax.invert_yaxis()
    ax.set_xlabel("speed, % of a copy on the same device")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
    return ax
