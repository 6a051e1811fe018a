"""Slabs drawn to scale, and where the bytes of each group's share of a block go."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch, Rectangle

from kvslab.errors import InputError
from kvslab.plots.style import AFTER, BOUND, COLOURS, HATCH, bytes_axis, use_style
from kvslab.slab import SlabLayout
from kvslab.tables import role_of


def _draw_pages(ax: Axes, slab: SlabLayout, *, shown_bytes: int, edge: float) -> None:
    """Draw one row per group: pages in colour, everything else hatched."""
    for group_id in range(len(slab.groups)):
        ax.add_patch(
            Rectangle(
                (0, group_id - 0.38),
                slab.block_stride,
                0.76,
                facecolor="none",
                edgecolor=BOUND,
                hatch=HATCH,
                lw=0.5,
            )
        )
    by_role: dict[str, list[list[tuple[float, float]]]] = {}
    edges: dict[str, list[float]] = {}
    for page in slab.pages:
        role = role_of(page.layer)
        low, high, start = page.group_id - 0.38, page.group_id + 0.38, page.offset
        end = start + page.payload_bytes
        by_role.setdefault(role, []).append([(start, low), (end, low), (end, high), (start, high)])
        # A white edge would wash out a page that is thinner than a pixel or two.
        edges.setdefault(role, []).append(edge if page.page_bytes > shown_bytes / 200 else 0)
    for role, boxes in by_role.items():
        ax.add_collection(
            PolyCollection(boxes, facecolors=COLOURS[role], edgecolors="white", linewidths=edges[role])
        )


def _group_names(slab: SlabLayout) -> list[str]:
    names = []
    for group in slab.groups:
        roles = dict.fromkeys(role_of(layer) for layer in group.layers)
        names.append(" + ".join(roles))
    return names


def _slab_panel(ax: Axes, name: str, slab: SlabLayout, widest: int) -> None:
    _draw_pages(ax, slab, shown_bytes=widest, edge=0.25)
    ax.axvline(slab.block_stride, color=BOUND, ls="--", lw=1.2)
    ax.annotate(
        f"{name}: block stride {slab.block_stride:,} bytes",
        (slab.block_stride, -0.5),
        xytext=(-2, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
    )
    bytes_axis(ax, round(widest * 1.01))
    ax.set_ylim(len(slab.groups) - 0.45, -0.55)
    ax.set_yticks(range(len(slab.groups)), _group_names(slab))
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def slab_figure(slabs: Sequence[tuple[str, SlabLayout]], *, zoom_bytes: int = 0) -> Axes:
    """Draw slabs to one scale: a row per cache group, pages where they lie.

    Args:
        slabs: `(name, slab)`, drawn from top to bottom.
        zoom_bytes: Draw the first so many bytes of the last slab once more, larger,
            where pages are too thin to see.

    Raises:
        InputError: There is no slab to draw.
    """
    if not slabs:
        raise InputError("slabs", len(slabs), "at least one slab")
    use_style()
    widest = max(slab.block_stride for _, slab in slabs)
    panels = [*slabs, slabs[-1]] if zoom_bytes else list(slabs)
    heights = [len(slab.groups) + 1.2 for _, slab in panels]
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(7.6, 0.34 * sum(heights) + 0.9), height_ratios=heights, squeeze=False
    )
    for ax, (name, slab) in zip(axes[:, 0], slabs, strict=False):
        _slab_panel(ax, name, slab, widest)
    if zoom_bytes:
        zoom = axes[-1, 0]
        name, slab = slabs[-1]
        _draw_pages(zoom, slab, shown_bytes=zoom_bytes, edge=0.6)
        bytes_axis(zoom, zoom_bytes)
        zoom.set_ylim(len(slab.groups) - 0.45, -0.55)
        zoom.set_yticks(range(len(slab.groups)), _group_names(slab))
        zoom.tick_params(axis="y", length=0)
        zoom.spines["left"].set_visible(False)
        zoom.annotate(
            f"{name}, zoom: the first {zoom_bytes // 1024} KiB",
            (0, -0.5),
            xytext=(0, 3),
            textcoords="offset points",
        )
    axes[-1, 0].set_xlabel("offset in the block (KiB)")
    roles = dict.fromkeys(role_of(page.layer) for _, slab in slabs for page in slab.pages)
    handles = [Patch(facecolor=COLOURS[role], label=role) for role in COLOURS if role in roles]
    handles.append(Patch(facecolor="none", edgecolor=BOUND, hatch=HATCH, label="no row uses it"))
    figure.legend(handles=handles, loc="outside upper left", ncols=3, handlelength=1.2, columnspacing=1.2)
    first: Axes = axes[0, 0]
    return first


def padding_figure(frames: Sequence[tuple[str, pd.DataFrame]]) -> Axes:
    """Draw where each group's share of a block goes: rows, page padding, nothing.

    Args:
        frames: `(name, kvslab.tables.groups_table(...))`, on one scale.
    """
    use_style()
    heights = [len(frame) + 1.0 for _, frame in frames]
    figure, axes = plt.subplots(
        len(frames),
        1,
        sharex=True,
        squeeze=False,
        figsize=(7.6, 0.42 * sum(heights) + 0.7),
        height_ratios=heights,
    )
    parts = (
        ("payload_bytes", "rows", AFTER, ""),
        ("page_padding_bytes", "padding inside pages", "#E69F00", "...."),
        ("unused_bytes", "no page of this group", "none", HATCH),
    )
    for ax, (name, frame) in zip(axes[:, 0], frames, strict=True):
        left = pd.Series(0, index=frame.index)
        for column, label, colour, hatch in parts:
            ax.barh(
                frame.index,
                frame[column],
                left=left,
                color=colour,
                hatch=hatch,
                edgecolor=BOUND,
                lw=0.5,
                label=label,
            )
            left = left + frame[column]
        for y, (payload, total) in enumerate(zip(frame["payload_bytes"], left, strict=True)):
            ax.annotate(
                f"{100 * payload / total:.0f} % rows",
                (total, y),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
        ax.set_yticks(frame.index, frame["caches"])
        ax.invert_yaxis()
        ax.tick_params(axis="y", length=0)
        ax.annotate(
            name, (0, 1), xycoords="axes fraction", xytext=(0, 2), textcoords="offset points", weight="bold"
        )
    end = max(int(frame[[p[0] for p in parts]].sum(axis=1).max()) for _, frame in frames)
    for ax in axes[:, 0]:
        bytes_axis(ax, round(end * 1.13))
    axes[-1, 0].set_xlabel("bytes of one block (KiB)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3)
    first: Axes = axes[0, 0]
    return first
