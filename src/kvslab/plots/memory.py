"""Figures of memory: the six layouts as addresses, and a pool with its owners.

Colours are Okabe and Ito's; a colour never stands alone, every box carries its
number.
"""

from collections.abc import Iterable, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Rectangle

from kvslab.errors import InputError, LayoutError
from kvslab.layouts import LAYOUTS, CacheShape, stride_axes
from kvslab.memory import NULL_BLOCK, BlockPool, Span
from kvslab.plots.style import BOUND, COLOURS, HATCH, INK, bytes_axis, use_style
from kvslab.tables import role_of

LAYER_COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00")
MAX_CELLS = 64


def layouts_figure(shape: CacheShape, *, page_bytes: int | None = None, ax: Axes | None = None) -> Axes:
    """Draw where the six layouts put one small cache: one line a layout, one box a row of one head.

    Boxes stand in address order.  The colour is the layer, the large number the
    block, the small ones head and row; padding is hatched.

    Args:
        shape: `[L, B, H, N, C]` with at most 64 boxes `L * B * H * N` and 6 layers.
        page_bytes: A padded page; a layout that refuses it stays empty and says so.
        ax: Where to draw; a new figure otherwise.

    Raises:
        InputError: The shape is too large to draw.
    """
    num_cells = shape.num_layers * shape.num_blocks * shape.num_heads * shape.rows_per_page
    if num_cells > MAX_CELLS or shape.num_layers > len(LAYER_COLOURS):
        need = f"at most {MAX_CELLS} boxes L * B * H * N and {len(LAYER_COLOURS)} layers"
        raise InputError("shape", shape.sizes, need)
    use_style()
    if ax is None:
        _, ax = plt.subplots(figsize=(7.6, 3.6))
    widest = 0
    for y, layout in enumerate(LAYOUTS.values()):
        try:
            strides = stride_axes(layout, shape, page_bytes=page_bytes)
        except LayoutError:
            ax.text(0, y, " refused: a padded page in pieces", va="center", fontsize=9, color=BOUND)
            continue
        widest = max(widest, strides.extent_bytes)
        ax.add_patch(
            Rectangle(
                (0, y - 0.36),
                strides.extent_bytes,
                0.72,
                facecolor="none",
                edgecolor=BOUND,
                hatch=HATCH,
                lw=0.5,
            )
        )
        for at in _cells(shape):
            layer, block, head, row = at
            start = strides.address(layer, block, head, row)
            ax.add_patch(
                Rectangle(
                    (start, y - 0.36),
                    shape.content_bytes,
                    0.72,
                    facecolor=LAYER_COLOURS[layer],
                    edgecolor="white",
                    lw=0.8,
                )
            )
            middle = start + shape.content_bytes / 2
            ax.text(middle, y - 0.1, str(block), ha="center", va="center", fontsize=9, color="black")
            ax.text(middle, y + 0.2, f"{head}.{row}", ha="center", va="center", fontsize=6, color="black")
    for layer in range(shape.num_layers):
        ax.annotate(
            f"layer {layer}",
            ((layer + 0.5) / shape.num_layers, 1.02),
            xycoords="axes fraction",
            ha="center",
            color="black",
            fontsize=9,
            bbox={"facecolor": LAYER_COLOURS[layer], "edgecolor": "none", "pad": 2},
        )
    ax.set_yticks(range(len(LAYOUTS)), list(LAYOUTS))
    ax.set_ylim(len(LAYOUTS) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(0, widest)
    ax.set_xlabel("address (bytes); in a box: block, then head.row")
    return ax


def _cells(shape: CacheShape) -> Iterable[tuple[int, int, int, int]]:
    for layer in range(shape.num_layers):
        for block in range(shape.num_blocks):
            for head in range(shape.num_heads):
                for row in range(shape.rows_per_page):
                    yield layer, block, head, row


def _box(start: float, length: float, y: float) -> list[tuple[float, float]]:
    end = start + length
    return [(start, y - 0.36), (end, y - 0.36), (end, y + 0.36), (start, y + 0.36)]


def pool_figure(
    pool: BlockPool,
    spans: Sequence[Span] = (),
    *,
    first_block: int = 0,
    num_blocks: int = 8,
    ax: Axes | None = None,
) -> Axes:
    """Draw some blocks of a pool: the pages of each block's owner, and spans over them.

    Args:
        pool: The pool of a plan with blocks outermost.
        spans: Drawn as black lines at the foot of their block, e.g. from
            `BlockPool.zero_spans` or `BlockPool.transfer_spans`.
        first_block: First block drawn.
        num_blocks: Blocks drawn.
        ax: Where to draw; a new figure otherwise.

    Raises:
        InputError: The plan keeps layers outermost: a block is no line of bytes there.
    """
    slab = pool.plan.slab
    if not slab.block_outermost:
        raise InputError("pool", "a plan with layers outermost", "a plan with blocks outermost")
    shown = range(first_block, min(first_block + num_blocks, pool.num_blocks))
    use_style()
    if ax is None:
        _, ax = plt.subplots(figsize=(7.6, 0.45 * len(shown) + 0.7))
    stride = slab.block_stride
    boxes: dict[str, list[list[tuple[float, float]]]] = {}
    for y in shown:
        ax.add_patch(Rectangle((0, y - 0.36), stride, 0.72, facecolor="none", edgecolor=BOUND, lw=0.6))
        owner = pool.owner_of(y)
        for page in slab.pages:
            if page.group_id in owner:
                colour = COLOURS[role_of(page.layer)]
                boxes.setdefault(colour, []).append(_box(page.offset, page.payload_bytes, y))
        text = "null block" if y == NULL_BLOCK else "free"
        if owner:
            text = f"group {'+'.join(map(str, owner))}"
        ax.annotate(text, (stride, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
    for colour, drawn in boxes.items():
        ax.add_collection(PolyCollection(drawn, facecolors=colour, edgecolors="white", linewidths=0.2))
    lines = [
        (start - block * stride, min(end, (block + 1) * stride) - block * stride, block)
        for span in spans
        for start, end in span.ranges
        for block in range(start // stride, (end - 1) // stride + 1)
        if block in shown
    ]
    for low, high, y in lines:
        ax.plot([max(low, 0), high], [y + 0.27, y + 0.27], color=INK, lw=3, solid_capstyle="butt")
    ax.set_yticks(list(shown), [f"{y:,}" for y in shown])
    ax.set_ylim(shown.stop - 0.5, shown.start - 0.5)
    bytes_axis(ax, stride)
    ax.set_ylabel("block id")
    ax.set_xlabel("byte in the block (KiB)")
    return ax
