"""Guards the silent bug that a view copies, or that a stride or an offset overflows or drops.

A view with a wrong stride reads plausible rows of another layer. So every view is
compared with bytes that plain Python slices out of the allocation, at addresses
added up page by page; and one real file is written past 2^31 and 2^34 bytes.
"""

import os
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvslab.errors import InputError, LayoutError
from kvslab.formats import indexer_row, latent_row, state_row
from kvslab.generations import GENERATIONS, generation_named, standard
from kvslab.groups import own_pages
from kvslab.layers import CacheLayer
from kvslab.memory import Span
from kvslab.memory.views import SlabMemory, allocate, map_file, storage_bytes
from kvslab.models import load_layers
from kvslab.plan import Plan
from memory_strategies import FULL, KEYS, LATENT, STATE, WINDOW_16, plans

BUDGET_BYTES = 28_410_134_921  # 26.46 GiB: the published budget of DeepSeek-V4-Pro


def pro_plan(name="standard", **options):
    slab = generation_named(name).lay_out(load_layers("deepseek-v4-pro", **options))
    return Plan(slab=slab, budget_bytes=BUDGET_BYTES)


def starts_of(plan):
    """`{layer: [start in block 0, 1, ..]}`, regions and blocks added up one by one."""
    slab, found = plan.slab, {}
    for page in slab.pages:
        if slab.block_outermost:
            starts = [page.offset]
            for _ in range(plan.num_blocks - 1):
                starts.append(starts[-1] + slab.block_stride)
        else:  # the slots before mine, each with room for every block
            slot = next(slot for slot in slab.slots if slot.offset == page.offset)
            region = 0
            for before in slab.slots:
                for _ in range(plan.num_blocks):
                    region += before.slot_bytes if before.offset < slot.offset else 0
            starts = list(accumulate([slot.slot_bytes] * (plan.num_blocks - 1), initial=region))
        found[page.layer.name] = starts
    return found


def numbered(plan):
    memory = allocate(plan)
    memory.backing.copy_(torch.arange(plan.pool_bytes) % 251)
    return memory, bytes(memory.backing.tolist())


@given(plans())
def test_views_show_the_bytes_at_the_plans_addresses(plan):
    memory, raw = numbered(plan)
    for name, starts in starts_of(plan).items():
        spec = memory.page(name).layer.spec
        rows, pages = memory.rows(name), memory.raw_pages(name)
        assert rows.shape == (plan.num_blocks, spec.rows_per_page, spec.row_bytes)
        for block, start in enumerate(starts):
            assert bytes(rows[block].flatten().tolist()) == raw[start : start + spec.payload_bytes]
            assert bytes(pages[block].tolist()) == raw[start : start + spec.page_bytes]


@given(plans(), st.data())
def test_layers_of_one_group_never_overlap_and_padding_is_never_written(plan, data):
    memory = allocate(plan)
    group = data.draw(st.sampled_from(plan.slab.groups))
    memory.backing.fill_(255)
    for mark, layer in enumerate(group.layers):
        memory.rows(layer.name).fill_(mark)
    for mark, layer in enumerate(group.layers):
        assert bool((memory.rows(layer.name) == mark).all())
    assert int((memory.backing != 255).sum()) == group.payload_bytes * plan.num_blocks


@pytest.mark.parametrize("name", sorted(GENERATIONS))
def test_every_generation_gives_disjoint_views_of_deepseek_v4(name):
    slab = generation_named(name).lay_out(load_layers("deepseek-v4-flash", indexer="fp8"))
    memory = allocate(Plan(slab=slab, budget_bytes=3 * slab.block_stride))
    for group in slab.groups:
        for mark, layer in enumerate(group.layers):
            memory.rows(layer.name).fill_(mark)
        for mark, layer in enumerate(group.layers):
            assert bool((memory.rows(layer.name) == mark).all()), layer.name


def test_a_write_through_one_view_is_seen_by_all_and_nothing_is_copied():
    plan = pro_plan()
    small = Plan(slab=plan.slab, budget_bytes=3 * plan.slab.block_stride)
    memory = allocate(small)
    base = memory.backing.data_ptr()
    for name, page in memory.pages.items():
        views = [memory.rows(name), memory.raw_pages(name)]
        assert {view.data_ptr() - base for view in views} == {page.offset}
        assert all(view[2].data_ptr() - base == page.address(2) for view in views)
    name = "model.layers.2.attn.indexer.k_cache"
    memory.rows(name)[2, 63, 67] = 99
    assert int(memory.raw_pages(name)[2, 4_351]) == 99
    assert int(memory.backing[2 * 1_228_800 + 31 * 1_024 + 4_351]) == 99


def test_a_26_gib_plan_on_meta():
    memory = allocate(pro_plan(), device="meta")
    assert memory.allocated_bytes == 23_120 * 1_228_800
    for name, view in memory.all_rows().items():
        page = memory.page(name)
        assert view.device.type == "meta" and view.shape[0] == 23_120
        assert (view.storage_offset(), view.stride(0)) == (page.offset, 1_228_800)


def test_ids_past_2_to_the_31_bytes_on_a_sparse_file(tmp_path: Path):
    """Block 1,748 is the first past 2^31 bytes; the last one lies past 2^34."""
    plan, path = pro_plan(), tmp_path / "slab"
    memory = map_file(plan, path)
    names = ("model.layers.2.attn.indexer.k_cache", "model.layers.60.attn")
    blocks = (1, 1_747, 1_748, 3_495, 23_119)
    for name in names:
        for block in blocks:
            memory.rows(name)[block] = block % 251
    with path.open("rb") as stream:
        for name in names:
            offset = plan.slab.offset_of[name]
            payload = memory.page(name).payload_bytes
            for block in blocks:
                around = os.pread(stream.fileno(), payload + 2, block * 1_228_800 + offset - 1)
                assert around[1:-1] == bytes([block % 251]) * payload
        assert 1_747 * 1_228_800 < 2**31 <= 1_748 * 1_228_800 and 23_119 * 1_228_800 > 2**34
    assert memory.typed(names[1], torch.float8_e4m3fn)[23_119].view(torch.uint8).unique().tolist() == [27]
    assert path.stat().st_size == plan.pool_bytes
    assert path.stat().st_blocks * 512 < 64 * 1024 * 1024, "only what was written takes space"


def test_the_allocation_is_counted_once():
    plan = pro_plan()
    memory = allocate(plan, device="meta")
    views = list(memory.all_rows().values())
    assert storage_bytes(views) == memory.allocated_bytes == plan.pool_bytes
    assert sum(view.numel() for view in views) > 4 * plan.pool_bytes
    other = torch.empty(10, dtype=torch.uint8)
    assert storage_bytes([*views, other, other[2:]]) == plan.pool_bytes + 10


# --- typed views ------------------------------------------------------------------


def one_layer(name, row_bytes, *, rows=64, kind_of=LATENT, before=KEYS):
    """A plan of two blocks with a padded page before the layer, and its memory."""
    spec = replace(kind_of, row_bytes=row_bytes, block_size=rows * kind_of.compress_ratio, alignment=512)
    first = replace(before, block_size=spec.block_size, alignment=512)
    group = own_pages([CacheLayer(name="before", spec=first), CacheLayer(name=name, spec=spec)])
    slab = standard.pack([group])
    return allocate(Plan(slab=slab, budget_bytes=2 * slab.block_stride))


def page_bytes(memory, name, block=1):
    start = memory.plan.slab.offset_of[name] + block * memory.plan.slab.block_stride
    return start, memory.page(name).payload_bytes


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float32])
def test_typed_rows_hold_the_values_that_are_written(dtype):
    memory = one_layer("rows", 512)
    values = torch.arange(64 * 512 // dtype.itemsize).reshape(64, -1).remainder(16).to(dtype)
    view = memory.typed("rows", dtype)
    assert view.shape == (2, 64, 512 // dtype.itemsize)
    view[1] = values
    start, payload = page_bytes(memory, "rows")
    expect = values.contiguous().view(torch.uint8).flatten()
    assert torch.equal(memory.backing[start : start + payload], expect)


def test_mxfp4_pages_hold_all_values_and_then_all_scales():
    memory = one_layer("keys", 68)
    parts = memory.parts("keys", indexer_row("mxfp4", 128))
    values, scales = parts["E2M1 values"], parts["UE8M0 scales"]
    assert (values.shape, scales.shape) == ((2, 64, 64), (2, 64, 4))
    for row in range(64):
        values[1, row], scales[1, row] = row, 100 + row
    start, payload = page_bytes(memory, "keys")
    expect = [row for row in range(64) for _ in range(64)] + [100 + r for r in range(64) for _ in range(4)]
    assert memory.backing[start : start + payload].tolist() == expect


def test_fp8_pages_hold_all_values_and_then_one_fp32_scale_a_row():
    memory = one_layer("keys", 132)
    parts = memory.parts("keys", indexer_row("fp8", 128))
    values, scales = parts["FP8 values"], parts["FP32 scale"]
    assert (values.dtype, scales.dtype) == (torch.float8_e4m3fn, torch.float32)
    assert (values.shape, scales.shape) == ((2, 64, 128), (2, 64, 1))
    values[1] = torch.full((64, 128), 1.5).to(torch.float8_e4m3fn)
    scales[1] = torch.arange(64, dtype=torch.float32)[:, None]
    start, payload = page_bytes(memory, "keys")
    raw = memory.backing[start : start + payload]
    assert raw[: 64 * 128].unique().tolist() == [0x3C]  # e4m3: exponent 7, mantissa 4 eighths
    assert raw[64 * 128 :].clone().view(torch.float32).tolist() == list(range(64))


def test_flashmla_rows_are_interleaved():
    memory = one_layer("latent", 584)
    parts = memory.parts("latent", latent_row("fp8_ds_mla", 512, 64))
    assert {what: tuple(view.shape) for what, view in parts.items()} == {
        "FP8 values": (2, 64, 448),
        "BF16 RoPE": (2, 64, 64),
        "scales": (2, 64, 8),
    }
    parts["BF16 RoPE"][1, 5] = 1.0
    parts["scales"][1, 5] = 9
    start, _ = page_bytes(memory, "latent")
    row = memory.backing[start + 5 * 584 : start + 6 * 584]
    assert row[448:576].tolist() == [0x80, 0x3F] * 64 and row[576:].tolist() == [9] * 8


def test_state_rows_are_fp32():
    memory = one_layer("state", 8_192, rows=4, kind_of=STATE, before=STATE)
    (view,) = memory.parts("state", state_row(2_048)).values()
    assert (view.dtype, view.shape) == (torch.float32, (2, 4, 2_048))


@pytest.mark.parametrize(
    ("row_bytes", "dtype", "what"),
    [(66, torch.float32, "row stride 66"), (67, torch.bfloat16, "row stride 67")],
)
def test_misaligned_rows_are_refused_with_numbers(row_bytes, dtype, what):
    memory = one_layer("rows", row_bytes)
    with pytest.raises(LayoutError, match=f"layer 'rows' as {dtype}: got {what} bytes, need a multiple"):
        memory.typed("rows", dtype)


@pytest.mark.parametrize(
    ("order", "message"), [(("odd", "rows"), "offset 5 bytes"), (("rows", "odd"), "block stride 53 bytes")]
)
def test_a_misaligned_page_or_stride_is_refused(order, message):
    specs = {"rows": FULL, "odd": replace(FULL, row_bytes=1, fixed_page_bytes=5)}
    slab = standard.pack([own_pages(CacheLayer(name=name, spec=specs[name]) for name in order)])
    memory = allocate(Plan(slab=slab, budget_bytes=2 * slab.block_stride))
    with pytest.raises(
        LayoutError, match=f"layer 'rows' as torch.float32: got {message}, need a multiple of 4"
    ):
        memory.typed("rows", torch.float32)


def test_a_row_format_of_another_length_is_refused():
    memory = one_layer("keys", 68)
    with pytest.raises(InputError, match="row_format: got 'indexer-fp8, 132 bytes', need a row of 68 bytes"):
        memory.parts("keys", indexer_row("fp8", 128))


def test_backings_and_names_are_checked():
    plan = Plan(slab=standard.pack([own_pages([CacheLayer(name="a", spec=FULL)])]), budget_bytes=480)
    for backing, message in (
        (torch.empty(479, dtype=torch.uint8), "got 479, need at least the 480 bytes"),
        (torch.empty(480, dtype=torch.int8), "torch.int8 \\[480\\]"),
        (torch.empty(960, dtype=torch.uint8)[::2], "need a contiguous one-dimensional"),
        (torch.empty(2, 240, dtype=torch.uint8), "need a contiguous one-dimensional"),
    ):
        with pytest.raises(InputError, match=message):
            SlabMemory(plan=plan, backing=backing)
    with pytest.raises(InputError, match="layer: got 'b'"):
        allocate(plan).rows("b")


def test_a_backing_may_lie_inside_a_larger_allocation():
    plan = Plan(slab=standard.pack([own_pages([CacheLayer(name="a", spec=FULL)])]), budget_bytes=480)
    whole = torch.zeros(1_000, dtype=torch.uint8)
    memory = SlabMemory(plan=plan, backing=whole[100:600])
    memory.rows("a").fill_(1)
    assert whole.nonzero().flatten().tolist() == list(range(100, 580))


def test_a_file_that_cannot_be_made_is_one_line(tmp_path: Path):
    plan = Plan(slab=standard.pack([own_pages([CacheLayer(name="a", spec=FULL)])]), budget_bytes=480)
    with pytest.raises(InputError, match="got 'No such file or directory', need a file that holds 480 bytes"):
        map_file(plan, tmp_path / "no" / "slab")


def test_spans_of_a_memory():
    plan = Plan(slab=standard.pack([own_pages([CacheLayer(name="a", spec=FULL)])]), budget_bytes=480)
    memory = allocate(plan)
    memory.backing.fill_(1)
    memory.zero([Span(offset=3, payload_bytes=2, stride=10, count=3)])
    assert (memory.backing == 0).nonzero().flatten().tolist() == [3, 4, 13, 14, 23, 24]


def test_layers_outermost_has_one_region_a_slot():
    layers = [
        CacheLayer(name=f"{n}{i}", spec=s) for n, s in (("f", FULL), ("w", WINDOW_16)) for i in range(2)
    ]
    slab = generation_named("standard").lay_out(layers)
    memory = allocate(Plan(slab=slab, budget_bytes=5 * slab.block_stride))
    assert memory.rows("f1").stride(0) == 48 and memory.page("f1").offset == 5 * 48
    assert memory.page("w1").offset == memory.page("f1").offset
