"""Rows and pages drawn to scale: which bytes are values, scales and padding."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter

from kvslab.formats import RowFormat
from kvslab.plots.style import BOUND, HATCH, use_style


def rows_figure(rows: Sequence[RowFormat]) -> Axes:
    """Draw row formats to scale, one bar each, a box for every part and its bytes."""
    use_style()
    _, ax = plt.subplots(figsize=(7.6, 0.62 * len(rows) + 0.7))
    palette = ("#0072B2", "#E69F00", "#CC79A7")
    longest = max(row.row_bytes for row in rows)
    for y, row in enumerate(rows):
        start = 0
        for (what, size), colour in zip(row.parts, palette, strict=False):
            ax.barh(y, size, left=start, color=colour, edgecolor="white", lw=1, height=0.62)
            if size > longest / 8:
                ax.text(
                    start + size / 2,
                    y,
                    f"{what}: {size} B",
                    ha="center",
                    va="center",
                    color="white",
                    fontsize=9,
                )
            start += size
        rest = ", ".join(f"{what} {size} B" for what, size in row.parts if size <= longest / 8)
        text = f"{row.row_bytes} bytes" + (f" ({rest})" if rest else "")
        ax.annotate(text, (start, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9)
    ax.set_yticks(range(len(rows)), [row.name for row in rows])
    ax.invert_yaxis()
    ax.set_xlim(0, longest * 1.32)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("bytes of one row")
    return ax


def microblock_figure() -> Axes:
    """Draw the MXFP4 indexer row bit by bit: one byte, one microblock, one row."""
    use_style()
    _, axes = plt.subplots(3, 1, figsize=(7.6, 4.6), height_ratios=(1.25, 1, 1))
    bits, block, row = axes
    names = ("sign", "exp", "exp", "man")
    for nibble in range(2):
        for bit, name in enumerate(names):
            x = nibble * 4 + bit
            colour = {"sign": "#D55E00", "exp": "#0072B2", "man": "#009E73"}[name]
            bits.add_patch(Rectangle((x, 0), 1, 1, facecolor=colour, edgecolor="white", lw=1.5))
            bits.text(
                x + 0.5, 0.5, f"{name}\nbit {7 - x}", ha="center", va="center", color="white", fontsize=9
            )
    bits.text(2, 1.12, "high nibble: element 2i + 1", ha="center", va="bottom")
    bits.text(6, 1.12, "low nibble: element 2i", ha="center", va="bottom")
    bits.text(8.15, 0.5, "byte i of a row", va="center")
    bits.set_xlim(0, 10)
    bits.set_ylim(0, 1.5)
    for i in range(16):
        block.add_patch(Rectangle((i, 0), 1, 1, facecolor="#0072B2", edgecolor="white"))
    block.add_patch(Rectangle((16.4, 0), 1, 1, facecolor="#E69F00", edgecolor="white"))
    block.text(8, 1.12, "32 elements in 16 bytes", ha="center", va="bottom")
    block.text(17.6, 0.5, "and one scale byte: a microblock", va="center")
    block.set_xlim(0, 25)
    block.set_ylim(0, 1.5)
    for i in range(4):
        row.add_patch(Rectangle((16 * i, 0), 16, 1, facecolor="#0072B2", edgecolor="white"))
        row.text(
            16 * i + 8,
            0.5,
            f"values {32 * i} to {32 * i + 31}",
            ha="center",
            va="center",
            color="white",
            fontsize=9,
        )
        row.add_patch(Rectangle((64 + i, 0), 1, 1, facecolor="#E69F00", edgecolor="white", lw=0.5))
    row.text(32, 1.12, "64 bytes of values", ha="center", va="bottom")
    row.text(68.4, 0.5, "4 scale bytes: 68 in all", va="center")
    row.set_xlim(0, 89)
    row.set_ylim(0, 1.5)
    for ax in axes:
        ax.axis("off")
    first: Axes = axes[0]
    return first


def page_figure(pages: Sequence[tuple[str, Sequence[tuple[str, int]]]]) -> Axes:
    """Draw pages to scale as stacked parts: values, scales, padding.

    Args:
        pages: `(name, ((part, bytes), ...))`; a part named `padding` is hatched.
    """
    use_style()
    _, ax = plt.subplots(figsize=(7.6, 0.6 * len(pages) + 0.8))
    palette = {"values": "#0072B2", "scales": "#E69F00", "rows": "#0072B2"}
    longest = max(sum(size for _, size in parts) for _, parts in pages)
    seen: dict[str, Patch] = {}
    for y, (_, parts) in enumerate(pages):
        start = 0
        for part, size in parts:
            colour, hatch = ("none", HATCH) if part == "padding" else (palette[part], "")
            box = Rectangle(
                (start, y - 0.3), size, 0.6, facecolor=colour, hatch=hatch, edgecolor=BOUND, lw=0.5
            )
            ax.add_patch(box)
            seen.setdefault(part, Patch(facecolor=colour, hatch=hatch, edgecolor=BOUND, lw=0.5, label=part))
            start += size
        text = " + ".join(f"{size:,} B {part}" for part, size in parts if size)
        ax.annotate(
            f"{start:,} B: {text}", (0, y - 0.3), xytext=(2, 2), textcoords="offset points", fontsize=9
        )
    ax.set_yticks(range(len(pages)), [name for name, _ in pages])
    ax.set_ylim(len(pages) - 0.5, -0.75)
    ax.set_xlim(0, longest * 1.02)
    ax.tick_params(axis="y", length=0)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    ax.set_xlabel("bytes of one page")
    ax.legend(handles=list(seen.values()), ncols=len(seen), loc="lower right", bbox_to_anchor=(1, 1.0))
    return ax
