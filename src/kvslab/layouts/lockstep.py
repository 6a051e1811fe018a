"""Lockstep sets: groups that share their block ids, and so must not overlay.

Overlay is legal because a block id belongs to one group at a time.  Groups of a
context-parallel pair break that: block `b` of the one *is* block `b` of the other,
and both are live.  Inside such a set the groups stand side by side::

    bytes per block of the set = sum of the groups' bytes
    block stride               = max over owners of that

where an *owner* is a lockstep set, or a group in no set.  A request that holds `n`
blocks of the set holds them for every group in it at once.
"""

from collections.abc import Sequence

from kvslab.errors import InputError, LayoutError
from kvslab.slab import SlabLayout


def keep_apart(slab: SlabLayout, sets: Sequence[Sequence[int]]) -> SlabLayout:
    """Move the groups of each lockstep set to bytes of their own.

    The groups of a set keep their inner order and follow one another in order of
    their ids; a group in no set does not move.

    Args:
        slab: A slab in which every group is packed from byte 0.
        sets: Group ids, two or more a set.

    Returns:
        The slab with `block_stride = max over owners of sum(group_bytes)`.

    Raises:
        InputError: A set has fewer than two groups.
        LayoutError: The slab shares slots, or a group is unknown or in two sets.

    >>> from kvslab.generations import generation_named
    >>> from kvslab.models import load_layers
    >>> slab = generation_named("overlay").lay_out(load_layers("deepseek-v4-pro"))
    >>> keep_apart(slab, [(1, 2)]).block_stride == 1_015_808 + 983_040
    True
    """
    lockstep = tuple(tuple(sorted(members)) for members in sets)
    for members in lockstep:
        if len(members) < 2:
            raise InputError("lockstep", list(members), "two or more group ids a set")
    if slab.slots or not slab.block_outermost:
        raise LayoutError(
            f"lockstep sets need groups packed from byte 0, got a slab of {len(slab.slots)} shared slots"
        )
    extents = [
        max(offset + page for offset, page in zip(row, group.page_bytes, strict=True))
        for group, row in zip(slab.groups, slab.offsets, strict=True)
    ]
    shift = [0] * len(slab.groups)
    ends = list(extents)
    for members in lockstep:
        end = 0
        for group_id in members:
            if not 0 <= group_id < len(slab.groups):
                raise LayoutError(
                    f"lockstep set {members}: got group {group_id}, need one of 0 to {len(slab.groups) - 1}"
                )
            shift[group_id] = end
            end += extents[group_id]
            ends[group_id] = end
    return SlabLayout(
        groups=slab.groups,
        offsets=tuple(tuple(offset + shift[i] for offset in row) for i, row in enumerate(slab.offsets)),
        block_stride=max(ends),
        lockstep=lockstep,
    )


def blocks_per_owner(slab: SlabLayout, blocks: Sequence[int]) -> tuple[int, ...]:
    """Blocks that each owner takes, from the blocks that each group needs.

    Groups of a lockstep set share their block ids, so the set takes as many as its
    most demanding group.

    Args:
        slab: The slab, with or without lockstep sets.
        blocks: Blocks per group, e.g. from `kvslab.capacity.blocks_per_request`.

    Raises:
        InputError: There is not one number per group.
    """
    if len(blocks) != len(slab.groups):
        raise InputError("blocks", len(blocks), f"one number for each of the {len(slab.groups)} groups")
    return tuple(max(blocks[i] for i in owner) for owner in slab.owners)
