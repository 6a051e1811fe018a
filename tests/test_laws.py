"""Guards the laws of a plan on stacks nobody wrote by hand.

The silent bug is an overlap: two layers of one group that share bytes corrupt each
other only under load.  Disjointness is checked by a map of every byte, which shares
no arithmetic with the planner.
"""

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvslab.errors import BudgetError, LayoutError, RefusedError
from kvslab.generations import GENERATIONS, generation_named
from kvslab.groups import CacheGroup, own_pages
from kvslab.layers import CacheLayer, LayerSpec, layers_from_json, layers_to_json
from kvslab.plan import Plan
from kvslab.slab import SharedSlot, SlabLayout, pack_dense
from stacks import latent_stacks, stacks

NAMES = st.sampled_from(list(GENERATIONS))


def lay_out(name: str, layers: Sequence[CacheLayer]) -> SlabLayout | None:
    try:
        return generation_named(name).lay_out(layers)
    except RefusedError:
        return None


def byte_map(slab: SlabLayout) -> list[int]:
    """Brute force: how many groups' pages cover each byte; fails if one group covers a byte twice."""
    owners = [0] * slab.block_stride
    for group, offsets in zip(slab.groups, slab.offsets, strict=True):
        mine = bytearray(slab.block_stride)
        for page, offset in zip(group.page_bytes, offsets, strict=True):
            for byte in range(offset, offset + page):
                assert not mine[byte], f"byte {byte} is covered twice"
                mine[byte] = 1
        owners = [a + b for a, b in zip(owners, mine, strict=True)]
    return owners


@given(name=NAMES, count=st.integers(2, 5), sizes=st.lists(st.integers(1, 40), min_size=2, max_size=4))
@settings(deadline=None, max_examples=60)
def test_no_byte_has_two_layers_of_one_group(name: str, count: int, sizes: list[int]) -> None:
    windows = [
        {
            "name": f"w{i}.{j}",
            "kind": "sliding_window_mla",
            "block_size": 2,
            "row_bytes": size,
            "sliding_window": 4,
        }
        for i, size in enumerate(sizes)
        for j in range(count)
    ]
    latent = [
        {"name": f"m{i}", "kind": "mla_attention", "block_size": 2, "row_bytes": size}
        for i, size in enumerate([40, *sizes])
    ]
    slab = lay_out(name, layers_from_json({"layers": latent + windows}))
    if slab is None:
        return
    covered = byte_map(slab)
    assert len(covered) == slab.block_stride
    assert sum(covered) == sum(group.group_bytes for group in slab.groups)
    if name == "overlay":
        assert covered[-1] > 0, "the stride is longer than the largest group"


@given(name=NAMES, layers=stacks)
@settings(deadline=None, max_examples=80)
def test_every_layer_is_placed_once(name: str, layers: tuple[CacheLayer, ...]) -> None:
    slab = lay_out(name, layers)
    if slab is None:
        return
    placed = [page.layer.name for page in slab.pages]
    assert sorted(placed) == sorted(layer.name for layer in layers)
    for page in slab.pages:
        assert page.page_bytes >= page.layer.spec.payload_bytes
        assert page.offset >= 0 and page.end <= slab.block_stride
    for group in slab.groups:
        assert len({(layer.spec.block_size, layer.spec.retention) for layer in group.layers}) == 1


@given(name=NAMES, layers=stacks, budget=st.integers(1, 2**40))
@settings(deadline=None, max_examples=80)
def test_blocks_fit_and_one_more_does_not(name: str, layers: tuple[CacheLayer, ...], budget: int) -> None:
    slab = lay_out(name, layers)
    if slab is None:
        return
    if budget < slab.block_stride:
        with pytest.raises(BudgetError, match=f"{slab.block_stride:,}"):
            Plan(slab=slab, budget_bytes=budget)
        return
    plan = Plan(slab=slab, budget_bytes=budget)
    assert plan.pool_bytes <= budget < plan.pool_bytes + slab.block_stride
    assert plan.remaining_bytes == budget - plan.pool_bytes


@given(name=NAMES, layers=stacks, seed=st.integers(0, 2**16))
@settings(deadline=None, max_examples=60)
def test_names_do_not_matter(name: str, layers: tuple[CacheLayer, ...], seed: int) -> None:
    labels = [f"renamed-{i}" for i in range(len(layers))]
    random.Random(seed).shuffle(labels)
    renamed = tuple(
        CacheLayer(name=label, spec=layer.spec) for label, layer in zip(labels, layers, strict=True)
    )
    slab, other = lay_out(name, layers), lay_out(name, renamed)
    assert (slab is None) == (other is None)
    if slab is not None and other is not None:
        assert other.block_stride == slab.block_stride
        assert other.offsets == slab.offsets


@given(layers=latent_stacks())
@settings(deadline=None, max_examples=60)
def test_overlay_is_no_larger_than_bucketed_with_the_same_groups(layers: tuple[CacheLayer, ...]) -> None:
    bucketed = lay_out("bucketed", layers)
    if bucketed is None:
        return
    assert pack_dense(bucketed.groups).block_stride <= bucketed.block_stride
    padded = lay_out("padded", layers)
    assert padded is not None and bucketed.block_stride <= padded.block_stride


@given(name=NAMES, layers=stacks, num_blocks=st.integers(2, 9))
@settings(deadline=None, max_examples=80)
def test_tensors_address_every_page_of_every_block(
    name: str, layers: tuple[CacheLayer, ...], num_blocks: int
) -> None:
    slab = lay_out(name, layers)
    if slab is None:
        return
    plan = Plan(slab=slab, budget_bytes=slab.block_stride * num_blocks)
    tensors = plan.tensors
    held = [name for tensor in tensors for name in tensor.layers]
    assert sorted(held) == sorted(layer.name for layer in layers)
    ranges: dict[int, list[tuple[int, int]]] = {}
    for tensor in tensors:
        for index, layer_name in enumerate(tensor.layers):
            for block_id in range(num_blocks):
                start = tensor.address(index, block_id)
                ranges.setdefault(tensor.group_id, []).append((start, start + tensor.payload_bytes))
                if slab.block_outermost:
                    assert start == block_id * slab.block_stride + slab.offset_of[layer_name]
    for spans in ranges.values():
        spans.sort()
        assert spans[-1][1] <= plan.pool_bytes
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


@given(layers=stacks)
@settings(deadline=None, max_examples=60)
def test_layer_file_round_trip(layers: tuple[CacheLayer, ...]) -> None:
    assert layers_from_json(layers_to_json(layers)) == layers


def _group(*row_bytes: int) -> CacheGroup:
    return own_pages(
        CacheLayer(name=f"l{i}", spec=LayerSpec(kind="mla_attention", block_size=1, row_bytes=size))
        for i, size in enumerate(row_bytes)
    )


def test_an_unsound_slab_cannot_be_built() -> None:
    group = _group(10, 10)
    with pytest.raises(LayoutError, match=r"'l0' ends at byte 10, 'l1' starts at 9"):
        SlabLayout(groups=(group,), offsets=((0, 9),), block_stride=30)
    with pytest.raises(LayoutError, match=r"'l1' ends at byte 20, past the block stride of 19"):
        SlabLayout(groups=(group,), offsets=((0, 10),), block_stride=19)
    with pytest.raises(LayoutError, match="one offset for each layer"):
        SlabLayout(groups=(group,), offsets=((0,),), block_stride=30)
    slot = SharedSlot(offset=0, slot_bytes=20)
    with pytest.raises(LayoutError, match="two layers of one group: 'l0', 'l1'"):
        SlabLayout(groups=(group,), offsets=((0, 10),), block_stride=20, slots=(slot,))
    with pytest.raises(LayoutError, match="'l1' at bytes 15 to 25 lies in no slot"):
        SlabLayout(groups=(group,), offsets=((0, 15),), block_stride=30, slots=(slot,))
    # Two groups may share every byte: a block has one owner at a time.
    assert SlabLayout(groups=(group, group), offsets=((0, 10), (0, 10)), block_stride=20).block_stride == 20


def test_padding_adds_up_by_hand() -> None:
    # Two groups of 10 + 10 and 10 + 5 bytes in one slab of 20: only the second leaves five bytes unused.
    slab = pack_dense((_group(10, 10), _group(10, 5)))
    assert [slab.unused_bytes(g) for g in (0, 1)] == [0, 5]
    assert slab.padding_bytes == 5
