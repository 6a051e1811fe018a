# mypy: allow-untyped-decorators, allow-untyped-calls
"""The CPU kernels that read: three lines meet in the E2M1 grid.

Twice the value of a magnitude code m is convex and piecewise linear, so it is a maximum::

    0 1 2 3 4 6 8 12  =  max(m, 2m - 4, 4m - 16)

The product with half the scale is exact; the sign of the scale carries the sign of the
element, which keeps a negative zero.  A bf16 output is the upper half of the pattern.
"""

from typing import Any

import numpy as np
from numba import prange
from numba.extending import overload

from kvslab.mxfp4.cpu_encode import CHUNK
from kvslab.mxfp4.jit import compiled, parallel

_i32 = np.int32
_at = np.uint64


def _put(out: Any, at: Any, patterns: Any) -> None:
    """Store 128 fp32 patterns: `out` takes fp32 (int32) or bf16 (int16) patterns."""
    raise NotImplementedError


@overload(_put)
def _put_overload(out: Any, at: Any, patterns: Any) -> Any:  # pragma: no cover - compiled
    if out.dtype.bitwidth == 32:

        def put(out: Any, at: Any, patterns: Any) -> None:
            for i in range(_at(128)):
                out[at + i] = patterns[i]
    else:

        def put(out: Any, at: Any, patterns: Any) -> None:
            for i in range(_at(128)):
                out[at + i] = np.int16(patterns[i] >> 16)

    return put


@compiled
def _decode(
    values: Any,
    values_at: Any,
    scales: Any,
    scales_at: Any,
    out: Any,
    out_at: Any,
    count: Any,
    halves: Any,
    half_microblock: Any,
) -> None:
    """Dequantize `count` rows; `halves[256]` holds half of each scale."""
    row = np.empty(128, np.float32)
    patterns = row.view(np.int32)
    for n in range(_at(count)):
        at, scale_at = values_at[n], scales_at[n]
        for group in range(_at(4)):
            byte = scales[scale_at + group]
            start, first = at + group * _at(16), group * _at(32)
            if byte == 255:
                for i in range(_at(32)):
                    patterns[first + i] = _i32(0x7FC00000)
                continue
            plus = halves[byte]
            minus = np.float32(-plus)
            for i in range(half_microblock):
                pair = _i32(values[start + i])
                low, high = _i32(pair & _i32(7)), _i32(_i32(pair >> 4) & _i32(7))
                low = max(max(low, _i32(_i32(2) * low - _i32(4))), _i32(_i32(4) * low - _i32(16)))
                high = max(max(high, _i32(_i32(2) * high - _i32(4))), _i32(_i32(4) * high - _i32(16)))
                row[first + _at(2) * i] = np.float32(low) * (minus if pair & _i32(8) else plus)
                row[first + _at(2) * i + _at(1)] = np.float32(high) * (minus if pair & _i32(128) else plus)
        _put(out, out_at[n], patterns)


@compiled
def dequantize_chunk(
    values: Any,
    values_step: Any,
    scales: Any,
    scales_step: Any,
    first: Any,
    last: Any,
    out: Any,
    out_step: Any,
    halves: Any,
    half_microblock: Any,
) -> None:
    """Dequantize rows `first` to `last - 1`, at most CHUNK."""
    at, scales_at, to = np.empty(CHUNK, _at), np.empty(CHUNK, _at), np.empty(CHUNK, _at)
    for n in range(first, last):
        at[n - first], scales_at[n - first] = _at(n * values_step), _at(n * scales_step)
        to[n - first] = _at(n * out_step)
    _decode(values, at, scales, scales_at, out, to, last - first, halves, _at(half_microblock))


@compiled
def gather_chunk(
    slab: Any,
    block_stride: Any,
    num_blocks: Any,
    rows_per_page: Any,
    block_table: Any,
    lengths: Any,
    request: Any,
    first: Any,
    last: Any,
    out: Any,
    out_at: Any,
    out_step: Any,
    halves: Any,
    half_microblock: Any,
) -> None:
    """Read positions `first` to `last - 1` of one request; positions without a row are zero."""
    at, scales_at, to = np.empty(CHUNK, _at), np.empty(CHUNK, _at), np.empty(CHUNK, _at)
    columns, found = block_table.shape[1], 0
    for position in range(first, last):
        column = position // rows_per_page
        block = np.int64(-1)
        if position < lengths[request] and column < columns:
            block = np.int64(block_table[request, column])
        target = out_at + position * out_step
        if block < 0 or block >= num_blocks:
            out[target : target + 128] = 0
            continue
        index = position - column * rows_per_page
        page = block * block_stride
        at[found], scales_at[found] = _at(page + index * 64), _at(page + rows_per_page * 64 + index * 4)
        to[found] = _at(target)
        found += 1
    _decode(slab, at, slab, scales_at, out, to, found, halves, _at(half_microblock))


@parallel
def dequantize_rows(
    values: Any,
    values_step: Any,
    scales: Any,
    scales_step: Any,
    count: Any,
    out: Any,
    out_step: Any,
    halves: Any,
    half_microblock: Any,
) -> None:
    """`dequantize_chunk` over all rows, in parallel."""
    for chunk in prange((count + CHUNK - 1) // CHUNK):
        first = chunk * CHUNK
        last = min(count, first + CHUNK)
        dequantize_chunk(
            values, values_step, scales, scales_step, first, last, out, out_step, halves, half_microblock
        )


@parallel
def gather_rows(
    slab: Any,
    block_stride: Any,
    num_blocks: Any,
    rows_per_page: Any,
    block_table: Any,
    lengths: Any,
    longest: Any,
    out: Any,
    out_request_step: Any,
    out_step: Any,
    halves: Any,
    half_microblock: Any,
) -> None:
    """`gather_chunk` over all requests and positions, in parallel."""
    chunks = (longest + CHUNK - 1) // CHUNK
    for task in prange(block_table.shape[0] * chunks):
        request = task // chunks
        first = (task - request * chunks) * CHUNK
        last = min(longest, first + CHUNK)
        gather_chunk(
            slab,
            block_stride,
            num_blocks,
            rows_per_page,
            block_table,
            lengths,
            request,
            first,
            last,
            out,
            request * out_request_step,
            out_step,
            halves,
            half_microblock,
        )
