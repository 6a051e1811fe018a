"""The block pool: who owns a block, and which bytes of it may be touched.

Overlay puts the pages of different groups over the same bytes.  That is sound
exactly as long as a block has one owner, so the pool keeps one for every block and
refuses everything else: taking a block that has an owner, using or freeing one
that has none or another, the null block, an id from elsewhere.

An owner is a group, or a lockstep set of groups that share their block ids.

Source: vLLM PR 47574 and PR 35219 (blocks that change their group keep old bytes).
"""

from collections.abc import Iterable, Sequence
from typing import NoReturn

from kvslab.errors import InputError, OwnershipError, PoolFullError
from kvslab.intmath import checked_int
from kvslab.memory.spans import PageAddress, Span, page_addresses, page_spans
from kvslab.plan import Plan

NULL_BLOCK = 0
"""The block that is never handed out; padding entries of a block table point at it."""

# A block's entry in the table is its owner, or what is known of a free one.
_NEVER_OWNED = -1


def _freed_by(owner: int) -> int:
    """The entry of a free block that this owner had last; its own inverse."""
    return -2 - owner


class BlockPool:
    """Blocks of a plan, each free or owned by one group.

    The blocks freed last are handed out first.  A refused call changes nothing.

    Args:
        plan: The plan; its `num_blocks` counts the null block.

    >>> from kvslab.generations import generation_named
    >>> from kvslab.models import load_layers
    >>> slab = generation_named("overlay").lay_out(load_layers("deepseek-v4-flash"))
    >>> pool = BlockPool(Plan(slab=slab, budget_bytes=10 * slab.block_stride))
    >>> pool.allocate(0, 2)
    (1, 2)
    >>> pool.free(1, [2])
    Traceback (most recent call last):
    kvslab.errors.OwnershipError: block 2: group 1 cannot free it, group 0 owns it
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.pages = page_addresses(plan)
        self.num_blocks = plan.num_blocks
        self._owners = plan.slab.owners
        self._labels = [_label(owner) for owner in self._owners]
        self._owner_of_group = {group_id: i for i, owner in enumerate(self._owners) for group_id in owner}
        self._table = [_NEVER_OWNED] * self.num_blocks
        self._free = list(range(self.num_blocks - 1, NULL_BLOCK, -1))

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated."""
        return len(self._free)

    def can_allocate(self, num_blocks: int) -> bool:
        """Whether `allocate` of that many blocks would succeed."""
        return num_blocks <= len(self._free)

    def owner_of(self, block_id: int) -> tuple[int, ...]:
        """Group ids that own a block; none where it is free or the null block.

        Raises:
            OwnershipError: The block is not of this pool.
        """
        owner = self._table[self._known(block_id)]
        return () if owner < 0 else self._owners[owner]

    def allocate(self, group_id: int, num_blocks: int = 1) -> tuple[int, ...]:
        """Take free blocks for a group.

        Raises:
            InputError: There is no such group, or the number is below 0.
            PoolFullError: There are fewer free blocks.
        """
        owner = self._owner_id(group_id)
        free, table = self._free, self._table
        if num_blocks == 1 and free and num_blocks is not True:  # the way that decoding takes, block by block
            block_id = free.pop()
            table[block_id] = owner
            return (block_id,)
        checked_int("num_blocks", num_blocks, minimum=0)
        if num_blocks > len(free):
            raise PoolFullError(f"{self._labels[owner]}: got {len(free):,} free blocks, need {num_blocks:,}")
        rest = len(free) - num_blocks
        taken = free[rest:]
        del free[rest:]
        taken.reverse()
        for block_id in taken:
            table[block_id] = owner
        return tuple(taken)

    def claim(self, group_id: int, block_id: int) -> None:
        """Take one particular block for a group, in time linear in the free blocks.

        Raises:
            OwnershipError: It has an owner (be it this group), is the null block, or
                is not of this pool.
        """
        owner = self._owner_id(group_id)
        holder = self._table[self._known(block_id)]
        if block_id == NULL_BLOCK:
            raise OwnershipError(
                f"block {block_id}: {self._labels[owner]} cannot take it, it is the null block of the pool"
            )
        if holder >= 0:
            raise OwnershipError(
                f"block {block_id}: {self._labels[owner]} cannot take it, {self._labels[holder]} owns it"
            )
        self._free.remove(block_id)
        self._table[block_id] = owner

    def free(self, group_id: int, block_ids: Iterable[int]) -> None:
        """Give blocks back.

        Raises:
            OwnershipError: A block is not owned by the group, is the null block, is
                not of this pool, or stands there twice.
        """
        ids = tuple(block_ids)
        owner, table, size = self._owner_id(group_id), self._table, self.num_blocks
        freed = _freed_by(owner)
        for i, block_id in enumerate(ids):
            if type(block_id) is not int or not 0 <= block_id < size or table[block_id] != owner:
                for earlier in ids[:i]:
                    table[earlier] = owner
                if block_id in ids[:i]:
                    raise OwnershipError(
                        f"block {block_id}: {self._labels[owner]} cannot free it twice in one call"
                    )
                self._refuse(owner, block_id, "free")
            table[block_id] = freed
        self._free.extend(ids)

    def check(self, group_id: int, block_ids: Iterable[int], verb: str = "use") -> None:
        """Refuse blocks that a group (or its lockstep set) does not own.

        Raises:
            InputError: There is no such group.
            OwnershipError: The message names the block and both owners.
        """
        owner, table, size = self._owner_id(group_id), self._table, self.num_blocks
        for block_id in block_ids:
            if type(block_id) is not int or not 0 <= block_id < size or table[block_id] != owner:
                self._refuse(owner, block_id, verb)

    def zero_spans(
        self, group_id: int, block_id: int, layers: Sequence[str] | None = None
    ) -> tuple[Span, ...]:
        """The bytes to clear when a group takes over a block: its own payload, nothing else.

        Args:
            group_id: The new owner; it must own the block already.
            block_id: The block.
            layers: Clear these layers only, e.g. those of
                `kvslab.memory.hazards.layers_to_zero`; all of the group otherwise.

        Raises:
            InputError: A layer is not of this group.
            OwnershipError: The group does not own the block.
        """
        self.check(group_id, (block_id,), verb="clear")
        members = [layer.name for layer in self.plan.slab.groups[group_id].layers]
        names = members if layers is None else list(layers)
        pages = [self._page(name) for name in names]
        for page in pages:
            if page.group_id != group_id:
                raise InputError("layers", page.layer.name, f"a layer of group {group_id}")
        return page_spans(pages, (block_id,))

    def transfer_spans(self, layers: Sequence[str], block_ids: Sequence[int]) -> tuple[Span, ...]:
        """The bytes that a connector may move: payload of these layers in these blocks.

        Args:
            layers: Names, all of one owner (a block id means nothing to another one).
            block_ids: Blocks that this owner owns.

        Raises:
            InputError: A layer is unknown, or a layer or block stands there twice.
            OwnershipError: Two layers have different owners, or a block is not theirs.
        """
        pages = [self._page(name) for name in layers]
        for page in pages[1:]:
            one, other = (self._owner_of_group[p.group_id] for p in (pages[0], page))
            if one != other:
                raise OwnershipError(
                    f"layers {pages[0].layer.name!r} of {self._labels[one]} and {page.layer.name!r} of"
                    f" {self._labels[other]} share no block id: move them by themselves"
                )
        for page in pages[:1]:
            self.check(page.group_id, block_ids, verb="move")
        return page_spans(pages, block_ids)

    def _page(self, name: str) -> PageAddress:
        if name not in self.pages:
            raise InputError("layers", name, "the name of a layer of the plan")
        return self.pages[name]

    def _owner_id(self, group_id: int) -> int:
        if type(group_id) is not int or group_id not in self._owner_of_group:
            raise InputError("group_id", group_id, f"0 to {len(self._owner_of_group) - 1}")
        return self._owner_of_group[group_id]

    def _known(self, block_id: object) -> int:
        if isinstance(block_id, bool) or not isinstance(block_id, int) or not 0 <= block_id < self.num_blocks:
            raise OwnershipError(
                f"block {block_id!r} is not of this pool, whose ids are 0 to {self.num_blocks - 1:,}"
            )
        return block_id

    def _refuse(self, owner: int, block_id: object, verb: str) -> NoReturn:
        me, known = self._labels[owner], self._known(block_id)
        entry = self._table[known]
        if known == NULL_BLOCK:
            why = "it is the null block of the pool"
        elif entry >= 0:
            why = f"{self._labels[entry]} owns it"
        elif entry == _NEVER_OWNED:
            why = "it is free, nobody owned it yet"
        else:
            why = f"it is free, {self._labels[_freed_by(entry)]} owned it last"
        raise OwnershipError(f"block {known}: {me} cannot {verb} it, {why}")


def _label(owner: tuple[int, ...]) -> str:
    return f"group {owner[0]}" if len(owner) == 1 else f"lockstep groups {'+'.join(map(str, owner))}"
