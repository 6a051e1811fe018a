"""Guards the silent bug that a stride is dropped, or taken from another axis order.

With one layer, one block or one head the six layouts coincide, so every shape here
has two or more of each. The oracle lays bytes out by enumeration: it counts upwards
through the axes in the order of the layout and never multiplies by a stride.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvslab.errors import InputError, LayoutError, RefusedError
from kvslab.generations import generation_named
from kvslab.groups import own_pages
from kvslab.layers import CacheLayer
from kvslab.layouts import (
    AXES,
    LAYOUTS,
    CacheShape,
    LayoutPreference,
    check_expressible,
    choose_layout,
    lay_out_axes,
    layout_named,
    stride_axes,
)
from kvslab.models import load_layers
from kvslab.plan import Plan
from kvslab.slab import pack_dense
from memory_strategies import KEYS, LATENT, WINDOW, cache_groups, equal_page_groups

names = st.sampled_from(sorted(LAYOUTS))
small = st.integers(2, 3)
shapes = st.builds(
    CacheShape,
    num_layers=small,
    num_blocks=small,
    num_heads=small,
    rows_per_page=small,
    content_bytes=st.integers(2, 4),
)


def counted(layout, shape, pad=0):
    """`{coordinate: address}`; `pad` bytes follow whenever a page [H, N, C] is complete."""
    order = [AXES.index(axis) for axis in layout.name]
    found, address, in_page = {}, 0, 0
    for indices in itertools.product(*(range(shape.sizes[i]) for i in order)):
        at = [0] * 5
        for i, index in zip(order, indices, strict=True):
            at[i] = index
        found[tuple(at)] = address
        address += 1
        in_page += 1
        if in_page == shape.payload_bytes:
            address, in_page = address + pad, 0
    return found, address


@given(names, shapes)
def test_addresses_are_those_of_counting_through_the_axes(name, shape):
    layout = layout_named(name)
    found, end = counted(layout, shape)
    strides = stride_axes(layout, shape)
    assert {at: strides.address(*at) for at in found} == found
    assert strides.extent_bytes == end


@given(names, shapes, st.integers(1, 9))
def test_a_padded_page_stays_in_one_piece_or_is_refused(name, shape, pad):
    layout = layout_named(name)
    page = shape.payload_bytes + pad
    if not layout.is_block_compact:
        with pytest.raises(LayoutError, match=f"layout {name} scatters a page over {shape.num_heads} heads"):
            stride_axes(layout, shape, page_bytes=page)
        return
    found, end = counted(layout, shape, pad)
    strides = stride_axes(layout, shape, page_bytes=page)
    assert {at: strides.address(*at) for at in found} == found
    assert strides.extent_bytes == end


@given(names, shapes, st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(0, 70))
def test_round_trip_and_padding_with_fixed_strides(name, shape, offset, more_layer, more_block, pad):
    layout = layout_named(name)
    page = shape.payload_bytes + (pad if layout.is_block_compact else 0)
    inner = stride_axes(layout, shape, page_bytes=page)
    fixed = {"layer_stride": inner.layer_stride + more_layer}
    if layout.name.index("L") < layout.name.index("B"):  # layers outside: fix the block first
        fixed = {"block_stride": inner.block_stride + more_block}
    strides = stride_axes(layout, shape, offset=offset, page_bytes=page, **fixed)
    held = {}
    for at in itertools.product(*(range(size) for size in shape.sizes)):
        address = strides.address(*at)
        assert address not in held, "two coordinates share a byte"
        held[address] = at
    for address in range(offset - 3, offset + strides.extent_bytes + 3):
        if address in held:
            assert strides.coordinate(address) == held[address]
        else:
            with pytest.raises(LayoutError, match="holds no content"):
                strides.coordinate(address)


def test_predicates_of_the_six_layouts():
    table = {
        name: (layout.is_layer_outermost, layout.is_block_outermost, layout.is_block_compact)
        for name, layout in LAYOUTS.items()
    }
    assert table == {
        "LBHNC": (True, False, True),
        "LBNHC": (True, False, True),
        "LHBNC": (True, False, False),
        "BLHNC": (False, True, True),
        "BLNHC": (False, True, True),
        "BHLNC": (False, True, False),
    }


@given(names, shapes)
def test_compact_means_that_a_page_is_one_piece(name, shape):
    layout = layout_named(name)
    strides = stride_axes(layout, shape)
    page = sorted(
        strides.address(1, 1, *at) for at in itertools.product(*(range(size) for size in shape.sizes[2:]))
    )
    assert layout.is_block_compact == (page == list(range(page[0], page[0] + shape.payload_bytes)))


@pytest.mark.parametrize("field", ["layer_stride", "block_stride"])
def test_a_fixed_stride_below_its_content_is_refused(field):
    shape = CacheShape(num_layers=2, num_blocks=3, num_heads=2, rows_per_page=4, content_bytes=8)
    outer = {"layer_stride": "LBHNC", "block_stride": "BLHNC"}[field]
    inside = {"layer_stride": 3 * 64, "block_stride": 2 * 64}[field]
    with pytest.raises(LayoutError, match=f"{outer}: got {field} {inside - 1}, need at least the {inside}"):
        stride_axes(layout_named(outer), shape, **{field: inside - 1})
    with pytest.raises(LayoutError, match="page_bytes: got 63, need at least the payload of 64"):
        stride_axes(layout_named(outer), shape, page_bytes=63)


def test_a_coordinate_outside_the_shape_is_refused():
    shape = CacheShape(num_layers=2, num_blocks=3, rows_per_page=4, content_bytes=8)
    with pytest.raises(InputError, match="coordinate B: got 3, need 0 to 2"):
        stride_axes(layout_named("BLHNC"), shape).address(0, 3)


def test_key_and_value_planes_are_head_groups():
    """One head in HNC order: [B, 2, N, C / 2], all keys of a page before all values."""
    fused = CacheShape(num_layers=2, num_blocks=2, rows_per_page=3, content_bytes=8)
    planes = fused.with_planes()
    assert planes.payload_bytes == fused.payload_bytes
    strides = stride_axes(layout_named("LBHNC"), planes)
    keys = [strides.address(1, 1, 0, n, c) for n in range(3) for c in range(4)]
    values = [strides.address(1, 1, 1, n, c) for n in range(3) for c in range(4)]
    assert keys + values == list(range(3 * 24, 4 * 24))
    with pytest.raises(InputError, match="num_planes: got 3, need a divisor of 8 content bytes"):
        fused.with_planes(3)


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_mixed_pages_need_the_block_outside_the_layers(name):
    groups = [own_pages([CacheLayer(name=s, spec=x)]) for s, x in (("a", LATENT), ("b", KEYS))]
    layout = layout_named(name)
    if layout.is_block_outermost:
        assert lay_out_axes(layout, groups).block_stride == LATENT.page_bytes
        return
    with pytest.raises(RefusedError, match=f"layout {name} .* 2 groups with pages of 16, 48 bytes"):
        check_expressible(layout, groups)
    one = own_pages([CacheLayer(name="a", spec=LATENT), CacheLayer(name="b", spec=KEYS)])
    assert lay_out_axes(layout, [one]).block_stride == LATENT.page_bytes + KEYS.page_bytes


@pytest.mark.parametrize("name", ["LHBNC", "BHLNC"])
def test_heads_outside_the_page_take_no_padding_and_no_second_size(name):
    padded = [own_pages(CacheLayer(name=str(i), spec=KEYS) for i in range(2))]
    with pytest.raises(RefusedError, match=f"{name} keeps 2 heads outside .* 10 bytes of payload .* 16"):
        check_expressible(layout_named(name), padded, num_heads=2)
    mixed = [own_pages([CacheLayer(name="a", spec=LATENT), CacheLayer(name="b", spec=KEYS)])]
    with pytest.raises(RefusedError, match=f"{name} keeps 2 heads outside .* pages of 16, 48 bytes"):
        check_expressible(layout_named(name), mixed, num_heads=2)
    check_expressible(layout_named(name), padded)
    check_expressible(layout_named(name), [own_pages([CacheLayer(name="w", spec=WINDOW)])], num_heads=2)


@given(names, cache_groups())
def test_blocks_outermost_costs_what_overlay_costs(name, groups):
    if layout_named(name).is_block_outermost:
        assert lay_out_axes(layout_named(name), groups).block_stride == pack_dense(groups).block_stride


@given(names, equal_page_groups(), st.integers(2, 6))
def test_planned_tensors_are_axes_with_fixed_strides(name, groups, num_blocks):
    """The plan's `offset + l * layer_stride + b * block_stride` is the axes' own address."""
    layout = layout_named(name)
    slab = lay_out_axes(layout, groups)
    plan = Plan(slab=slab, budget_bytes=num_blocks * slab.block_stride)
    for tensor in plan.tensors:
        check_tensor(layout, tensor, WINDOW, num_blocks)


def check_tensor(layout, tensor, spec, num_blocks):
    shape = CacheShape(
        num_layers=len(tensor.layers),
        num_blocks=num_blocks,
        rows_per_page=spec.rows_per_page,
        content_bytes=spec.row_bytes,
    )
    fixed = {"block_stride": tensor.block_stride} if layout.is_block_outermost else {}
    strides = stride_axes(layout, shape, offset=tensor.offset, page_bytes=spec.page_bytes, **fixed)
    for layer, block in itertools.product(range(len(tensor.layers)), range(num_blocks)):
        assert strides.address(layer, block) == tensor.address(layer, block)


@pytest.mark.parametrize("name", ["BLHNC", "BLNHC", "BHLNC"])
def test_deepseek_v4_is_three_numbers_a_tensor(name):
    slab = generation_named("standard").lay_out(load_layers("deepseek-v4-pro"))
    plan = Plan(slab=slab, budget_bytes=4 * slab.block_stride)
    specs = {page.layer.name: page.layer.spec for page in slab.pages}
    assert len(plan.tensors) == 8
    for tensor in plan.tensors:
        check_tensor(layout_named(name), tensor, specs[tensor.layers[0]], 4)


def wish(who, *accepts):
    return LayoutPreference(who=who, accepts=accepts)


def test_the_first_wish_has_the_most_say():
    assert choose_layout([wish("a", "BLHNC", "LBHNC"), wish("b", "LBHNC", "BLHNC")], ()).name == "BLHNC"
    assert choose_layout([wish("b", "LBHNC", "BLHNC"), wish("a", "BLHNC", "LBHNC")], ()).name == "LBHNC"
    assert choose_layout([], ()).name == "LBNHC"


def test_groups_overrule_a_wish_that_allows_another_layout():
    groups = generation_named("standard").lay_out(load_layers("deepseek-v4-pro")).groups
    assert choose_layout([], groups).name == "BLHNC"
    assert choose_layout([wish("a", "LBNHC", "BLNHC")], groups).name == "BLNHC"


def test_conflicts_are_refused_and_name_everyone():
    with pytest.raises(RefusedError) as refused:
        choose_layout([wish("flashinfer", "LBHNC"), wish("mooncake", "BLHNC", "BLNHC")], ())
    assert str(refused.value) == (
        "no layout is accepted by all: flashinfer accepts LBHNC; mooncake accepts BLHNC, BLNHC"
    )
    # Any two of these agree; all three do not.
    with pytest.raises(RefusedError, match=r"no layout is accepted by all: a .*; b .*; c accepts"):
        choose_layout(
            [wish("a", "LBHNC", "BLHNC"), wish("b", "BLHNC", "BLNHC"), wish("c", "BLNHC", "LBHNC")], ()
        )
    groups = generation_named("standard").lay_out(load_layers("deepseek-v4-pro")).groups
    with pytest.raises(RefusedError, match=r"layout LBHNC keeps layers outermost: got 5 groups .* 32,768"):
        choose_layout([wish("flashinfer", "LBHNC")], groups)


def test_unknown_layouts_are_refused():
    with pytest.raises(InputError, match="layout: got 'BHNLC', need one of LBHNC"):
        wish("a", "BHNLC")
    with pytest.raises(InputError, match="accepts of a: got \\(\\), need at least one layout"):
        wish("a")
