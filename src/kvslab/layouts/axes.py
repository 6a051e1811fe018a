"""The six standard layouts: one cache, the same five axes, six orders in memory.

A cache has the logical shape `[L, B, H, N, C]`: layers, blocks, heads, rows of one
page, content bytes of one row and head.  A layout is the order in which the axes
are nested, outermost first, and an address is linear in the coordinates::

    address = offset + l * layer + b * block + h * head + n * row + c

A stride is what lies inside its axis, or more where it is fixed: a slab fixes the
block stride, a shared region the layer stride, an alignment the page.

Which of them can hold a model's groups is the matter of `kvslab.layouts.choice`.

Source: vLLM PR 51718 and RFC 42082.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvslab.errors import InputError, LayoutError
from kvslab.intmath import checked_int

AXES = "LBHNC"
"""The axes: layers, blocks, heads, rows of a page, content bytes of a row and head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisLayout:
    """An order of the five axes in memory.

    Args:
        name: The axes, outermost first, e.g. `BLHNC`.

    >>> layout_named("LHBNC").is_block_compact
    False
    """

    name: str

    @property
    def is_block_outermost(self) -> bool:
        """Whether all bytes of one block stand together, so that groups can overlay."""
        return self.name[0] == "B"

    @property
    def is_layer_outermost(self) -> bool:
        """Whether every layer has a region of its own that holds all blocks."""
        return self.name[0] == "L"

    @property
    def is_block_compact(self) -> bool:
        """Whether one layer's page of one block is contiguous, with no head outside it."""
        return self.name.index("H") > max(self.name.index("L"), self.name.index("B"))


LAYOUTS: Mapping[str, AxisLayout] = {
    name: AxisLayout(name=name) for name in ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
}
"""The six layouts by name."""


def layout_named(name: str) -> AxisLayout:
    """Look up a layout.

    Raises:
        InputError: There is none of that name.
    """
    if name not in LAYOUTS:
        raise InputError("layout", name, f"one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """The logical shape `[L, B, H, N, C]` of layers that agree in it.

    Args:
        num_layers: L, layers.
        num_blocks: B, blocks.
        num_heads: H, heads (or planes of heads) that are stored apart.
        rows_per_page: N, rows of one page.
        content_bytes: C, bytes of one row of one head.

    Raises:
        InputError: A size is no positive integer.
    """

    num_layers: int
    num_blocks: int
    num_heads: int = 1
    rows_per_page: int
    content_bytes: int

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_blocks", "num_heads", "rows_per_page", "content_bytes"):
            checked_int(name, getattr(self, name))

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """`(L, B, H, N, C)`."""
        return (self.num_layers, self.num_blocks, self.num_heads, self.rows_per_page, self.content_bytes)

    @property
    def payload_bytes(self) -> int:
        """Bytes of one page that rows use, `H * N * C`."""
        return self.num_heads * self.rows_per_page * self.content_bytes

    def with_planes(self, num_planes: int = 2) -> "CacheShape":
        """Store parts of the content as head groups of their own: keys apart from values.

        `[.., H, N, C]` becomes `[.., num_planes * H, N, C / num_planes]`; plane `p` of
        head `h` is head `p * H + h`.  With one head and the order HNC a layer is then
        the familiar `[B, 2, N, C / 2]`.

        Raises:
            InputError: The content does not divide into that many planes.

        >>> CacheShape(num_layers=1, num_blocks=4, rows_per_page=16, content_bytes=256).with_planes().sizes
        (1, 4, 2, 16, 128)
        """
        checked_int("num_planes", num_planes)
        if self.content_bytes % num_planes:
            raise InputError("num_planes", num_planes, f"a divisor of {self.content_bytes:,} content bytes")
        return CacheShape(
            num_layers=self.num_layers,
            num_blocks=self.num_blocks,
            num_heads=self.num_heads * num_planes,
            rows_per_page=self.rows_per_page,
            content_bytes=self.content_bytes // num_planes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisStrides:
    """Byte strides of one shape in one layout; built by `stride_axes`.

    Args:
        layout: The order of the axes.
        shape: The logical shape.
        strides: Bytes from one coordinate to the next, in the order L, B, H, N, C.
        offset: Address of coordinate (0, 0, 0, 0, 0).
        extent_bytes: Bytes from `offset` to the end, padding included.
    """

    layout: AxisLayout
    shape: CacheShape
    strides: tuple[int, int, int, int, int]
    offset: int
    extent_bytes: int

    @property
    def layer_stride(self) -> int:
        """Bytes from one layer's page to the next layer's, same block."""
        return self.strides[0]

    @property
    def block_stride(self) -> int:
        """Bytes from one block's page to the next block's, same layer."""
        return self.strides[1]

    def address(self, layer: int, block: int, head: int = 0, row: int = 0, byte: int = 0) -> int:
        """Address of one content byte.

        Raises:
            InputError: A coordinate is outside the shape.
        """
        at = (layer, block, head, row, byte)
        for axis, i, size in zip(AXES, at, self.shape.sizes, strict=True):
            if not 0 <= i < size:
                raise InputError(f"coordinate {axis}", i, f"0 to {size - 1:,}")
        return self.offset + sum(i * stride for i, stride in zip(at, self.strides, strict=True))

    def coordinate(self, address: int) -> tuple[int, int, int, int, int]:
        """The coordinate `(l, b, h, n, c)` at an address: the inverse of `address`.

        Raises:
            LayoutError: The address is padding, or outside the tensor.
        """
        rest = address - self.offset
        found = dict.fromkeys(AXES, 0)
        for axis in self.layout.name:
            i = AXES.index(axis)
            found[axis], rest = divmod(rest, self.strides[i])
            if not 0 <= found[axis] < self.shape.sizes[i]:
                raise LayoutError(
                    f"byte {address:,} holds no content: axis {axis} got {found[axis]:,},"
                    f" need 0 to {self.shape.sizes[i] - 1:,}"
                )
        return (found["L"], found["B"], found["H"], found["N"], found["C"])


def stride_axes(
    layout: AxisLayout,
    shape: CacheShape,
    *,
    offset: int = 0,
    page_bytes: int | None = None,
    layer_stride: int | None = None,
    block_stride: int | None = None,
) -> AxisStrides:
    """Nest the axes of a shape in the order of a layout.

    Args:
        layout: The order.
        shape: The logical shape `[L, B, H, N, C]`.
        offset: Address of the first byte.
        page_bytes: Bytes from one page to the next, payload plus padding.
        layer_stride: A fixed layer stride, bytes.
        block_stride: A fixed block stride, bytes, e.g. that of a slab.

    Raises:
        LayoutError: A fixed stride is below what lies inside its axis, or a page is
            padded that the layout does not keep in one piece.

    >>> shape = CacheShape(num_layers=2, num_blocks=3, rows_per_page=64, content_bytes=68)
    >>> stride_axes(layout_named("BLHNC"), shape, page_bytes=4608, block_stride=1_228_800).strides
    (4608, 1228800, 4352, 68, 1)
    """
    checked_int("offset", offset, minimum=0)
    page = shape.payload_bytes if page_bytes is None else page_bytes
    if page < shape.payload_bytes:
        raise LayoutError(f"page_bytes: got {page:,}, need at least the payload of {shape.payload_bytes:,}")
    compact = layout.is_block_compact or shape.num_heads == 1
    if page != shape.payload_bytes and not compact:
        raise LayoutError(
            f"layout {layout.name} scatters a page over {shape.num_heads} heads: got a page of {page:,} bytes"
            f" with {shape.payload_bytes:,} of payload, need both equal"
        )
    fixed = {"L": layer_stride, "B": block_stride}
    strides: dict[str, int] = {}
    inside = 1
    # A page is complete once every axis of [H, N, C] with more than one index is inside.
    outside_page = "LB" if layout.is_block_compact else "LBH" if compact else ""
    for axis in reversed(layout.name):
        if axis in outside_page:
            inside = max(inside, page)
        wanted = fixed.get(axis)
        if wanted is not None and wanted < inside:
            name = {"L": "layer_stride", "B": "block_stride"}[axis]
            raise LayoutError(
                f"layout {layout.name}: got {name} {wanted:,}, need at least the {inside:,} bytes inside it"
            )
        strides[axis] = inside if wanted is None else wanted
        inside = strides[axis] * shape.sizes[AXES.index(axis)]
    return AxisStrides(
        layout=layout,
        shape=shape,
        strides=(strides["L"], strides["B"], strides["H"], strides["N"], strides["C"]),
        offset=offset,
        extent_bytes=inside,
    )
