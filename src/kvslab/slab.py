"""The slab: all the bytes of one block, and the place of every page in it.

A block belongs to one group at a time, so pages of different groups may share
bytes; pages of one group may not.  `SlabLayout` checks that when it is built:
there is no unsound slab to hold.

Two orders of memory exist.  *Block outermost*: a block's pages stand together and
block `b` starts at `b * block_stride`.  *Layer outermost*: each slot of the slab is
a region of its own that holds the slot of every block.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvslab.errors import LayoutError
from kvslab.groups import CacheGroup
from kvslab.layers import CacheLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSlot:
    """A range of the slab that holds at most one page of each group.

    Args:
        offset: First byte, from the start of the block.
        slot_bytes: Length.
    """

    offset: int
    slot_bytes: int

    @property
    def end(self) -> int:
        """First byte after the slot."""
        return self.offset + self.slot_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPage:
    """One layer's page in its block.

    Args:
        layer: The layer.
        group_id: Index of its group.
        offset: First byte, from the start of the block.
        page_bytes: Bytes that the page takes here.
    """

    layer: CacheLayer
    group_id: int
    offset: int
    page_bytes: int

    @property
    def end(self) -> int:
        """First byte after the page."""
        return self.offset + self.page_bytes

    @property
    def payload_bytes(self) -> int:
        """Bytes that rows use."""
        return self.layer.spec.payload_bytes

    @property
    def padding_bytes(self) -> int:
        """Bytes of the page that no row uses."""
        return self.page_bytes - self.layer.spec.payload_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabLayout:
    """Where every page of every group lies inside one block.

    Args:
        groups: The cache groups.
        offsets: Offset of each layer's page, in bytes, per group and layer.
        block_stride: Bytes of one block.
        slots: The shared slots, ascending, where the layout has them.
        block_outermost: Whether the pages of one block stand together in memory.
        lockstep: Sets of group ids that share their block ids, see `kvslab.layouts.lockstep`.

    Raises:
        LayoutError: Two pages of one group (or of one lockstep set) share a byte,
            a page ends past the stride, a slot would hold two layers of one
            group, or a group is in two lockstep sets.

    Source: the overlaid form is vLLM PR 48993's, the shared slots PR 44454's.

    >>> from kvslab import generation_named, load_layers
    >>> slab = generation_named("bucketed").lay_out(load_layers("deepseek-v4-pro", indexer="fp8"))
    >>> slab.block_stride, len(slab.groups), slab.offset_of["model.layers.2.attn"]
    (1308672, 5, 292864)
    """

    groups: tuple[CacheGroup, ...]
    offsets: tuple[tuple[int, ...], ...]
    block_stride: int
    slots: tuple[SharedSlot, ...] = ()
    block_outermost: bool = True
    lockstep: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if [len(group.layers) for group in self.groups] != [len(row) for row in self.offsets]:
            raise LayoutError("a slab needs one offset for each layer of each group")
        _prove_disjoint(((s.offset, s.end, "slot") for s in self.slots), self.block_stride)
        starts = [slot.offset for slot in self.slots]
        self._check_lockstep()
        for owner in self.owners:
            ranges = [
                (offset, offset + page, layer.name)
                for group_id in owner
                for layer, offset, page in zip(
                    self.groups[group_id].layers,
                    self.offsets[group_id],
                    self.groups[group_id].page_bytes,
                    strict=True,
                )
            ]
            _prove_disjoint(ranges, self.block_stride)
            if self.slots:
                self._prove_one_page_per_slot(ranges, starts)

    def _check_lockstep(self) -> None:
        seen: set[int] = set()
        for members in self.lockstep:
            for group_id in members:
                if not 0 <= group_id < len(self.groups) or group_id in seen:
                    raise LayoutError(
                        f"lockstep set {members}: got group {group_id}, need one of"
                        f" 0 to {len(self.groups) - 1} that is in no set yet"
                    )
                seen.add(group_id)

    @property
    def owners(self) -> tuple[tuple[int, ...], ...]:
        """Who can own a block, by group ids; a lockstep set is one owner, any other group one of its own."""
        set_of = {group_id: members for members in self.lockstep for group_id in members}
        return tuple(dict.fromkeys(set_of.get(i, (i,)) for i in range(len(self.groups))))

    def owner_id(self, group_id: int) -> int:
        """Index in `owners` of the one that this group is, or is part of."""
        return next(i for i, owner in enumerate(self.owners) if group_id in owner)

    def _owner_of(self, group_id: int) -> tuple[int, ...]:
        """The owner that this group is, or is part of; not looked up in `owners`, which is long."""
        return next((members for members in self.lockstep if group_id in members), (group_id,))

    def _prove_one_page_per_slot(self, ranges: Iterable[tuple[int, int, str]], starts: Sequence[int]) -> None:
        holder: dict[int, str] = {}
        for start, end, name in ranges:
            index = bisect_right(starts, start) - 1
            if index < 0 or end > self.slots[index].end:
                raise LayoutError(f"page of {name!r} at bytes {start:,} to {end:,} lies in no slot")
            if index in holder:
                raise LayoutError(
                    f"slot at {starts[index]:,} holds two layers of one group: {holder[index]!r}, {name!r}"
                )
            holder[index] = name

    @property
    def pages(self) -> Iterator[PlacedPage]:
        """Every page, group by group."""
        for group_id, (group, row) in enumerate(zip(self.groups, self.offsets, strict=True)):
            for layer, offset, page in zip(group.layers, row, group.page_bytes, strict=True):
                yield PlacedPage(layer=layer, group_id=group_id, offset=offset, page_bytes=page)

    @property
    def offset_of(self) -> dict[str, int]:
        """Byte offset of each layer's page in its block, by layer name."""
        return {page.layer.name: page.offset for page in self.pages}

    def unused_bytes(self, group_id: int) -> int:
        """Bytes of a block that no page covers while this group (or its lockstep set) owns it."""
        owner = self._owner_of(group_id)
        return self.block_stride - sum(self.groups[i].group_bytes for i in owner)

    def group_padding_bytes(self, group_id: int) -> int:
        """Bytes of a block that no row uses while this group (or its lockstep set) owns it."""
        owner = self._owner_of(group_id)
        return self.block_stride - sum(self.groups[i].payload_bytes for i in owner)

    @property
    def padding_bytes(self) -> int:
        """`group_padding_bytes` of one block of each owner, summed."""
        return sum(self.group_padding_bytes(owner[0]) for owner in self.owners)


def _prove_disjoint(ranges: Iterable[tuple[int, int, str]], block_stride: int) -> None:
    end_before, name_before = 0, "the block"
    for start, end, name in sorted(ranges):
        if start < end_before:
            raise LayoutError(
                f"pages overlap: {name_before!r} ends at byte {end_before:,}, {name!r} starts at {start:,}"
            )
        end_before, name_before = end, name
    if end_before > block_stride:
        raise LayoutError(
            f"{name_before!r} ends at byte {end_before:,}, past the block stride of {block_stride:,}"
        )


def _running_offsets(sizes: Iterable[int]) -> tuple[list[int], int]:
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += size
    return offsets, end


def pack_dense(groups: Sequence[CacheGroup]) -> SlabLayout:
    """Pack each group on its own from byte 0, in group order; the largest sets the stride."""
    packed = [_running_offsets(group.page_bytes) for group in groups]
    return SlabLayout(
        groups=tuple(groups),
        offsets=tuple(tuple(offsets) for offsets, _ in packed),
        block_stride=max(end for _, end in packed),
    )


def pack_slots(
    groups: Sequence[CacheGroup],
    slot_of: Sequence[Sequence[int]],
    slot_bytes: Sequence[int],
    *,
    block_outermost: bool,
) -> SlabLayout:
    """Lay slots end to end and put each page at the start of its slot.

    Args:
        groups: The cache groups.
        slot_of: Slot index of each layer, per group.
        slot_bytes: Length of each slot.
        block_outermost: Whether the slots of one block stand together in memory.
    """
    starts, end = _running_offsets(slot_bytes)
    return SlabLayout(
        groups=tuple(groups),
        offsets=tuple(tuple(starts[slot] for slot in row) for row in slot_of),
        block_stride=end,
        slots=tuple(SharedSlot(offset=a, slot_bytes=n) for a, n in zip(starts, slot_bytes, strict=True)),
        block_outermost=block_outermost,
    )


def pack_ranks(groups: Sequence[CacheGroup]) -> SlabLayout:
    """One slot per rank: the k-th layers of all groups share it; layer outermost."""
    depth = max(len(group.layers) for group in groups)
    slot_bytes = [max(g.page_bytes[k] for g in groups if k < len(g.layers)) for k in range(depth)]
    return pack_slots(groups, [range(len(g.layers)) for g in groups], slot_bytes, block_outermost=False)
