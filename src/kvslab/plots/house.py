"""The package's rooms and what each builds on, drawn from its own imports."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from kvslab.plots.style import BOUND, INK, use_style
from kvslab.tables.house import STAGES, direct_imports

_STAGE_COLOURS = ("#999999", "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#B8A000", "#56B4E9")
_SHIFTS = (0.0, 0.0, 0.0, 0.0, 0.5, 1.6, 0.0)  # so that long arrows pass between boxes
_WIDTH, _HEIGHT, _LEFT = 1.06, 0.5, 2.0


def house_figure(frame: pd.DataFrame) -> Axes:
    """Draw one row of boxes a stage, and an arrow from each room to what it builds on.

    What everything builds on (the ground) gets no arrows, and what follows from other
    arrows is left out.

    Args:
        frame: Rows of `kvslab.tables.house_table`.
    """
    use_style()
    lines = dict(zip(frame["room"], frame["num_lines"], strict=True))
    _, ax = plt.subplots(figsize=(7.6, 0.95 * len(STAGES)))
    centre: dict[str, tuple[float, float]] = {}
    ground = set(STAGES[0][1])
    for level, (stage, rooms) in enumerate(STAGES):
        colour = _STAGE_COLOURS[level]
        ax.text(0, -level, stage.replace(" to ", "\nto ", 1), va="center", fontsize=9, color=INK)
        gap = 6.9 / max(len(rooms), 4)
        for i, room in enumerate(rooms):
            x = _LEFT + (i + 0.5 + _SHIFTS[level]) * gap
            centre[room] = (x, -level)
            ax.add_patch(
                FancyBboxPatch(
                    (x - _WIDTH / 2, -level - _HEIGHT / 2),
                    _WIDTH,
                    _HEIGHT,
                    boxstyle="round,pad=0,rounding_size=0.08",
                    facecolor=colour + "33",
                    edgecolor=colour,
                )
            )
            ax.text(x, -level + 0.08, room, ha="center", va="center", fontsize=9.5, color=INK)
            ax.text(
                x, -level - 0.13, f"{lines[room]:,} lines", ha="center", va="center", fontsize=7, color=INK
            )
    for room, base in direct_imports(frame[~frame["room"].isin(ground)]):
        if base not in ground:
            _arrow(ax, centre[room], centre[base])
    ax.set_xlim(-0.05, _LEFT + 7.0)
    ax.set_ylim(-len(STAGES) + 0.2, 0.35)
    ax.axis("off")
    return ax


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """From box to box: sideways inside a row, else from the upper edge to the lower one."""
    (x0, y0), (x1, y1) = start, end
    if y0 == y1:
        neighbours = abs(x0 - x1) < 2
        a = (x0 - _WIDTH / 2, y0) if neighbours else (x0, y0 - _HEIGHT / 2)
        b = (x1 + _WIDTH / 2, y1) if neighbours else (x1, y1 - _HEIGHT / 2)
        bend = 0.0 if neighbours else -0.25
    else:
        a, b, bend = (x0, y0 + _HEIGHT / 2), (x1, y1 - _HEIGHT / 2), 0.0
    ax.add_patch(
        FancyArrowPatch(
            a,
            b,
            arrowstyle="-|>",
            mutation_scale=8,
            connectionstyle=f"arc3,rad={bend}",
            color=BOUND,
            linewidth=0.9,
            zorder=0.5,
            shrinkA=1,
            shrinkB=1,
        )
    )
