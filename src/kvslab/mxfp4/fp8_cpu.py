# mypy: allow-untyped-decorators, allow-untyped-calls
"""FP8 rows on the CPU: the same fused passes as for MXFP4, over flat windows of memory."""

import functools
from typing import Any

import numpy as np
import torch
from numba import prange

from kvslab.mxfp4.checks import PagedView
from kvslab.mxfp4.contract import FP8_FLOOR_BYTE
from kvslab.mxfp4.cpu import window
from kvslab.mxfp4.jit import compiled, parallel

CHUNK = 128


@compiled
def _encode(row: Any, values: Any, values_at: int, floor_byte: Any) -> Any:
    """Quantize 128 fp32 numbers; returns the exponent byte of the scale, 255 for a NaN row."""
    patterns = row.view(np.int32)
    largest: Any = np.int32(0)
    for i in range(128):
        largest = max(largest, np.int32(patterns[i] & np.int32(0x7FFFFFFF)))
    if largest > 0x7F800000:
        for i in range(128):
            values[values_at + i] = 0
        return 255
    byte: Any = max(((np.int64(largest) + 0x1FFFFF) >> 23) - 8, floor_byte)
    reciprocal = np.float32(2.0 ** np.float64(127 - byte))
    for i in range(128):
        scaled = np.float32(min(abs(row[i]) * reciprocal, np.float32(448.0)))
        if scaled < np.float32(0.015625):
            code = np.int64(np.rint(scaled * np.float32(512.0)))
        else:
            # Four significant bits, to nearest even: scale the number to a whole one and back.
            exponent = np.int64(np.floor(np.log2(np.float64(scaled))))
            whole = np.int64(np.rint(np.float64(scaled) * 2.0 ** np.float64(3 - exponent)))
            code = ((exponent + 6) << 3) + whole
        sign = 0x80 if patterns[i] < 0 else 0
        values[values_at + i] = np.uint8(code | sign)
    return byte


@parallel
def _quantize_rows(
    x: Any,
    slots: Any,
    values: Any,
    values_step: int,
    scales: Any,
    num_slots: int,
    rows_per_page: int,
    floor_byte: int,
) -> None:
    """Rows to plain outputs (`rows_per_page` 0) or to slots of a slab (`values_step` its stride)."""
    count = x.shape[0]
    for chunk in prange((count + CHUNK - 1) // CHUNK):
        row = np.empty(128, np.float32)
        pattern = np.empty(1, np.int32)
        for n in range(chunk * CHUNK, min(count, (chunk + 1) * CHUNK)):
            row[:] = x[n]
            if rows_per_page == 0:
                byte = _encode(row, values, n * values_step, floor_byte)
                scales[n] = np.nan if byte == 255 else np.float32(2.0 ** np.float64(byte - 127))
                continue
            slot = slots[n]
            if slot < 0 or slot >= num_slots:
                continue
            block = slot // rows_per_page
            index = slot - block * rows_per_page
            page = block * values_step
            byte = _encode(row, values, page + index * 128, floor_byte)
            pattern[0] = 0x7FC00000 if byte == 255 else byte << 23
            as_bytes = pattern.view(np.uint8)
            at = page + rows_per_page * 128 + index * 4
            for i in range(4):
                values[at + i] = as_bytes[i]


@parallel
def _gather_rows(
    slab: Any,
    block_stride: int,
    num_blocks: int,
    rows_per_page: int,
    block_table: Any,
    lengths: Any,
    out: Any,
    table: Any,
) -> None:
    longest = out.shape[1]
    chunks = (longest + CHUNK - 1) // CHUNK
    for task in prange(block_table.shape[0] * chunks):
        request = task // chunks
        first = (task - request * chunks) * CHUNK
        as_bytes = np.empty(4, np.uint8)
        for position in range(first, min(longest, first + CHUNK)):
            column = position // rows_per_page
            block = np.int64(-1)
            if position < lengths[request] and column < block_table.shape[1]:
                block = block_table[request, column]
            if block < 0 or block >= num_blocks:
                out[request, position, :] = 0
                continue
            index = position - column * rows_per_page
            page = block * block_stride
            for i in range(4):
                as_bytes[i] = slab[page + rows_per_page * 128 + index * 4 + i]
            scale = as_bytes.view(np.float32)[0]
            at = page + index * 128
            for i in range(128):
                out[request, position, i] = table[slab[at + i]] * scale


@functools.cache
def _table() -> Any:
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    return every.to(torch.float32).numpy()


def _run(x: torch.Tensor, slots: Any, values: Any, step: int, scales: Any, view: PagedView | None) -> None:
    rows = x.detach().to(torch.float32).numpy()
    num_slots, rows_per_page = (0, 0) if view is None else (view.num_slots, view.page.rows_per_page)
    _quantize_rows(rows, slots, values, step, scales, num_slots, rows_per_page, FP8_FLOOR_BYTE)


def quantize(x: torch.Tensor, values: torch.Tensor, scales: torch.Tensor) -> None:
    """Quantize `x[N, 128]` into `values[N, 128]`, uint8, and `scales[N]`, float32."""
    _run(x, np.empty(0, np.int64), window(values), values.stride(0), scales.numpy(), None)


def insert(view: PagedView, x: torch.Tensor, slots: torch.Tensor) -> None:
    """Quantize `x[N, 128]` and write each row at its slot."""
    places = slots.to(torch.int64).contiguous().numpy()
    _run(x, places, window(view.data), view.block_stride, np.empty(0, np.float32), view)


def gather(view: PagedView, block_table: torch.Tensor, lengths: torch.Tensor, out: torch.Tensor) -> None:
    """Read rows into `out[B, L, 128]`; rows past a length are zero."""
    wide = out if out.dtype == torch.float32 else torch.empty(out.shape, dtype=torch.float32)
    _gather_rows(
        window(view.data),
        view.block_stride,
        view.num_blocks,
        view.page.rows_per_page,
        block_table.to(torch.int64).contiguous().numpy(),
        lengths.to(torch.int64).contiguous().numpy(),
        wide.numpy(),
        _table(),
    )
    if wide is not out:
        out.copy_(wide)
