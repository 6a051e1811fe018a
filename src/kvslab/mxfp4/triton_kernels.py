# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The GPU kernels that write and read rows, in Triton: what a program does, and why.

A program of `encode` or `decode` takes BLOCK *microblocks*, not rows: a microblock is a line
of 32 elements, so its largest magnitude stays within a few neighbouring threads, a thread
reads 16 adjacent bytes, and a page of any number of rows needs no special case.

Rounding is integer arithmetic on the fp32 pattern (see `cpu_encode` for the formula); from
sm_100 on `cvt.rn.satfinite.e2m1x2.f32` does the same in one instruction for two elements.
Decoding puts the magnitude code into the top bits of a subnormal fp32 number, where the
E2M1 grid and the fp32 grid agree, and multiplies by 2**126: both steps are exact.

Offsets are 64-bit.  A slot, a block id or a position out of range is masked, never followed.
"""

import triton
import triton.language as tl

INFINITY = tl.constexpr(0x7F800000)
MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _largest(a, b):
    return tl.maximum(a, b)


@triton.jit
def _power_of_two(byte):
    """`2**(byte - 127)` for bytes 0 to 254; NaN for 255."""
    bits = tl.where(byte == 0, 0x00400000, byte << 23)
    bits = tl.where(byte == 255, 0x7FC00000, bits)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _convert_pair(low, high):
    """Two scaled fp32 numbers to one byte, nearest-even, saturating (sm_100 and up)."""
    return tl.inline_asm_elementwise(
        "{ .reg .b8 pair; cvt.rn.satfinite.e2m1x2.f32 pair, $1, $2; cvt.u32.u8 $0, pair; }",
        constraints="=r,f,f",
        args=[high, low],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def encode(
    x,
    values,
    scales,
    slots,
    count,
    row_stride,
    element_stride,
    values_stride,
    scales_stride,
    block_stride,
    num_slots,
    rows_per_page,
    ADD: tl.constexpr,
    FLOOR_BYTE: tl.constexpr,
    TIES_TO_EVEN: tl.constexpr,
    KEEPS_NEGATIVE_ZERO: tl.constexpr,
    NAN_BYTE: tl.constexpr,
    INF_BYTE: tl.constexpr,
    NAN_CODE: tl.constexpr,
    NAN_ZEROES: tl.constexpr,
    PAGED: tl.constexpr,
    HARDWARE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Quantize BLOCK microblocks a program; PAGED: into the slots of a slab."""
    microblock = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    n = microblock // 4
    group = (microblock % 4).to(tl.int32)
    valid = n < count
    element = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    at = n[:, None] * row_stride + element.to(tl.int64) * element_stride
    raw = tl.load(x + at, mask=valid[:, None], other=0.0)
    if x.dtype.element_ty == tl.bfloat16:
        # By hand: the interpreter's own conversion loses subnormal numbers.
        bits = raw.to(tl.int16, bitcast=True).to(tl.int32) << 16
    else:
        bits = raw.to(tl.float32).to(tl.int32, bitcast=True)
    magnitude = bits & MAGNITUDE
    largest = tl.reduce(magnitude, 1, _largest)

    byte = tl.maximum(((largest + ADD) >> 23) - 2, FLOOR_BYTE)
    byte = tl.where(largest == INFINITY, INF_BYTE, byte)
    byte = tl.where(largest > INFINITY, NAN_BYTE, byte)
    divisor = tl.minimum(tl.maximum(byte, 1), 254)

    if HARDWARE:
        scaled = bits.to(tl.float32, bitcast=True) * _power_of_two(254 - divisor)[:, None]
        low, high = tl.split(tl.reshape(scaled, (BLOCK, 16, 2)))
        packed = _convert_pair(low, high)
    else:
        u = magnitude - ((divisor - 1) << 23)[:, None]
        quarter = tl.where(divisor == 1, 0x200000, tl.where(divisor == 2, 0x400000, (divisor - 2) << 23))
        three_quarters = tl.where(divisor == 1, 0x600000, ((divisor - 1) << 23) + 0x400000)
        if TIES_TO_EVEN:
            rounded = (u + 0x1FFFFF + ((u >> 22) & 1)) >> 22
            small = (magnitude > quarter[:, None]).to(tl.int32)
            small += (magnitude >= three_quarters[:, None]).to(tl.int32)
        else:
            rounded = (u + 0x1FFFFF) >> 22
            small = (magnitude > quarter[:, None]).to(tl.int32)
            small += (magnitude > three_quarters[:, None]).to(tl.int32)
        code = tl.minimum(tl.maximum(rounded, small), 7)
        code = tl.where(magnitude == INFINITY, 7, code)
        sign = (bits >> 28) & 8
        if NAN_BYTE == 255:
            if not NAN_ZEROES:
                has_nan = (largest > INFINITY)[:, None]
                code = tl.where(has_nan, tl.where(magnitude >= INFINITY, NAN_CODE, 0), code)
        else:
            code = tl.where(magnitude > INFINITY, NAN_CODE, code)
        if not KEEPS_NEGATIVE_ZERO:
            sign = tl.where((code == 0) | (magnitude > INFINITY), 0, sign)
        low, high = tl.split(tl.reshape(code | sign, (BLOCK, 16, 2)))
        packed = low | (high << 4)
    if NAN_ZEROES:
        packed = tl.where((largest > INFINITY)[:, None], 0, packed)

    if PAGED:
        slot = tl.load(slots + n, mask=valid, other=-1).to(tl.int64)
        valid = valid & (slot >= 0) & (slot < num_slots)
        slot = tl.where(valid, slot, 0)
        block = slot // rows_per_page
        row = slot % rows_per_page
        values_at = block * block_stride + row * 64
        scales_at = block * block_stride + rows_per_page * 64 + row * 4
    else:
        values_at = n * values_stride
        scales_at = n * scales_stride
    pair = group[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(values + values_at[:, None] + pair, packed.to(tl.uint8), mask=valid[:, None])
    tl.store(scales + scales_at + group, byte.to(tl.uint8), mask=valid)


@triton.jit
def _decoded(nibble):
    """The E2M1 value of the low four bits of an int32, exactly."""
    bits = ((nibble & 7) << 22) | ((nibble & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37


@triton.jit
def _page_of(
    block_table, table_stride, request, position, exists, columns, num_blocks, block_stride, rows_per_page
):
    """Byte offset of the pages that hold positions, the rows in them, and which exist."""
    column = position // rows_per_page
    exists = exists & (column < columns)
    block = tl.load(block_table + request * table_stride + column, mask=exists, other=-1).to(tl.int64)
    exists = exists & (block >= 0) & (block < num_blocks)
    block = tl.where(exists, block, 0)
    return block * block_stride, position % rows_per_page, exists


@triton.jit
def decode(
    values,
    scales,
    out,
    block_table,
    lengths,
    count,
    values_stride,
    scales_stride,
    out_request_stride,
    out_stride,
    table_stride,
    columns,
    num_blocks,
    block_stride,
    rows_per_page,
    PAGED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Dequantize BLOCK microblocks a program; PAGED: of one request, through its block table."""
    microblock = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    request = tl.program_id(1).to(tl.int64)
    n = microblock // 4
    group = (microblock % 4).to(tl.int32)
    inside = n < count
    if PAGED:
        length = tl.load(lengths + request).to(tl.int64)
        page, row, exists = _page_of(
            block_table,
            table_stride,
            request,
            n,
            inside & (n < length),
            columns,
            num_blocks,
            block_stride,
            rows_per_page,
        )
        values_at = page + row * 64
        scales_at = page + rows_per_page * 64 + row * 4
    else:
        exists = inside
        values_at = n * values_stride
        scales_at = n * scales_stride
    pair = group[:, None] * 16 + tl.arange(0, 16)[None, :]
    packed = tl.load(values + values_at[:, None] + pair, mask=exists[:, None], other=0).to(tl.int32)
    byte = tl.load(scales + scales_at + group, mask=exists, other=0).to(tl.int32)
    elements = tl.reshape(tl.join(_decoded(packed), _decoded(packed >> 4)), (BLOCK, 32))
    elements = elements * _power_of_two(byte)[:, None]
    element = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    to = request * out_request_stride + n[:, None] * out_stride + element
    if out.dtype.element_ty == tl.bfloat16:
        # Exact, so the upper half of the pattern is all there is.
        upper = (elements.to(tl.int32, bitcast=True) >> 16).to(tl.int16)
        tl.store(out + to, upper.to(tl.bfloat16, bitcast=True), mask=inside[:, None])
    else:
        tl.store(out + to, elements, mask=inside[:, None])
