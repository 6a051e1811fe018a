# mypy: allow-untyped-decorators, allow-untyped-calls
"""The CPU kernels that write: Numba, compiled on first use, parallel over chunks of rows.

Everything is an integer comparison on the fp32 pattern.  With the sign cleared, patterns
order like the numbers they stand for, so a microblock's largest magnitude is an integer
maximum.  Subtracting `(byte - 1) << 23` moves the pattern to `u`, in which code 2 (the value
1.0) starts at `2 << 22`, and from there on the code is `u >> 22`, rounded to nearest.  Below
1.0 the grid is even and not logarithmic: there the code counts the ties 0.25 and 0.75 that
`u` has passed.  The larger of both is right everywhere.

Arrays are flat windows of memory with explicit steps, so a view of a slab, a transposed or
an expanded input all reach the same code, and an index is 64-bit.

Two things look odd and are meant.  Every operation is cast back to int32, because Numba
widens to 64 bits and halves the lanes; and `microblock` is an argument although it is always
32, because LLVM unrolls a constant loop before it can turn the maximum into vector code.
"""

from typing import Any

import numpy as np
from numba import prange
from numba.extending import overload

from kvslab.mxfp4.jit import compiled, parallel

_i32 = np.int32
_u8 = np.uint8
_at = np.uint64

CHUNK = 128
"""Rows that one thread takes at a time, and the most that a `_chunk` function takes."""


def _word(x: Any, index: Any) -> Any:
    """Element `index` as an fp32 pattern: `x` holds fp32 (int32) or bf16 (int16) patterns."""
    raise NotImplementedError


@overload(_word, inline="always")
def _word_overload(x: Any, index: Any) -> Any:  # pragma: no cover - compiled
    if x.dtype.bitwidth == 32:

        def word(x: Any, index: Any) -> Any:
            return x[index]
    else:

        def word(x: Any, index: Any) -> Any:
            return _i32(_i32(x[index]) << 16)

    return word


@compiled
def _special_codes(x: Any, start: Any, codes: Any, first: Any, byte: Any, formula: Any, has_nan: Any) -> None:
    """The 32 codes of a microblock that holds a NaN or an infinity, one by one."""
    keeps_zero, nan_byte, nan_code, nan_zeroes = formula[3], formula[4], formula[6], formula[7]
    for i in range(_at(32)):
        word = np.int64(_word(x, start + i))
        magnitude, sign = word & 0x7FFFFFFF, (word >> 28) & 8
        if magnitude > 0x7F800000:
            code: Any = nan_code
            if not keeps_zero:
                sign = np.int64(0)
        elif has_nan and nan_byte == 255:
            code = nan_code if magnitude == 0x7F800000 else 0
        else:
            code = 0
            for tie in range(7):
                # The patterns of the ties .25 .75 1.25 1.75 2.5 3.5 5, less that of 1.0.
                above = (-0x1000000, -0x400000, 0x200000, 0x600000, 0xA00000, 0xE00000, 0x1200000)[tie]
                limit = (byte << 23) + above - (formula[2] if tie % 2 == 1 else 0)
                if magnitude == 0x7F800000 or magnitude > limit:
                    code += 1
            if code == 0 and not keeps_zero:
                sign = np.int64(0)
        codes[first + i] = 0 if (has_nan and nan_zeroes) else code | sign


@compiled
def _encode(
    x: Any,
    sources: Any,
    values: Any,
    values_at: Any,
    scales: Any,
    scales_at: Any,
    count: Any,
    formula: Any,
    microblock: Any,
) -> None:
    """Quantize `count` rows of adjacent elements; three arrays say where each is and goes.

    Every index is unsigned, which spares the test for a negative one, and the rows of a chunk
    share one call, which spares counting references for each row.
    """
    add, floor_byte = formula[0], formula[1]
    odd = _i32(1 if formula[2] else 0)
    half = _i32(0x1FFFFF)
    codes = np.empty(128, np.uint8)
    pairs = codes.view(np.uint16)
    for n in range(_at(count)):
        at, to, scale_to = sources[n], values_at[n], scales_at[n]
        for group in range(_at(4)):
            first = group * _at(32)
            start = at + first
            largest = _i32(0)
            for i in range(microblock):
                largest = max(largest, _i32(_word(x, start + i) & _i32(0x7FFFFFFF)))
            if largest >= 0x7F800000:
                has_nan = largest > 0x7F800000
                byte = formula[4] if has_nan else formula[5]
                scales[scale_to + group] = _u8(byte)
                _special_codes(x, start, codes, first, byte, formula, has_nan)
                continue
            byte = max(((np.int64(largest) + add) >> 23) - 2, floor_byte)
            scales[scale_to + group] = _u8(byte)
            byte = max(byte, 1)
            base = _i32((byte - 1) << 23)
            # Ties 0.25 and 0.75 in `u`; under scale bytes 1 and 2 they are subnormal numbers.
            if byte == 1:
                quarter, three_quarters = 0x200000, 0x600000
            elif byte == 2:
                quarter, three_quarters = 0x400000 - 0x800000, 0x400000
            else:
                quarter, three_quarters = -0x800000, 0x400000
            quarter_tie = _i32(quarter)
            three_quarters_tie = _i32(three_quarters - odd)
            for i in range(microblock):
                word = _i32(_word(x, start + i))
                u = _i32(_i32(word & _i32(0x7FFFFFFF)) - base)
                rounded = _i32(_i32(u + half + _i32(_i32(u >> 22) & odd)) >> 22)
                small = _i32(_i32(u > quarter_tie) + _i32(u > three_quarters_tie))
                code = min(max(rounded, small), _i32(7))
                codes[first + i] = _u8(_i32(code) | _i32(_i32(word >> 28) & 8))
        if formula[3] == 0:
            for i in range(_at(128)):
                if codes[i] == 8:
                    codes[i] = 0
        for i in range(_at(64)):
            pair = pairs[i]
            values[to + i] = _u8(pair | (pair >> 4))


@compiled
def _adjacent(x: Any, first: Any, last: Any, row_step: Any, step: Any, sources: Any) -> Any:
    """Rows `first` to `last - 1` with adjacent elements: `x` itself, or a copy of them."""
    for n in range(first, last):
        sources[n - first] = _at(n * row_step)
    if step == 1:
        return x
    packed = np.empty((last - first) * 128, x.dtype)
    for n in range(first, last):
        sources[n - first] = _at((n - first) * 128)
        for i in range(128):
            packed[(n - first) * 128 + i] = x[n * row_step + i * step]
    return packed


@compiled
def quantize_chunk(
    x: Any,
    first: Any,
    last: Any,
    row_step: Any,
    step: Any,
    values: Any,
    values_step: Any,
    scales: Any,
    scales_step: Any,
    formula: Any,
    microblock: Any,
) -> None:
    """Quantize rows `first` to `last - 1`, at most CHUNK."""
    sources, to, scales_to = np.empty(CHUNK, _at), np.empty(CHUNK, _at), np.empty(CHUNK, _at)
    rows = _adjacent(x, first, last, row_step, step, sources)
    for n in range(first, last):
        to[n - first], scales_to[n - first] = _at(n * values_step), _at(n * scales_step)
    _encode(rows, sources, values, to, scales, scales_to, last - first, formula, _at(microblock))


@compiled
def insert_chunk(
    x: Any,
    first: Any,
    last: Any,
    row_step: Any,
    step: Any,
    slots: Any,
    slab: Any,
    block_stride: Any,
    num_blocks: Any,
    rows_per_page: Any,
    formula: Any,
    microblock: Any,
) -> None:
    """Quantize rows `first` to `last - 1`, at most CHUNK, straight into their slots."""
    sources, to, scales_to = np.empty(CHUNK, _at), np.empty(CHUNK, _at), np.empty(CHUNK, _at)
    rows = _adjacent(x, first, last, row_step, step, sources)
    kept = 0
    for n in range(first, last):
        slot = np.int64(slots[n])
        if slot < 0 or slot >= num_blocks * rows_per_page:
            continue
        block = slot // rows_per_page
        row = slot - block * rows_per_page
        page = block * block_stride
        sources[kept] = sources[n - first]
        to[kept], scales_to[kept] = _at(page + row * 64), _at(page + rows_per_page * 64 + row * 4)
        kept += 1
    _encode(rows, sources, slab, to, slab, scales_to, kept, formula, _at(microblock))


@parallel
def quantize_rows(
    x: Any,
    count: Any,
    row_step: Any,
    step: Any,
    values: Any,
    values_step: Any,
    scales: Any,
    scales_step: Any,
    formula: Any,
    microblock: Any,
) -> None:
    """`quantize_chunk` over all rows, in parallel."""
    for chunk in prange((count + CHUNK - 1) // CHUNK):
        first = chunk * CHUNK
        last = min(count, first + CHUNK)
        quantize_chunk(
            x, first, last, row_step, step, values, values_step, scales, scales_step, formula, microblock
        )


@parallel
def insert_rows(
    x: Any,
    count: Any,
    row_step: Any,
    step: Any,
    slots: Any,
    slab: Any,
    block_stride: Any,
    num_blocks: Any,
    rows_per_page: Any,
    formula: Any,
    microblock: Any,
) -> None:
    """`insert_chunk` over all rows, in parallel."""
    for chunk in prange((count + CHUNK - 1) // CHUNK):
        first = chunk * CHUNK
        last = min(count, first + CHUNK)
        insert_chunk(
            x,
            first,
            last,
            row_step,
            step,
            slots,
            slab,
            block_stride,
            num_blocks,
            rows_per_page,
            formula,
            microblock,
        )
