"""The CPU backend: torch tensors in, Numba kernels over flat windows of their memory.

Insert and gather touch each byte once: a row is read, converted and stored in one pass, in
parallel over chunks of rows.  float16 input is widened first, which copies it; nothing else
is copied.  Logits expand a few thousand keys at a time and leave the product to torch.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kvslab.mxfp4 import cpu_decode, cpu_encode
from kvslab.mxfp4.checks import PagedView
from kvslab.mxfp4.contract import HEAD_DIM, MICROBLOCK, RULES, SCALE_BIAS, Rule
from kvslab.mxfp4.selection import topk_by_key

_write: Any = cpu_encode
_read: Any = cpu_decode

KEYS_AT_ONCE = 2048
"""Keys that `logits` expands at a time: 1 MiB of fp32, which stays in a core's cache."""

_PATTERNS = {
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.uint8: torch.uint8,
}


def missing(device: torch.device) -> str | None:
    """What this backend lacks on a device: a CPU."""
    return None if device.type == "cpu" else f"tensors on a cpu, not {device}"


def window(data: torch.Tensor) -> Any:
    """The memory that a tensor spans, from its first element on, as a flat array of patterns."""
    data = data.detach()
    span = 1 + sum((size - 1) * stride for size, stride in zip(data.shape, data.stride(), strict=True))
    flat = data.as_strided((span,), (1,), data.storage_offset())
    return flat.view(_PATTERNS[data.dtype]).numpy()


@functools.cache
def _formula(rule: Rule) -> Any:
    formula = RULES[rule]
    return np.array(
        [
            formula.add,
            formula.floor_byte,
            formula.ties_to_even,
            formula.keeps_negative_zero,
            formula.nan_byte,
            formula.inf_byte,
            formula.nan_code,
            formula.nan_zeroes,
        ],
        dtype=np.int64,
    )


@functools.cache
def _halves() -> Any:
    """Half of the scale of each byte; `2**-128`, of byte 0, is a subnormal number."""
    return np.append(np.ldexp(1.0, np.arange(255) - SCALE_BIAS - 1), np.nan).astype(np.float32)


def quantize(x: torch.Tensor, rule: Rule, values: torch.Tensor, scales: torch.Tensor) -> None:
    """Quantize `x[N, 128]` into `values[N, 64]` and `scales[N, 4]`, uint8."""
    x = x.to(torch.float32) if x.dtype == torch.float16 else x
    count = int(x.shape[0])
    head: tuple[Any, ...] = (window(x), count, x.stride(0), x.stride(1))
    tail: tuple[Any, ...] = (
        window(values),
        values.stride(0),
        window(scales),
        scales.stride(0),
        _formula(rule),
        MICROBLOCK,
    )
    if count <= cpu_encode.CHUNK:
        _write.quantize_chunk(head[0], 0, *head[1:], *tail)
    else:
        _write.quantize_rows(*head, *tail)


def dequantize(values: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """Dequantize `values[N, 64]`, `scales[N, 4]` into `out[N, 128]`."""
    if values.stride(1) != 1 or scales.stride(1) != 1:
        values, scales = values.contiguous(), scales.contiguous()
    count = int(values.shape[0])
    head: tuple[Any, ...] = (window(values), values.stride(0), window(scales), scales.stride(0))
    tail: tuple[Any, ...] = (window(out), out.stride(0), _halves(), MICROBLOCK // 2)
    if count <= cpu_encode.CHUNK:
        _read.dequantize_chunk(*head, 0, count, *tail)
    else:
        _read.dequantize_rows(*head, count, *tail)


def insert(view: PagedView, x: torch.Tensor, slots: torch.Tensor, rule: Rule) -> None:
    """Quantize `x[N, 128]` and write each row at its slot."""
    x = x.to(torch.float32) if x.dtype == torch.float16 else x
    count = int(x.shape[0])
    head: tuple[Any, ...] = (window(x), count, x.stride(0), x.stride(1))
    tail: tuple[Any, ...] = (
        slots.to(torch.int64).contiguous().numpy(),
        window(view.data),
        view.block_stride,
        view.num_blocks,
        view.page.rows_per_page,
        _formula(rule),
        MICROBLOCK,
    )
    if count <= cpu_encode.CHUNK:
        _write.insert_chunk(head[0], 0, *head[1:], *tail)
    else:
        _write.insert_rows(*head, *tail)


def gather(view: PagedView, block_table: torch.Tensor, lengths: torch.Tensor, out: torch.Tensor) -> None:
    """Read rows into `out[B, L, 128]`; rows past a length are zero."""
    _read.gather_rows(
        window(view.data),
        view.block_stride,
        view.num_blocks,
        view.page.rows_per_page,
        block_table.to(torch.int64).contiguous().numpy(),
        lengths.to(torch.int64).contiguous().numpy(),
        int(out.shape[1]),
        window(out),
        out.stride(0),
        out.stride(1),
        _halves(),
        MICROBLOCK // 2,
    )


def logits(
    q: torch.Tensor,
    weights: torch.Tensor,
    view: PagedView,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Indexer logits `out[T, L]` of `q[T, H, 128]`, `weights[T, H]`; -inf past the context."""
    logits_of(gather, q, weights, view, block_table, context_lens, out)


def logits_of(
    read: Callable[[PagedView, torch.Tensor, torch.Tensor, torch.Tensor], None],
    q: torch.Tensor,
    weights: torch.Tensor,
    view: PagedView,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """`logits` for rows that `read` gathers, whatever their format."""
    rows_per_page = view.page.rows_per_page
    blocks_at_once = -(-KEYS_AT_ONCE // rows_per_page)
    step, longest = blocks_at_once * rows_per_page, int(out.shape[1])
    keys = torch.empty((1, min(step, longest), HEAD_DIM), dtype=torch.float32)
    q, weights = q.to(torch.float32), weights.to(torch.float32)
    position = torch.arange(longest)
    for t in range(q.shape[0]):
        table, length = block_table[t : t + 1], min(int(context_lens[t]), longest)
        for start in range(0, length, step):
            end, column = min(start + step, length), start // rows_per_page
            part = keys[:, : end - start]
            read(view, table[:, column : column + blocks_at_once], context_lens[t : t + 1] - start, part)
            out[t, start:end] = weights[t] @ torch.relu_(q[t] @ part[0].T)
        out[t].masked_fill_(~_exists(view, table[0], position, length), -torch.inf)


def _exists(view: PagedView, table: torch.Tensor, position: torch.Tensor, length: int) -> torch.Tensor:
    column = position // view.page.rows_per_page
    block = table[column.clamp(max=table.shape[0] - 1)]
    inside = (column < table.shape[0]) & (block >= 0) & (block < view.num_blocks)
    return inside & (position < length)


def topk(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `k` largest of each row, ties to the lower index: values and int32 indices."""
    return topk_by_key(scores, k)
