# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The GPU kernels that score keys, in Triton.

Logits keep the packed bytes until the last moment.  Byte i of a key holds elements 2i and
2i+1, so the low and the high nibbles are two keys of 64 elements that meet the even and the
odd elements of the query: two products, and no interleaving of registers.

Four ways to the product are here, with one signature, so that a device can be asked which is
fastest (`benchmarks/mxfp4_gpu.py`): expansion to bf16, `tl.dot_scaled`, expansion to e4m3,
and, for comparison, FP8 rows.
"""

import triton
import triton.language as tl

from kvslab.mxfp4.triton_kernels import _decoded, _largest, _page_of, _power_of_two


@triton.jit
def logits_expand(
    q,
    weights,
    slab,
    block_table,
    lengths,
    out,
    longest,
    heads,
    q_token_stride,
    q_head_stride,
    weights_stride,
    out_stride,
    table_stride,
    columns,
    num_blocks,
    block_stride,
    rows_per_page,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    TILES: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Score TILES x KEYS keys of one query: expand the nibbles in registers, two products.

    WIDE: products in fp32 (an fp32 query, or the interpreter); otherwise bf16, which holds
    every E2M1 value times a power of two exactly.
    """
    t = tl.program_id(1).to(tl.int64)
    length = tl.load(lengths + t).to(tl.int64)
    head = tl.arange(0, HEADS)
    half = tl.arange(0, 64)
    has_head = head < heads
    query = q + t * q_token_stride + head[:, None] * q_head_stride + half[None, :] * 2
    even = tl.load(query, mask=has_head[:, None], other=0.0)
    odd = tl.load(query + 1, mask=has_head[:, None], other=0.0)
    if WIDE:
        even = even.to(tl.float32)
        odd = odd.to(tl.float32)
    else:
        even = even.to(tl.bfloat16)
        odd = odd.to(tl.bfloat16)
    weight = tl.load(weights + t * weights_stride + head, mask=has_head, other=0.0).to(tl.float32)
    for tile in range(TILES):
        position = (tl.program_id(0).to(tl.int64) * TILES + tile) * KEYS + tl.arange(0, KEYS)
        page, row, exists = _page_of(
            block_table,
            table_stride,
            t,
            position,
            (position < longest) & (position < length),
            columns,
            num_blocks,
            block_stride,
            rows_per_page,
        )
        at = (page + row * 64)[:, None, None] + tl.arange(0, 4)[None, :, None] * 16
        at = at + tl.arange(0, 16)[None, None, :]
        packed = tl.load(slab + at, mask=exists[:, None, None], other=0).to(tl.int32)
        scale_at = (page + rows_per_page * 64 + row * 4)[:, None] + tl.arange(0, 4)[None, :]
        byte = tl.load(slab + scale_at, mask=exists[:, None], other=0).to(tl.int32)
        scale = _power_of_two(byte)[:, :, None]
        low = tl.reshape(_decoded(packed) * scale, (KEYS, 64))
        high = tl.reshape(_decoded(packed >> 4) * scale, (KEYS, 64))
        if WIDE:
            scores = tl.dot(even, tl.trans(low), input_precision="ieee")
            scores += tl.dot(odd, tl.trans(high), input_precision="ieee")
        else:
            scores = tl.dot(even, tl.trans(low.to(tl.bfloat16)))
            scores = tl.dot(odd, tl.trans(high.to(tl.bfloat16)), scores)
        # Not maximum(): that would turn a NaN key into a score of zero.
        scores = tl.where(scores < 0, 0.0, scores)
        total = tl.sum(scores * weight[:, None], axis=0)
        total = tl.where(exists, total, float("-inf"))
        tl.store(out + t * out_stride + position, total, mask=position < longest)


@triton.jit
def logits_scaled(
    q,
    weights,
    slab,
    block_table,
    lengths,
    out,
    longest,
    heads,
    q_token_stride,
    q_head_stride,
    weights_stride,
    out_stride,
    table_stride,
    columns,
    num_blocks,
    block_stride,
    rows_per_page,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    TILES: tl.constexpr,
):
    """As `logits_expand` for a bf16 query, with the expansion left to `tl.dot_scaled`."""
    t = tl.program_id(1).to(tl.int64)
    length = tl.load(lengths + t).to(tl.int64)
    head = tl.arange(0, HEADS)
    has_head = head < heads
    query = q + t * q_token_stride + head[:, None] * q_head_stride + tl.arange(0, 128)[None, :]
    full = tl.load(query, mask=has_head[:, None], other=0.0)
    weight = tl.load(weights + t * weights_stride + head, mask=has_head, other=0.0).to(tl.float32)
    for tile in range(TILES):
        position = (tl.program_id(0).to(tl.int64) * TILES + tile) * KEYS + tl.arange(0, KEYS)
        page, row, exists = _page_of(
            block_table,
            table_stride,
            t,
            position,
            (position < longest) & (position < length),
            columns,
            num_blocks,
            block_stride,
            rows_per_page,
        )
        at = (page + row * 64)[:, None] + tl.arange(0, 64)[None, :]
        packed = tl.load(slab + at, mask=exists[:, None], other=0)
        scale_at = (page + rows_per_page * 64 + row * 4)[:, None] + tl.arange(0, 4)[None, :]
        byte = tl.load(slab + scale_at, mask=exists[:, None], other=0)
        scores = tl.dot_scaled(full, None, "bf16", tl.trans(packed), byte, "e2m1")
        scores = tl.where(scores < 0, 0.0, scores)
        total = tl.sum(scores * weight[:, None], axis=0)
        total = tl.where(exists, total, float("-inf"))
        tl.store(out + t * out_stride + position, total, mask=position < longest)


@triton.jit
def logits_e4m3(
    q,
    weights,
    slab,
    block_table,
    lengths,
    out,
    longest,
    heads,
    q_token_stride,
    q_head_stride,
    weights_stride,
    out_stride,
    table_stride,
    columns,
    num_blocks,
    block_stride,
    rows_per_page,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    TILES: tl.constexpr,
):
    """As `logits_expand`, with keys as e4m3 under one power of two a row (sm_89 and up).

    A row's four scales differ by powers of two.  With its largest at 2**6 the elements are
    multiples of 2**-9, the smallest e4m3 number, while the scales spread by at most 14
    binary orders, and the largest is 6 * 64 = 384 of 448: the expansion is exact.  The query is
    e4m3 already (one scale a head, folded into `weights` by the caller).
    """
    t = tl.program_id(1).to(tl.int64)
    length = tl.load(lengths + t).to(tl.int64)
    head = tl.arange(0, HEADS)
    half = tl.arange(0, 64)
    has_head = head < heads
    query = q + t * q_token_stride + head[:, None] * q_head_stride + half[None, :] * 2
    even = tl.load(query, mask=has_head[:, None], other=0.0)
    odd = tl.load(query + 1, mask=has_head[:, None], other=0.0)
    weight = tl.load(weights + t * weights_stride + head, mask=has_head, other=0.0).to(tl.float32)
    for tile in range(TILES):
        position = (tl.program_id(0).to(tl.int64) * TILES + tile) * KEYS + tl.arange(0, KEYS)
        page, row, exists = _page_of(
            block_table,
            table_stride,
            t,
            position,
            (position < longest) & (position < length),
            columns,
            num_blocks,
            block_stride,
            rows_per_page,
        )
        at = (page + row * 64)[:, None, None] + tl.arange(0, 4)[None, :, None] * 16
        at = at + tl.arange(0, 16)[None, None, :]
        packed = tl.load(slab + at, mask=exists[:, None, None], other=0).to(tl.int32)
        scale_at = (page + rows_per_page * 64 + row * 4)[:, None] + tl.arange(0, 4)[None, :]
        byte = tl.load(slab + scale_at, mask=exists[:, None], other=0).to(tl.int32)
        top = tl.reduce(byte, 1, _largest)
        # A spread past 14 orders rounds the smallest microblocks; 127 - 30 keeps them finite.
        scale = _power_of_two(tl.maximum(byte - top[:, None] + 6, -30) + 127)[:, :, None]
        low = tl.reshape(_decoded(packed) * scale, (KEYS, 64)).to(tl.float8e4nv)
        high = tl.reshape(_decoded(packed >> 4) * scale, (KEYS, 64)).to(tl.float8e4nv)
        scores = tl.dot(even, tl.trans(low))
        scores = tl.dot(odd, tl.trans(high), scores)
        scores = tl.where(scores < 0, 0.0, scores)
        total = tl.sum(scores * weight[:, None], axis=0) * 0.015625
        total = total * _power_of_two(top)
        total = tl.where(exists, total, float("-inf"))
        tl.store(out + t * out_stride + position, total, mask=position < longest)


@triton.jit
def logits_fp8(
    q,
    weights,
    slab,
    block_table,
    lengths,
    out,
    longest,
    heads,
    q_token_stride,
    q_head_stride,
    weights_stride,
    out_stride,
    table_stride,
    columns,
    num_blocks,
    block_stride,
    rows_per_page,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    TILES: tl.constexpr,
):
    """Scores of FP8 rows (128 e4m3 bytes, one fp32 scale): what MXFP4 must beat (sm_89 and up)."""
    t = tl.program_id(1).to(tl.int64)
    length = tl.load(lengths + t).to(tl.int64)
    head = tl.arange(0, HEADS)
    has_head = head < heads
    query = q + t * q_token_stride + head[:, None] * q_head_stride + tl.arange(0, 128)[None, :]
    full = tl.load(query, mask=has_head[:, None], other=0.0)
    weight = tl.load(weights + t * weights_stride + head, mask=has_head, other=0.0).to(tl.float32)
    for tile in range(TILES):
        position = (tl.program_id(0).to(tl.int64) * TILES + tile) * KEYS + tl.arange(0, KEYS)
        page, row, exists = _page_of(
            block_table,
            table_stride,
            t,
            position,
            (position < longest) & (position < length),
            columns,
            num_blocks,
            block_stride,
            rows_per_page,
        )
        at = (page + row * 128)[:, None] + tl.arange(0, 128)[None, :]
        keys = tl.load(slab + at, mask=exists[:, None], other=0).to(tl.float8e4nv, bitcast=True)
        scale_at = (page + rows_per_page * 128 + row * 4)[:, None] + tl.arange(0, 4)[None, :]
        shift = (tl.arange(0, 4) * 8)[None, :]
        bits = tl.load(slab + scale_at, mask=exists[:, None], other=0).to(tl.int32) << shift
        scale = tl.sum(bits, axis=1).to(tl.float32, bitcast=True)
        scores = tl.dot(full, tl.trans(keys))
        scores = tl.where(scores < 0, 0.0, scores)
        total = tl.sum(scores * weight[:, None], axis=0) * scale
        total = tl.where(exists, total, float("-inf"))
        tl.store(out + t * out_stride + position, total, mask=position < longest)
