"""Guards the silent bug that a newer engine's plan is taken for an older one's.

vLLM 0.32 orders groups, cuts them and places layers by rules of its own; every
answer of that release in the golden vectors must come out, to the byte.
"""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvslab.errors import RefusedError
from kvslab.generations import generation_named, standard
from kvslab.layers import CacheLayer
from kvslab.models import load_layers
from kvslab.plan import Plan
from kvslab.slab import pack_dense
from memory_strategies import FAMILIES, KEYS, LATENT, SMALL_STATE, STATE, WINDOW, cache_groups
from vectors import load_vectors, vector_layers

STANDARD = generation_named("standard")


def planned(vector):
    slab = STANDARD.lay_out(vector_layers(vector["id"]), packed=vector["packed_opt_in"])
    return Plan(
        slab=slab, budget_bytes=vector["budget_bytes"], num_blocks_override=vector["num_blocks_override"]
    )


def test_every_answer_of_the_release_comes_out():
    assert len(load_vectors()) == 158
    for vector in load_vectors():
        expect, plan = vector["expect"]["0.32.0"], planned(vector)
        groups = [
            {"layers": [layer.name for layer in group.layers], "pages": list(group.page_bytes)}
            for group in plan.slab.groups
        ]
        # A planned tensor counts its bytes from the start of the allocation, which is
        # the offset in the block for packed stacks and the region's start for the others.
        offsets = {
            name: tensor.offset + i * tensor.layer_stride
            for tensor in plan.tensors
            for i, name in enumerate(tensor.layers)
        }
        got = (groups, plan.slab.block_stride, plan.num_blocks, offsets)
        need = (expect["groups"], expect["block_stride"], expect["num_blocks"], expect["offsets"])
        assert got == need, vector["id"]


def test_one_tensor_carries_all_layers_of_one_spec_in_a_group():
    for vector in load_vectors():
        plan = planned(vector)
        specs = {(page.group_id, page.layer.spec) for page in plan.slab.pages}
        assert len(plan.tensors) == len(specs), vector["id"]


@pytest.mark.parametrize(
    ("model", "backend", "indexer", "stride"),
    [
        ("deepseek-v4-pro", "flashinfer", "fp8", 1_275_904),
        ("deepseek-v4-pro", "flashinfer", "mxfp4", 1_228_800),
        ("deepseek-v4-pro", "flashmla", "fp8", 1_435_968),
        ("deepseek-v4-pro", "flashmla", "mxfp4", 1_315_008),
        ("deepseek-v4-flash", "flashinfer", "mxfp4", 860_160),
        ("deepseek-v4-flash", "flashmla", "mxfp4", 917_568),
    ],
)
def test_published_models_cost_what_overlay_costs(model, backend, indexer, stride):
    layers = load_layers(model, backend=backend, indexer=indexer)
    assert STANDARD.lay_out(layers).block_stride == stride
    assert generation_named("overlay").lay_out(layers).block_stride == stride


@given(cache_groups())
def test_spec_by_spec_costs_what_dense_costs_and_moves_bytes_within_the_group_only(groups):
    ours, dense = standard.pack(groups), pack_dense(groups)
    assert ours.block_stride == dense.block_stride
    assert [g.group_bytes for g in ours.groups] == [g.group_bytes for g in dense.groups]
    for group_id, group in enumerate(groups):
        covered = set()
        for page in ours.pages:
            if page.group_id == group_id:
                covered |= set(range(page.offset, page.end))
        assert covered == set(range(group.group_bytes))


@given(cache_groups())
def test_layers_of_one_spec_stand_together_in_order_of_first_appearance(groups):
    slab = standard.pack(groups)
    for group_id in range(len(groups)):
        pages = sorted((p for p in slab.pages if p.group_id == group_id), key=lambda p: p.offset)
        in_memory = list(dict.fromkeys(page.layer.spec for page in pages))
        runs = sum(a.layer.spec != b.layer.spec for a, b in pairwise(pages)) + 1
        assert runs == len(in_memory)
        assert in_memory == list(dict.fromkeys(layer.spec for layer in groups[group_id].layers))


stacks = st.lists(st.sampled_from([s for f in FAMILIES for s in f]), min_size=2, max_size=24).map(
    lambda specs: tuple(CacheLayer(name=f"l{i}", spec=spec) for i, spec in enumerate(specs))
)


def grouped(layers):
    return [[layer.name for layer in group.layers] for group in standard.group(layers)]


@given(stacks)
def test_groups_partition_the_stack_by_uniform_type(layers):
    try:
        groups = standard.group(layers)
    except RefusedError:
        assert len({layer.spec.page_bytes for layer in layers}) == 1
        return
    assert Counter(layer for group in groups for layer in group.layers) == Counter(layers)
    for group in groups:
        assert len({standard.uniform_type(layer) for layer in group.layers}) == 1
        order = [layers.index(layer) for layer in group.layers]
        assert order == sorted(order)


@given(stacks, st.randoms(use_true_random=False))
def test_relabelling_layers_changes_nothing(layers, random):
    labels = [f"other{i}" for i in range(len(layers))]
    random.shuffle(labels)
    renamed = tuple(CacheLayer(name=n, spec=x.spec) for n, x in zip(labels, layers, strict=True))
    back = dict(zip(labels, (layer.name for layer in layers), strict=True))
    assert grouped(layers) == [[back[name] for name in names] for names in grouped(renamed)]


def stack_of(*counts):
    return tuple(
        CacheLayer(name=f"{spec.row_bytes}.{spec.block_size}.{i}", spec=spec)
        for spec, count in counts
        for i in range(count)
    )


@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 12))
def test_the_depth_leaves_the_fewest_empty_places(floor, windows, latents):
    """Deal the layers out by hand at every depth and count the empty places."""
    layers = stack_of((STATE, floor), (SMALL_STATE, floor), (WINDOW, windows), (LATENT, latents))
    balanced = [floor, windows] + [latents] * bool(latents)

    def empty(depth):
        places = 0
        for count in balanced:
            left = count
            while left > 0:
                places += max(depth - left, 0)
                left -= depth
        return places

    depths = range(floor, max(balanced) + 1)
    best = max(depths, key=lambda d: (-empty(d), d))
    sizes = [len(g.layers) for g in standard.group(layers) if g.layers[0].spec == WINDOW]
    needed = 0
    while needed * best < windows:
        needed += 1
    assert len(sizes) == needed and max(sizes) - min(sizes) <= 1


def test_without_a_floor_windows_are_cut_to_the_widest_bucket():
    # 2 latent pages of 48 bytes: 96 + 10 keys of 16 = 256 bytes; a window page is 48.
    groups = standard.group(stack_of((LATENT, 2), (KEYS, 10), (WINDOW, 11)))
    assert [len(group.layers) for group in groups] == [12, 4, 4, 3]


def test_a_bucket_with_several_page_sizes_keeps_the_order_of_the_stack():
    specs = (KEYS, LATENT, LATENT, KEYS, WINDOW)
    layers = tuple(CacheLayer(name=str(i), spec=spec) for i, spec in enumerate(specs))
    assert grouped(layers) == [["0", "1", "2", "3"], ["4"]]
