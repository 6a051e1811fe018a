"""`padded`: vLLM up to 0.22, before PR 44454.

Groups are those of `bucketed`.  Every page size of the first group gets the same
number of slots, that of the deepest group::

    stride = T * sum of the first group's distinct page sizes

with T the largest number of layers of one page size in any group.  Each slot is
a region of its own: pages of one block do not stand together.

Source: vLLM PR 44454 (what it replaced); behaviour of vLLM 0.22.1.
"""

from collections.abc import Sequence

from kvslab.errors import RefusedError
from kvslab.generations.base import Generation
from kvslab.generations.bucketed import group, pack_buckets
from kvslab.groups import CacheGroup
from kvslab.slab import SlabLayout

MOST_SLOTS = 200_000
"""A stack of 20,000 layers could ask for a hundred million."""


def pack(groups: Sequence[CacheGroup]) -> SlabLayout:
    """Lay out T slots of every page size; the first group has them all, unless a stage lacks it.

    Raises:
        RefusedError: That would be more than `MOST_SLOTS`.
    """
    num_slots = max(members.num_tuples for members in groups)
    depth = dict.fromkeys((page for members in groups for page in members.page_bytes), num_slots)
    if num_slots * len(depth) > MOST_SLOTS:
        raise RefusedError(
            f"{num_slots:,} slots of each of {len(depth):,} page sizes: got {num_slots * len(depth):,} slots,"
            f" need at most {MOST_SLOTS:,}"
        )
    return pack_buckets(groups, depth, block_outermost=False)


PADDED = Generation(
    name="padded",
    releases="vLLM 0.22 and before (0.22.1 was run)",
    rule="every page size of the first group gets as many slots as the deepest group has layers of one size",
    group=group,
    pack=pack,
    price="tuple",
    formula="legacy",
    packs_other_hybrids=False,
)
"""vLLM up to 0.22: every group gets as many slots as the deepest."""
