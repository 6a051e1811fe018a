# mypy: allow-untyped-decorators, allow-untyped-calls
"""The CPU kernels that read: a byte is two table entries, a microblock one multiplication.

A table of 256 entries holds both fp32 numbers of a byte as one 64-bit word, so a row is 64
loads and 4 vector products.  Every product is exact, so its bf16 form is the upper half of
its pattern.
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
    pairs: Any,
    powers: Any,
    row: Any,
) -> None:
    """Dequantize one row; `pairs[256]` holds the two elements of each byte, `powers` the scales."""
    patterns, doubles = row.view(np.int32), row.view(np.int64)
    for group in range(_at(4)):
        byte = scales[scales_at + group]
        first = group * _at(16)
        if byte == 255:
            for i in range(_at(32)):
                patterns[group * _at(32) + i] = _i32(0x7FC00000)
            continue
        for i in range(_at(16)):
            doubles[first + i] = pairs[values[values_at + first + i]]
        scale = powers[byte]
        for i in range(_at(32)):
            row[group * _at(32) + i] *= scale
    _put(out, out_at, patterns)


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
    pairs: Any,
    powers: Any,
) -> None:
    """Dequantize rows `first` to `last - 1`."""
    row = np.empty(128, np.float32)
    for n in range(first, last):
        at, scale_at, to = _at(n * values_step), _at(n * scales_step), _at(n * out_step)
        _decode(values, at, scales, scale_at, out, to, pairs, powers, row)


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
    pairs: Any,
    powers: Any,
) -> None:
    """Read positions `first` to `last - 1` of one request; positions without a row are zero."""
    row = np.empty(128, np.float32)
    columns = block_table.shape[1]
    for position in range(first, last):
        column = position // rows_per_page
        block = np.int64(-1)
        if position < lengths[request] and column < columns:
            block = np.int64(block_table[request, column])
        to = out_at + position * out_step
        if block < 0 or block >= num_blocks:
            out[to : to + 128] = 0
            continue
        index = position - column * rows_per_page
        page = block * block_stride
        at, scale_at = _at(page + index * 64), _at(page + rows_per_page * 64 + index * 4)
        _decode(slab, at, slab, scale_at, out, _at(to), pairs, powers, row)


@parallel
def dequantize_rows(
    values: Any,
    values_step: Any,
    scales: Any,
    scales_step: Any,
    count: Any,
    out: Any,
    out_step: Any,
    pairs: Any,
    powers: Any,
) -> None:
    """`dequantize_chunk` over all rows, in parallel."""
    for chunk in prange((count + CHUNK - 1) // CHUNK):
        first = chunk * CHUNK
        last = min(count, first + CHUNK)
        dequantize_chunk(values, values_step, scales, scales_step, first, last, out, out_step, pairs, powers)


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
    pairs: Any,
    powers: Any,
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
            pairs,
            powers,
        )
