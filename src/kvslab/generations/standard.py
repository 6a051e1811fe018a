"""`standard`: vLLM 0.32, the standard layouts of PR 51718.

Packed stacks keep the idea of `overlay`: every group starts at byte 0 and the
largest one sets the stride::

    stride = max over groups of sum(page_bytes)

Two things are new.  Inside a block the layers of one spec stand together, in
order of first appearance, so one strided tensor carries all of them.  And groups
are cut by another rule (`group`), which no longer needs an MLA group to lead.

A stack that is not packed gets the layer-outermost layout LBNHC and the groups of
the other hybrids (`kvslab.groups.group_other_hybrid`).

Source: vLLM PR 51718; behaviour of vLLM 0.32.0 on the stacks in
`tests/data/planner_vectors.json.xz`, exact on all of them.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from kvslab.generations.base import Generation
from kvslab.groups import CacheGroup, chunk_size, classes_of, group_other_hybrid, own_pages
from kvslab.intmath import cdiv
from kvslab.layers import CacheLayer, FullHistory, LayerSpec, SlidingWindow
from kvslab.slab import SlabLayout


def uniform_type(layer: CacheLayer) -> tuple[object, ...]:
    """What layers of one bucket agree in.

    Full and MLA layers of one block size share a bucket; any other kind stands
    apart, by block size and retention.
    """
    spec = layer.spec
    kind = "full" if isinstance(spec.retention, FullHistory) else spec.kind
    return (kind, spec.block_size, spec.retention)


def group(layers: Sequence[CacheLayer]) -> tuple[CacheGroup, ...]:
    """Cut a packed stack into groups, buckets in order of first appearance.

    A bucket is *balanced* when its page sizes have equal layer counts; its count
    is then that number.  The floor is the largest count over balanced buckets
    with more than one page size.

    * One page size in the whole stack: the rule of the other hybrids.
    * With a floor: the depth `d >= floor` that pads the balanced counts least
      (ties the larger) cuts every balanced bucket into `ceil(count / d)` groups;
      unbalanced buckets stay whole.  A bucket with several page sizes is never
      cut, because its count is at most the floor; it keeps the order of the stack.
    * Without: only sliding-window buckets are cut, to at most
      `floor(anchor / page)` layers a group.  The anchor is the widest bucket in
      bytes, a window bucket counted at one layer.

    Raises:
        RefusedError: One page size, and the rule of the other hybrids refuses it.
    """
    if len({layer.spec.page_bytes for layer in layers}) == 1:
        return group_other_hybrid(layers)
    buckets = [own_pages(members) for members in classes_of(layers, uniform_type)]
    balanced = [bucket for bucket in buckets if _is_balanced(bucket)]
    floor = max((b.num_tuples for b in balanced if len(set(b.page_bytes)) > 1), default=0)
    if floor:
        others = [bucket.num_tuples for bucket in balanced]
        others.remove(floor)  # chunk_size counts its first argument once by itself
        depth = chunk_size(floor, others)
        num_groups = [cdiv(b.num_tuples, depth) if _is_balanced(b) else 1 for b in buckets]
    else:
        anchor = max(max(b.page_bytes) if _is_window(b) else b.group_bytes for b in buckets)
        num_groups = [
            cdiv(len(b.layers), anchor // max(b.page_bytes)) if _is_window(b) else 1 for b in buckets
        ]
    return tuple(
        own_pages(bucket.layers[i::k])
        for bucket, k in zip(buckets, num_groups, strict=True)
        for i in range(k)
    )


def _is_balanced(bucket: CacheGroup) -> bool:
    return len(set(Counter(bucket.page_bytes).values())) == 1


def _is_window(bucket: CacheGroup) -> bool:
    return isinstance(bucket.retention, SlidingWindow)


def pack(groups: Sequence[CacheGroup]) -> SlabLayout:
    """Pack each group on its own from byte 0, spec by spec in order of first appearance.

    A group still lists its layers in the order of the stack; only their places
    follow the specs.
    """
    return SlabLayout(
        groups=tuple(groups),
        offsets=tuple(_offsets_by_spec(members) for members in groups),
        block_stride=max(members.group_bytes for members in groups),
    )


def _offsets_by_spec(members: CacheGroup) -> tuple[int, ...]:
    rank: dict[LayerSpec, int] = {}
    for layer in members.layers:
        rank.setdefault(layer.spec, len(rank))
    places = sorted(range(len(members.layers)), key=lambda i: rank[members.layers[i].spec])
    starts = accumulate((members.page_bytes[i] for i in places), initial=0)
    offset_of = dict(zip(places, starts, strict=False))  # one start more: the group's end
    return tuple(offset_of[i] for i in range(len(members.layers)))


STANDARD = Generation(
    name="standard",
    releases="vLLM 0.32 (0.32.0 was run)",
    rule="the largest group, every group packed from byte 0 spec by spec",
    group=group,
    pack=pack,
    price="stride",
    formula="block_sum",
    group_packed=group,
)
"""vLLM 0.32: overlaid groups in the standard layouts, cut by a newer rule."""
