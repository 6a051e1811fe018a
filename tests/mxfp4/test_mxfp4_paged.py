"""Guards the address arithmetic: a dropped stride, a 32-bit offset, a byte written outside a row.

The slab is noise before every insert, and the whole slab is compared afterwards with what
the codec makes of a flat byte string.
"""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mxfp4_inputs import (
    FAST_BACKENDS,
    codec_bytes,
    guarded_slab,
    inserted_by_codec,
    mixed_rows,
    view_of,
    words,
)

from kvslab import mxfp4
from kvslab.mxfp4 import Rule, codec
from kvslab.mxfp4.contract import PageGeometry

LAYOUTS = [
    # rows_per_page, num_blocks, block_stride, offset of the page in the slab, page bytes past the rows
    (64, 3, 1_228_800, 376_832, 256),
    (64, 3, 1_315_008, 0, 0),
    (32, 4, 5_003, 11, 3),
    (7, 9, 479, 1, 2),
    (2, 40, 137, 0, 1),
    (64, 5, 4_352, 0, 0),
]


def read_by_codec(
    slab: torch.Tensor, block_id: int, row: int, block_stride: int, rows: int, offset: int
) -> list[int]:
    flat = memoryview(slab.numpy()).cast("B")[offset:]
    return codec.read_row(
        flat, block_id, row, page=PageGeometry(rows_per_page=rows), block_stride=block_stride
    )


def as_patterns(x: torch.Tensor) -> torch.Tensor:
    """Numbers as patterns, with one pattern for NaN."""
    return torch.where(x.isnan(), 0x7FC00000, x.to(torch.float32).view(torch.int32))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_insert_writes_its_rows_and_nothing_else(
    backend: str, dtype: torch.dtype, layout: tuple[int, int, int, int, int]
) -> None:
    rows, num_blocks, stride, offset, pad = layout
    slab = guarded_slab(offset + num_blocks * stride)
    generator = torch.Generator().manual_seed(rows)
    slots = torch.randperm(rows * num_blocks, generator=generator)[: rows * num_blocks * 2 // 3]
    slots[1::9] = -1
    x = mixed_rows(len(slots), seed=rows, dtype=dtype)
    expected = inserted_by_codec(
        slab, x, slots.tolist(), block_stride=stride, rows_per_page=rows, offset=offset
    )
    view = view_of(
        slab, num_blocks=num_blocks, block_stride=stride, rows_per_page=rows, offset=offset, pad=pad
    )
    mxfp4.insert(view, x, slots, rows_per_page=rows, backend=backend)
    assert torch.equal(slab, expected)


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("backend", ["codec", *FAST_BACKENDS])
def test_insert_follows_the_rule(backend: str, rule: Rule) -> None:
    slab, x = guarded_slab(2_000), mixed_rows(9, seed=4)
    slots = torch.tensor([13, 2, -1, 5, 0, 20, 6, 7, 1], dtype=torch.int32)
    expected = inserted_by_codec(slab, x, slots.tolist(), block_stride=600, rows_per_page=7, rule=rule)
    view = view_of(slab, num_blocks=3, block_stride=600, rows_per_page=7)
    mxfp4.insert(view, x, slots, rows_per_page=7, rule=rule, backend=backend)
    assert torch.equal(slab, expected)


@pytest.mark.parametrize("backend", ["codec", *FAST_BACKENDS])
def test_the_last_of_repeated_slots_wins(backend: str) -> None:
    slab, x = guarded_slab(2_000), mixed_rows(300, seed=6)
    slots = torch.arange(300) % 14
    slots[::5] = -1
    expected = inserted_by_codec(slab, x, slots.tolist(), block_stride=500, rows_per_page=7)
    view = view_of(slab, num_blocks=2, block_stride=500, rows_per_page=7)
    mxfp4.insert(view, x, slots, rows_per_page=7, backend=backend)
    assert torch.equal(slab, expected)


@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_unchecked_slots_out_of_range_are_never_written(backend: str) -> None:
    slab, x = guarded_slab(3_000), mixed_rows(6, seed=8)
    slots = torch.tensor([14, -2, 2**40, 3, -(2**40), 1_000_000])
    kept = [-1, -1, -1, 3, -1, -1]
    expected = inserted_by_codec(slab, x, kept, block_stride=700, rows_per_page=7, offset=100)
    view = view_of(slab, num_blocks=2, block_stride=700, rows_per_page=7, offset=100)
    mxfp4.insert(view, x, slots, rows_per_page=7, checked=False, backend=backend)
    assert torch.equal(slab, expected)


@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_insert_takes_inputs_of_any_stride(backend: str) -> None:
    base = mixed_rows(150, seed=12)
    slots = torch.arange(150).flip(0)
    wide = torch.zeros((150, 140))
    wide[:, 5:133] = base
    for x, stored in (
        (base[:128].T.contiguous().T, base[:128]),
        (wide[:, 5:133], base),
        (base[3:4].expand(40, 128), base[3:4].expand(40, 128)),
        (base[::3], base[::3]),
        (base[:0], base[:0]),
        (base.to(torch.float16), base.to(torch.float16)),
    ):
        slab, where = guarded_slab(4_000 * 4), slots[: len(x)] if len(x) else slots[:0]
        expected = inserted_by_codec(slab, stored, where.tolist(), block_stride=4_000, rows_per_page=40)
        view = view_of(slab, num_blocks=4, block_stride=4_000, rows_per_page=40)
        mxfp4.insert(view, x, where, rows_per_page=40, backend=backend)
        assert torch.equal(slab, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_gather_reads_every_row_of_the_table(
    backend: str, dtype: torch.dtype, layout: tuple[int, int, int, int, int]
) -> None:
    """The slab is noise: all scale bytes, NaN among them, and all codes are read."""
    rows, num_blocks, stride, offset, pad = layout
    slab = guarded_slab(offset + num_blocks * stride, seed=rows)
    view = view_of(
        slab, num_blocks=num_blocks, block_stride=stride, rows_per_page=rows, offset=offset, pad=pad
    )
    table = torch.tensor([[2, 0, 1], [1, 1, 2], [0, 2, -1]])
    lengths = torch.tensor([3 * rows - 1, rows + 1, 0])
    got = mxfp4.gather(view, table, lengths, rows_per_page=rows, dtype=dtype, backend=backend)
    assert got.shape == (3, 3 * rows - 1, 128)
    expected = torch.zeros((3, 3 * rows - 1, 128), dtype=torch.int32)
    for request, length in enumerate(lengths.tolist()):
        for position in range(length):
            block = int(table[request, position // rows])
            line = read_by_codec(slab, block, position % rows, stride, rows, offset)
            expected[request, position] = torch.tensor([p - 2**32 if p >> 31 else p for p in line])
    assert torch.equal(as_patterns(got), expected)


@pytest.mark.parametrize("backend", ["codec", *FAST_BACKENDS])
def test_gather_into_an_output_longer_than_needed(backend: str) -> None:
    slab = guarded_slab(1_500)
    view = view_of(slab, num_blocks=3, block_stride=500, rows_per_page=7)
    table, lengths = torch.tensor([[2, 0]], dtype=torch.int32), torch.tensor([9], dtype=torch.int32)
    short = mxfp4.gather(view, table, lengths, rows_per_page=7, backend="codec")
    out = torch.full((1, 20, 140), 5.0)
    got = mxfp4.gather(
        view, table, lengths, rows_per_page=7, max_length=20, out=out[:, :, 4:132], backend=backend
    )
    assert torch.equal(as_patterns(got[:, :9]), as_patterns(short))
    assert not bool(got[:, 9:].any())
    assert bool((out[:, :, :4] == 5).all()) and bool((out[:, :, 132:] == 5).all())


@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_empty_requests_blocks_and_tables(backend: str) -> None:
    slab = guarded_slab(1_500)
    view = view_of(slab, num_blocks=3, block_stride=500, rows_per_page=7)
    none = torch.zeros((0,), dtype=torch.int64)
    got = mxfp4.gather(view, torch.zeros((0, 4), dtype=torch.int64), none, rows_per_page=7, backend=backend)
    assert got.shape == (0, 0, 128)
    got = mxfp4.gather(
        view, torch.zeros((2, 0), dtype=torch.int64), torch.zeros(2).long(), rows_per_page=7, backend=backend
    )
    assert got.shape == (2, 0, 128)
    before = slab.clone()
    mxfp4.insert(view[:0], torch.zeros((1, 128)), torch.tensor([-1]), rows_per_page=7, backend=backend)
    mxfp4.insert(view, torch.zeros((0, 128)), none, rows_per_page=7, backend=backend)
    assert torch.equal(slab, before)


@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_unchecked_block_ids_out_of_range_read_as_no_rows(backend: str) -> None:
    slab = guarded_slab(1_500)
    view = view_of(slab, num_blocks=3, block_stride=500, rows_per_page=7)
    table, lengths = torch.tensor([[1, 3, -5, 2**40]]), torch.tensor([99])
    got = mxfp4.gather(view, table, lengths, rows_per_page=7, max_length=40, checked=False, backend=backend)
    kept = mxfp4.gather(view, table[:, :1], torch.tensor([7]), rows_per_page=7, backend="codec")
    assert torch.equal(as_patterns(got[:, :7]), as_patterns(kept))
    assert not bool(got[:, 7:].any())


@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_offsets_past_two_to_the_31(tmp_path: Path, backend: str) -> None:
    """Block 1,748 of a 1,228,800-byte stride starts past byte 2**31; the file is sparse."""
    stride, num_blocks = 1_228_800, 3_600
    path = tmp_path / "slab"
    slab = torch.from_file(str(path), shared=True, size=stride * num_blocks, dtype=torch.uint8)
    view = view_of(slab, num_blocks=num_blocks, block_stride=stride, rows_per_page=64, offset=4_608)
    blocks = [0, 1_747, 1_748, 3_495, 3_599]
    slots = torch.tensor([block * 64 + row for block in blocks for row in (0, 63)])
    x = mixed_rows(len(slots), seed=21)
    mxfp4.insert(view, x, slots, rows_per_page=64, backend=backend)
    values, scales = codec_bytes(x)
    with path.open("rb") as stream:
        for index, slot in enumerate(slots.tolist()):
            page = 4_608 + slot // 64 * stride
            stream.seek(page + slot % 64 * 64)
            assert stream.read(64) == bytes(values[index].tolist())
            stream.seek(page + 64 * 64 + slot % 64 * 4)
            assert stream.read(4) == bytes(scales[index].tolist())
    got = mxfp4.gather(
        view, torch.tensor([blocks]), torch.tensor([64 * 5]), rows_per_page=64, backend=backend
    )
    for index in range(len(slots)):
        position = index // 2 * 64 + (63 if index % 2 else 0)
        line = codec.dequantize_row(values[index].tolist(), scales[index].tolist())
        assert words(got[0, position : position + 1])[0] == line or got[0, position].isnan().any()
    # Storage that was touched: the pages that hold the rows, not the file.
    assert path.stat().st_blocks * 512 < 2**26


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_was_inserted_is_gathered(data: st.DataObject) -> None:
    """Law: address of a slot and address of a position meet, for any geometry and any order."""
    rows = data.draw(st.sampled_from([1, 2, 5, 7, 32, 64]))
    num_blocks = data.draw(st.integers(2, 6))
    pad, gap = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 9))
    stride = rows * 68 + pad + gap
    slab = guarded_slab(num_blocks * stride)
    view = view_of(slab, num_blocks=num_blocks, block_stride=stride, rows_per_page=rows, pad=pad)
    order = data.draw(st.permutations(range(num_blocks)))
    count = data.draw(st.integers(0, rows * num_blocks))
    x = torch.randn((count, 128), generator=torch.Generator().manual_seed(count))
    slots = torch.tensor([order[i // rows] * rows + i % rows for i in range(count)], dtype=torch.int64)
    mxfp4.insert(view, x, slots, rows_per_page=rows, backend="cpu")
    got = mxfp4.gather(view, torch.tensor([order]), torch.tensor([count]), rows_per_page=rows, backend="cpu")
    expected = mxfp4.dequantize(*mxfp4.quantize(x, backend="reference"), backend="reference")
    assert torch.equal(got[0].view(torch.int32), expected.view(torch.int32))
