"""`bucketed`: vLLM 0.23 to 0.26, the baseline of PR 48993.

Layers fall into one bucket per page size, and the k-th layers of all groups in a
bucket share a slot::

    stride = sum over page sizes of (page size * most layers of it in any group)

For that to work every later group's page is first raised to the next page size
that the first group has: an 8,192-byte state in an 8,704-byte page costs little,
in a 32,768-byte page it costs four times its size.

Source: vLLM PR 44454; behaviour of vLLM 0.26.0.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from kvslab.errors import RefusedError
from kvslab.generations.base import Generation
from kvslab.groups import CacheGroup, group_latent_stack
from kvslab.layers import CacheLayer
from kvslab.slab import SlabLayout, pack_slots


def raised_page(layer: CacheLayer, first_pages: Sequence[int]) -> int:
    """The smallest page size of the first group, which are ascending, that holds the layer's page.

    Raises:
        RefusedError: None is large enough.
    """
    at = bisect_left(first_pages, layer.spec.page_bytes)
    if at == len(first_pages):
        raise RefusedError(
            f"layer {layer.name!r} has a page of {layer.spec.page_bytes:,} bytes,"
            f" larger than every page of the first group (largest {first_pages[-1]:,})"
        )
    return first_pages[at]


def group(layers: Sequence[CacheLayer]) -> tuple[CacheGroup, ...]:
    """Group a latent stack, with pages raised to the first group's sizes.

    Raises:
        RefusedError: A page fits none of them, or a later group's page sizes have
            unequal layer counts.
    """
    groups = group_latent_stack(layers, raised_page)
    for later in groups[1:]:
        counts = Counter(later.page_bytes)
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"{count} of {page:,} bytes" for page, count in counts.items())
            raise RefusedError(
                f"group of layer {later.layers[0].name!r}: got {shown}, need equal layer counts per page size"
            )
    return groups


def pack(groups: Sequence[CacheGroup]) -> SlabLayout:
    """Lay out one bucket per page size, in order of first appearance."""
    depth: dict[int, int] = {}
    for members in groups:
        for page, count in Counter(members.page_bytes).items():
            depth[page] = max(depth.get(page, 0), count)
    return pack_buckets(groups, depth, block_outermost=True)


def pack_buckets(groups: Sequence[CacheGroup], depth: dict[int, int], *, block_outermost: bool) -> SlabLayout:
    """Lay out `depth[page]` slots of each page size; the k-th layers share the k-th slot."""
    first_slot: dict[int, int] = {}
    slot_bytes: list[int] = []
    for page, count in depth.items():
        first_slot[page] = len(slot_bytes)
        slot_bytes += [page] * count
    slot_of = []
    for members in groups:
        used: Counter[int] = Counter()
        row = []
        for page in members.page_bytes:
            row.append(first_slot[page] + used[page])
            used[page] += 1
        slot_of.append(row)
    return pack_slots(groups, slot_of, slot_bytes, block_outermost=block_outermost)


BUCKETED = Generation(
    name="bucketed",
    releases="vLLM 0.23 to 0.26 (0.26.0 was run)",
    rule="every page size keeps as many slots as the group that has most layers of it",
    group=group,
    pack=pack,
    price="tuple",
    formula="legacy",
)
"""vLLM 0.23 to 0.26: one bucket of slots for each page size of the first group."""
