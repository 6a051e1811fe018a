"""Which of the six layouts can hold a model's groups, and which one everyone can read.

Layers outermost, groups share regions: the k-th layer of every group lives in the
k-th region, so all pages need one size.  Blocks outermost, groups overlay inside
the block and pages are free::

    bytes per block = page_bytes * layers of the deepest group    (layers outermost)
    bytes per block = bytes of the largest group                  (blocks outermost)

Source: vLLM PR 51718 and RFC 42082 (the default LBNHC, the constraints).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvslab.errors import InputError, RefusedError
from kvslab.generations.standard import pack
from kvslab.groups import CacheGroup
from kvslab.layouts.axes import LAYOUTS, AxisLayout, layout_named
from kvslab.slab import SlabLayout, pack_ranks

DEFAULT_LAYOUT = "LBNHC"
"""What is taken where nobody has a preference."""
BLOCK_OUTERMOST = tuple(name for name, layout in LAYOUTS.items() if layout.is_block_outermost)
"""Names of the layouts in which a block's bytes stand together."""


def check_expressible(layout: AxisLayout, groups: Sequence[CacheGroup], *, num_heads: int = 1) -> None:
    """Refuse groups that a layout cannot hold.

    * Layers outermost: groups share regions, layer by layer of equal rank, so with
      several groups all pages need one size.
    * Heads outside the page (LHBNC, BHLNC): a page is no single piece, so with
      several heads it can have neither padding nor a second size.

    Args:
        layout: The layout.
        groups: The cache groups.
        num_heads: Heads that every layer stores apart.

    Raises:
        RefusedError: It cannot; the message names the layout and the pages.

    Source: vLLM RFC 42082, "layout constraints for shared tensors".
    """
    pages = sorted({page for group in groups for page in group.page_bytes})
    shown = ", ".join(f"{page:,}" for page in pages)
    if len(pages) > 1 and len(groups) > 1 and not layout.is_block_outermost:
        raise RefusedError(
            f"layout {layout.name} keeps layers outermost: got {len(groups)} groups with pages of {shown}"
            f" bytes, need one page size, or blocks outermost ({', '.join(BLOCK_OUTERMOST)})"
        )
    if num_heads == 1 or layout.is_block_compact:
        return
    if len(pages) > 1:
        raise RefusedError(
            f"layout {layout.name} keeps {num_heads} heads outside the page: got pages of {shown} bytes,"
            " need one page size"
        )
    for group in groups:
        for layer, page in zip(group.layers, group.page_bytes, strict=True):
            if page != layer.spec.payload_bytes:
                raise RefusedError(
                    f"layout {layout.name} keeps {num_heads} heads outside the page: layer {layer.name!r} has"
                    f" {layer.spec.payload_bytes:,} bytes of payload in a page of {page:,}, need both equal"
                )


def lay_out_axes(layout: AxisLayout, groups: Sequence[CacheGroup], *, num_heads: int = 1) -> SlabLayout:
    """The slab of some groups in a layout.

    Blocks outermost cost the same bytes a block as `overlay`: the largest group.
    Layers outermost cost a page for each rank of the deepest group.

    Raises:
        RefusedError: The layout cannot express the groups.
    """
    check_expressible(layout, groups, num_heads=num_heads)
    return pack(groups) if layout.is_block_outermost else pack_ranks(groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPreference:
    """What one attention backend or connector can read.

    Args:
        who: Its name, for messages.
        accepts: Names of layouts, the best first.

    Raises:
        InputError: It accepts none, or an unknown one.
    """

    who: str
    accepts: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.accepts:
            raise InputError(f"accepts of {self.who}", self.accepts, "at least one layout")
        for name in self.accepts:
            layout_named(name)


def choose_layout(
    preferences: Iterable[LayoutPreference], groups: Sequence[CacheGroup], *, num_heads: int = 1
) -> AxisLayout:
    """One layout that everyone accepts and that can express the groups.

    The first preference has the most say: its best layout wins among those that
    remain.  Without a preference LBNHC is taken, or BLHNC where that cannot express
    the groups.

    Raises:
        RefusedError: No layout is accepted by all, or none of those can express the
            groups; nobody's wish is dropped in silence.

    >>> wishes = [
    ...     LayoutPreference(who="flashinfer", accepts=("LBHNC", "BLHNC")),
    ...     LayoutPreference(who="connector", accepts=("BLHNC", "BLNHC")),
    ... ]
    >>> choose_layout(wishes, ()).name
    'BLHNC'
    """
    wishes = tuple(preferences) or (LayoutPreference(who="default", accepts=(DEFAULT_LAYOUT, "BLHNC")),)
    common = [name for name in wishes[0].accepts if all(name in wish.accepts for wish in wishes)]
    if not common:
        said = "; ".join(f"{wish.who} accepts {', '.join(wish.accepts)}" for wish in wishes)
        raise RefusedError(f"no layout is accepted by all: {said}")
    reasons = []
    for name in common:
        try:
            check_expressible(LAYOUTS[name], groups, num_heads=num_heads)
        except RefusedError as error:
            reasons.append(str(error))
        else:
            return LAYOUTS[name]
    raise RefusedError(f"no layout that is accepted by all can hold the groups: {'; '.join(reasons)}")
