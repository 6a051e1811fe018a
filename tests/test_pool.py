"""Guards the silent bug that a block has two owners, or that a span touches a neighbour.

Both corrupt a cache without any error: the numbers that come out are merely wrong.
The oracle for histories is a shadow copy of every live byte; the oracle for spans is
a list with one entry for each byte of the allocation.
"""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvslab.errors import InputError, LayoutError, OwnershipError, PlanError, PoolFullError
from kvslab.generations import generation_named, standard
from kvslab.groups import own_pages
from kvslab.layers import CacheLayer
from kvslab.layouts import blocks_per_owner, keep_apart
from kvslab.memory import NULL_BLOCK, BlockPool, merge_ranges
from kvslab.memory.views import allocate
from kvslab.models import load_layers
from kvslab.plan import Plan
from kvslab.slab import SlabLayout, pack_dense
from memory_strategies import FULL, KEYS, LATENT, STATE, WINDOW, WINDOW_16, cache_groups, plans


def group_of(prefix, *specs):
    return own_pages(CacheLayer(name=f"{prefix}{i}", spec=spec) for i, spec in enumerate(specs))


def small_slab():
    """Three groups: 128, 96 and 48 bytes of a 128-byte block."""
    return standard.pack(
        [group_of("a", LATENT, KEYS, LATENT, KEYS), group_of("w", WINDOW, WINDOW), group_of("s", STATE)]
    )


def small_pool(num_blocks=6):
    slab = small_slab()
    return BlockPool(Plan(slab=slab, budget_bytes=num_blocks * slab.block_stride))


# --- ownership ---------------------------------------------------------------


def test_blocks_change_hands_only_through_the_free_list():
    pool = small_pool()
    first = pool.allocate(0, 3)
    assert NULL_BLOCK not in first and len(set(first)) == 3
    pool.free(0, first[1:2])
    assert pool.owner_of(first[1]) == ()
    (again,) = pool.allocate(2)
    assert again == first[1] and pool.owner_of(again) == (2,)
    assert pool.owner_of(first[0]) == (0,)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda p: p.claim(1, 1), "block 1: group 1 cannot take it, group 0 owns it"),
        (lambda p: p.claim(0, 1), "block 1: group 0 cannot take it, group 0 owns it"),
        (lambda p: p.free(1, [1]), "block 1: group 1 cannot free it, group 0 owns it"),
        (lambda p: p.free(0, [2]), "block 2: group 0 cannot free it, it is free, group 1 owned it last"),
        (lambda p: p.check(1, [2]), "block 2: group 1 cannot use it, it is free, group 1 owned it last"),
        (lambda p: p.check(1, [5]), "block 5: group 1 cannot use it, it is free, nobody owned it yet"),
        (lambda p: p.free(0, [0]), "block 0: group 0 cannot free it, it is the null block of the pool"),
        (lambda p: p.claim(0, 0), "block 0: group 0 cannot take it, it is the null block of the pool"),
        (lambda p: p.free(0, [6]), "block 6 is not of this pool, whose ids are 0 to 5"),
        (lambda p: p.free(0, [-1]), "block -1 is not of this pool, whose ids are 0 to 5"),
        (lambda p: p.claim(0, True), "block True is not of this pool, whose ids are 0 to 5"),
        (lambda p: p.free(0, [1.0]), "block 1.0 is not of this pool, whose ids are 0 to 5"),
        (lambda p: p.free(0, [1, 1]), "block 1: group 0 cannot free it twice in one call"),
        (lambda p: p.zero_spans(1, 1), "block 1: group 1 cannot clear it, group 0 owns it"),
        (lambda p: p.transfer_spans(["w0"], [1]), "block 1: group 1 cannot move it, group 0 owns it"),
        (
            lambda p: p.transfer_spans(["a0", "w0"], [1]),
            "layers 'a0' of group 0 and 'w0' of group 1 share no block id: move them by themselves",
        ),
    ],
)
def test_refusals_name_the_block_and_both_owners_and_change_nothing(act, message):
    pool = small_pool()
    pool.allocate(0)
    pool.free(1, pool.allocate(1))
    before = (pool.num_free, [pool.owner_of(i) for i in range(6)])
    with pytest.raises(OwnershipError) as refused:
        act(pool)
    assert str(refused.value) == message
    assert (pool.num_free, [pool.owner_of(i) for i in range(6)]) == before


def test_a_partly_wrong_free_gives_nothing_back():
    pool = small_pool()
    mine, (other,) = pool.allocate(0, 2), pool.allocate(1)
    with pytest.raises(OwnershipError):
        pool.free(0, [*mine, other])
    assert [pool.owner_of(i) for i in mine] == [(0,), (0,)]


def test_a_pool_never_hands_out_more_than_its_blocks_less_the_null_block():
    pool = small_pool()
    with pytest.raises(PoolFullError, match="group 0: got 5 free blocks, need 6"):
        pool.allocate(0, 6)
    assert sorted(pool.allocate(0, 5)) == [1, 2, 3, 4, 5]
    assert not pool.can_allocate(1) and pool.can_allocate(0)


def test_claimed_blocks_leave_the_free_list_and_return_to_it():
    pool = small_pool()
    pool.claim(1, 3)
    assert pool.num_free == 4 and sorted(pool.allocate(0, 4)) == [1, 2, 4, 5]
    pool.free(1, [3])
    pool.claim(2, 3)
    assert pool.owner_of(3) == (2,) and pool.num_free == 0
    assert pool.allocate(0, 0) == ()


def test_unknown_groups_layers_and_counts_are_refused():
    pool = small_pool()
    for act, message in (
        (lambda: pool.allocate(3), "group_id: got 3, need 0 to 2"),
        (lambda: pool.allocate(True), "group_id: got True, need 0 to 2"),
        (lambda: pool.allocate(0, -1), "num_blocks: got -1"),
        (lambda: pool.allocate(0, True), "num_blocks: got True"),
        (lambda: pool.transfer_spans(["nobody"], []), "layers: got 'nobody'"),
        (
            lambda: pool.zero_spans(0, pool.allocate(0)[0], ["w0"]),
            "layers: got 'w0', need a layer of group 0",
        ),
    ):
        with pytest.raises(InputError, match=message):
            act()


# --- a thousand steps against a shadow copy -----------------------------------


def write(memory, slab, owner, block, value):
    for group_id in owner:
        for layer in slab.groups[group_id].layers:
            memory.rows(layer.name)[block] = value


def intact(memory, slab, owner, block, value):
    return all(
        bool((memory.rows(layer.name)[block] == value).all())
        for group_id in owner
        for layer in slab.groups[group_id].layers
    )


def histories(slab, seed, steps=1000, num_blocks=12):
    """Random allocate, rewrite, free, reuse and misuse; every live byte is checked."""
    plan = Plan(slab=slab, budget_bytes=num_blocks * slab.block_stride)
    memory, pool, rng = allocate(plan), BlockPool(plan), random.Random(seed)
    memory.backing.zero_()
    shadow = {}  # block -> (group that took it, its owner's groups, the byte written)
    for step in range(steps):
        group_id = rng.randrange(len(slab.groups))
        act = rng.random()
        if act < 0.45 and pool.num_free:
            (block,) = pool.allocate(group_id)
            assert block not in shadow and block != NULL_BLOCK, "a live block was handed out again"
            memory.zero(pool.zero_spans(group_id, block))
            shadow[block] = (group_id, pool.owner_of(block), step % 256)
            write(memory, slab, pool.owner_of(block), block, step % 256)
        elif act < 0.85 and shadow:
            block = rng.choice(list(shadow))
            taker, owner, value = shadow.pop(block)
            assert intact(memory, slab, owner, block, value)
            pool.free(taker, [block])
        else:
            block = rng.randrange(-1, num_blocks + 1)
            held = shadow.get(block)
            if held is None or group_id not in held[1]:
                for misuse in (pool.free, pool.check):
                    with pytest.raises(OwnershipError):
                        misuse(group_id, [block])
            if held is not None:
                with pytest.raises(OwnershipError):
                    pool.claim(group_id, block)
        assert pool.num_free == num_blocks - 1 - len(shadow)
        if shadow:
            probe = rng.choice(list(shadow))
            assert intact(memory, slab, *shadow[probe][1:2], probe, shadow[probe][2])
    for block, (_, owner, value) in shadow.items():
        assert intact(memory, slab, owner, block, value)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pack", [pack_dense, standard.pack])
def test_a_thousand_steps_keep_every_live_byte(pack, seed):
    histories(pack(small_slab().groups), seed)


@pytest.mark.parametrize("seed", range(2))
def test_a_thousand_steps_with_layers_outermost(seed):
    layers = [
        CacheLayer(name=f"{kind}{i}", spec=spec)
        for kind, spec in (("f", FULL), ("w", WINDOW_16))
        for i in range(4)
    ]
    histories(generation_named("standard").lay_out(layers), seed)


@pytest.mark.parametrize("seed", range(2))
def test_a_thousand_steps_with_a_lockstep_set(seed):
    histories(keep_apart(small_slab(), [(1, 2)]), seed)


@settings(max_examples=8, deadline=None)
@given(cache_groups(), st.integers(0, 2**32))
def test_short_histories_on_any_groups(groups, seed):
    histories(standard.pack(groups), seed, steps=60)


# --- spans ---------------------------------------------------------------------


def bytes_of(plan, names, blocks):
    """Every payload byte of some pages, by one entry a byte; no span arithmetic."""
    table = [None] * plan.pool_bytes
    for block in range(plan.num_blocks):
        for tensor in plan.tensors:
            for i, name in enumerate(tensor.layers):
                if name in names and block in blocks:
                    at = tensor.offset + i * tensor.layer_stride + block * tensor.block_stride
                    for byte in range(tensor.payload_bytes):
                        assert table[at + byte] is None
                        table[at + byte] = name
    return {i for i, name in enumerate(table) if name is not None}


def bytes_in(spans):
    covered = [byte for span in spans for start, end in span.ranges for byte in range(start, end)]
    assert len(covered) == len(set(covered)) == sum(span.total_bytes for span in spans)
    return set(covered)


@given(plans(), st.data())
def test_spans_are_exactly_the_payload(plan, data):
    pool = BlockPool(plan)
    group_id = data.draw(st.integers(0, len(plan.slab.groups) - 1))
    blocks = pool.allocate(group_id, data.draw(st.integers(1, pool.num_free)))
    names = [layer.name for layer in plan.slab.groups[group_id].layers]
    some = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    moved = data.draw(st.permutations(blocks))
    spans = pool.transfer_spans(some, moved)
    assert bytes_in(spans) == bytes_of(plan, some, blocks)
    assert max(span.end for span in spans) <= plan.pool_bytes
    cleared = pool.zero_spans(group_id, blocks[-1])
    assert bytes_in(cleared) == bytes_of(plan, names, blocks[-1:])


@given(plans(num_blocks=(4, 9)), st.data())
def test_clearing_and_moving_leave_other_owners_alone(plan, data):
    """Every block but one belongs to someone else; not one byte of theirs may change."""
    pool, memory = BlockPool(plan), allocate(plan)
    memory.backing.fill_(7)
    group_id = data.draw(st.integers(0, len(plan.slab.groups) - 1))
    mine = data.draw(st.integers(1, plan.num_blocks - 1))
    pool.claim(group_id, mine)
    memory.zero(pool.zero_spans(group_id, mine))
    names = {layer.name for layer in plan.slab.groups[group_id].layers}
    changed = {i for i, byte in enumerate(memory.backing.tolist()) if byte != 7}
    assert changed == bytes_of(plan, names, [mine])


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 6)), max_size=20))
def test_merging_covers_the_same_bytes_with_fewer_pieces(pieces):
    taken, ranges = set(), []
    for start, size in pieces:
        if not taken & set(range(start, start + size)):
            taken |= set(range(start, start + size))
            ranges.append((start, start + size))
    spans = merge_ranges(ranges)
    assert bytes_in(spans) == taken
    assert len(spans) <= len(ranges)
    runs = sorted((start, end) for span in spans for start, end in span.ranges)
    assert all(a[1] < b[0] for a, b in pairwise(runs)), "touching pieces stayed apart"
    with pytest.raises(InputError, match="ranges: got"):
        merge_ranges([(0, 4), (3, 5)])


def test_adjacent_pages_and_blocks_merge_and_three_numbers_stay_apart():
    slab = generation_named("standard").lay_out(load_layers("deepseek-v4-pro"))
    pool = BlockPool(Plan(slab=slab, budget_bytes=9 * slab.block_stride))
    pool.allocate(2, 2)
    keys = [layer.name for layer in slab.groups[2].layers if layer.name.endswith("k_cache")]
    (span,) = pool.transfer_spans(keys, [2])
    assert (span.payload_bytes, span.stride, span.count) == (4_352, 4_608, 30)
    assert span.offset == 2 * 1_228_800 + 31 * 1_024
    blocks = pool.allocate(4, 3)  # the state group fills its blocks to the last byte
    (whole,) = pool.transfer_spans([layer.name for layer in slab.groups[4].layers], blocks)
    assert (whole.offset, whole.payload_bytes, whole.count) == (3 * 1_228_800, 3 * 1_228_800, 1)


# --- the public bugs, each shown to bite, and not to bite here -------------------


def test_zeroing_by_the_stride_would_clear_a_neighbour():
    """VLLM PR 50276: one number served as the length of a page and as the way to the next."""
    pool = small_pool()
    pool.claim(0, 2)
    pool.claim(1, 5)
    page, theirs = pool.pages["w1"], bytes_of(pool.plan, ["a0", "a1", "a2", "a3"], [2])
    way_as_length = range(page.address(5), page.address(5) + page.block_stride)
    assert way_as_length.stop > pool.plan.pool_bytes, "the last block: past the allocation"
    length_as_way = range(page.offset + 5 * page.page_bytes, page.offset + 6 * page.page_bytes)
    assert theirs & set(length_as_way), "another block: another owner's rows"
    ours = bytes_in(pool.zero_spans(1, 5, ["w1"]))
    assert ours == bytes_of(pool.plan, ["w1"], [5]) and not ours & theirs


def test_registering_by_base_address_would_lose_layers():
    """Overlaid layers share an address: a connector that skips known ones moves too little."""
    pool = small_pool()
    starts = {}
    for name, page in pool.pages.items():
        starts.setdefault(page.offset, []).append(name)
    shared = next(names for names in starts.values() if len(names) > 1)
    assert len({pool.pages[name].group_id for name in shared}) == len(shared)
    for name in shared:
        (block,) = pool.allocate(pool.pages[name].group_id)
        assert bytes_in(pool.transfer_spans([name], [block])) == bytes_of(pool.plan, [name], [block])


def test_region_length_over_blocks_is_no_page():
    """VLLM PR 50208: `storage_bytes / num_blocks` is the stride of the slab."""
    pool = small_pool()
    (block,) = pool.allocate(0)
    taken_for_a_page = pool.plan.pool_bytes // pool.num_blocks
    moved = sum(span.total_bytes for span in pool.transfer_spans(["a1"], [block]))
    assert (moved, pool.pages["a1"].page_bytes, taken_for_a_page) == (10, 16, 128)


# --- lockstep sets ----------------------------------------------------------------


@given(cache_groups(num_groups=(2, 4)), st.data())
def test_a_lockstep_set_keeps_distinct_bytes_and_costs_their_sum(groups, data):
    ids = list(range(len(groups)))
    members = data.draw(st.lists(st.sampled_from(ids), min_size=2, unique=True))
    slab = keep_apart(standard.pack(groups), [members])
    together = sum(groups[i].group_bytes for i in members)
    alone = [groups[i].group_bytes for i in ids if i not in members]
    assert slab.block_stride == max([together, *alone])
    seen = [byte for page in slab.pages if page.group_id in members for byte in range(page.offset, page.end)]
    assert len(seen) == len(set(seen)) == together
    assert sum(slab.unused_bytes(i) for i in members) == len(members) * (slab.block_stride - together)


def test_groups_of_a_set_own_a_block_together():
    pool = BlockPool(Plan(slab=keep_apart(small_slab(), [(1, 2)]), budget_bytes=2_000))
    (block,) = pool.allocate(1)
    assert pool.owner_of(block) == (1, 2)
    assert not bytes_in(pool.zero_spans(1, block)) & bytes_in(pool.zero_spans(2, block))
    both = pool.transfer_spans(["w0", "w1", "s0"], [block])
    assert bytes_in(both) == bytes_of(pool.plan, ["w0", "w1", "s0"], [block])
    with pytest.raises(OwnershipError, match="group 0 cannot take it, lockstep groups 1\\+2 owns it"):
        pool.claim(0, block)


def test_a_set_takes_the_blocks_of_its_most_demanding_group_once():
    slab = keep_apart(small_slab(), [(0, 2)])
    assert slab.owners == ((0, 2), (1,))
    assert blocks_per_owner(slab, [5, 7, 9]) == (9, 7)
    assert blocks_per_owner(small_slab(), [5, 7, 9]) == (5, 7, 9)
    with pytest.raises(InputError, match="blocks: got 2"):
        blocks_per_owner(slab, [5, 7])


@pytest.mark.parametrize("sets", [[(1,)], [(0, 3)], [(0, 1), (1, 2)], [(-1, 0)], [(1, 1)]])
def test_impossible_sets_are_refused(sets):
    with pytest.raises(PlanError, match="lockstep"):
        keep_apart(small_slab(), sets)


def test_a_set_that_overlays_is_no_slab():
    slab = small_slab()
    with pytest.raises(LayoutError, match="pages overlap"):
        SlabLayout(
            groups=slab.groups, offsets=slab.offsets, block_stride=slab.block_stride, lockstep=((0, 1),)
        )
    with pytest.raises(LayoutError, match="packed from byte 0"):
        keep_apart(generation_named("bucketed").lay_out(load_layers("deepseek-v4-flash")), [(0, 1)])
