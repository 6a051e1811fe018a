"""MXFP4 indexer keys, written into and read from the slab in place.

What does it take to keep a key of 128 numbers in 68 bytes?  Sixteen values per element, one
power of two per 32 elements, and agreement on where each byte goes (`contract`).  This
module is the way in: it checks every argument, then hands over to a backend.  All backends
write the same bytes:

========== ==========================================================================
codec      plain Python integers; the oracle of the tests
reference  torch, readable, on any device
cpu        Numba, parallel, fused
triton     Triton kernels for CUDA
flashinfer FlashInfer's own quantizer and top-k, where a GPU has them
========== ==========================================================================

`backend="auto"` takes `triton` on CUDA and `cpu` elsewhere.  A cache is the strided uint8
view `[num_blocks, page_bytes]` of one layer in the slab; nothing is copied or made
contiguous.  `checked=False` leaves out the checks that read values (slots, block ids,
lengths): on a GPU they wait for the device.  A kernel never writes at a slot that is out of
range, and reads a block that is out of range as rows that do not exist; unchecked, slots
must be distinct.

>>> import torch
>>> from kvslab import mxfp4
>>> values, scales = mxfp4.quantize(torch.full((1, 128), 3.0))
>>> values.shape, scales.shape, mxfp4.dequantize(values, scales)[0, 0].item()
(torch.Size([1, 64]), torch.Size([1, 4]), 3.0)
"""

import torch

from kvslab.errors import InputError
from kvslab.intmath import checked_int
from kvslab.mxfp4 import checks
from kvslab.mxfp4.backends import AUTO, BACKENDS, available, checked_backend
from kvslab.mxfp4.contract import (
    E2M1,
    HEAD_DIM,
    ROW_BYTES,
    RULES,
    SCALE_BYTES,
    VALUE_BYTES,
    PageGeometry,
    Rule,
    checked_rule,
)

__all__ = [
    "BACKENDS",
    "E2M1",
    "HEAD_DIM",
    "ROW_BYTES",
    "RULES",
    "PageGeometry",
    "Rule",
    "available",
    "dequantize",
    "gather",
    "insert",
    "paged_logits",
    "quantize",
    "quantize_query",
    "topk",
]

Packed = tuple[torch.Tensor, torch.Tensor]
"""Value bytes and scale bytes."""

_U8 = (torch.uint8,)


def _packed_out(out: Packed | None, lead: tuple[int, ...], device: torch.device) -> Packed:
    shapes = (*lead, VALUE_BYTES), (*lead, SCALE_BYTES)
    if out is None:
        values, scales = (torch.empty(shape, dtype=torch.uint8, device=device) for shape in shapes)
        return values, scales
    values, scales = out
    return (
        checks.output("out[0]", values, shapes[0], _U8, device),
        checks.output("out[1]", scales, shapes[1], _U8, device),
    )


def quantize(
    x: torch.Tensor,
    *,
    rule: Rule | str = Rule.VLLM,
    out: Packed | None = None,
    backend: str = AUTO,
) -> Packed:
    """Quantize rows.

    Args:
        x: float32, bfloat16 or float16 `[N, 128]`, any strides.
        rule: How scales are chosen and elements rounded.
        out: Where to write, uint8 `[N, 64]` and `[N, 4]`.
        backend: One of `BACKENDS`, or `auto`.

    Returns:
        Value bytes `[N, 64]` and scale bytes `[N, 4]`.

    Raises:
        InputError: An argument cannot be used, or the backend cannot run here.
    """
    x, rule = checks.rows("x", x), checked_rule(rule)
    values, scales = _packed_out(out, (int(x.shape[0]),), x.device)
    _, chosen = checked_backend(backend, x.device)
    if x.shape[0]:
        chosen.quantize(x, rule, values, scales)
    return values, scales


def quantize_query(
    q: torch.Tensor,
    *,
    rule: Rule | str = Rule.VLLM,
    out: Packed | None = None,
    backend: str = AUTO,
) -> Packed:
    """Quantize the heads of queries: `q[T, H, 128]` to `[T, H, 64]` and `[T, H, 4]`.

    Args:
        q: float32, bfloat16 or float16 `[T, H, 128]`.
        rule: How scales are chosen and elements rounded.
        out: Where to write, uint8 `[T, H, 64]` and `[T, H, 4]`, contiguous.
        backend: One of `BACKENDS`, or `auto`.

    Raises:
        InputError: An argument cannot be used, or the backend cannot run here.
    """
    q, rule = checks.tensor("q", q, ("T", "H", HEAD_DIM), checks.FLOATS), checked_rule(rule)
    lead = int(q.shape[0]), int(q.shape[1])
    values, scales = _packed_out(out, lead, q.device)
    for field, part in (("out[0]", values), ("out[1]", scales)):
        if not part.is_contiguous():
            raise InputError(field, part.stride(), "a contiguous tensor")
    _, chosen = checked_backend(backend, q.device)
    if q.numel():
        flat = q.reshape(-1, HEAD_DIM)
        chosen.quantize(flat, rule, values.view(-1, VALUE_BYTES), scales.view(-1, SCALE_BYTES))
    return values, scales


def dequantize(
    values: torch.Tensor,
    scales: torch.Tensor,
    *,
    dtype: torch.dtype = torch.float32,
    out: torch.Tensor | None = None,
    backend: str = AUTO,
) -> torch.Tensor:
    """Dequantize rows: `E2M1(code) * 2**(scale byte - 127)`, exact or an infinity.

    Args:
        values: uint8 `[N, 64]`.
        scales: uint8 `[N, 4]`.
        dtype: float32 or bfloat16; where `out` is given its dtype counts.
        out: Where to write, `[N, 128]`.
        backend: One of `BACKENDS`, or `auto`.

    Raises:
        InputError: An argument cannot be used, or the backend cannot run here.
    """
    values = checks.tensor("values", values, ("N", VALUE_BYTES), _U8)
    count, device = int(values.shape[0]), values.device
    scales = checks.tensor("scales", scales, (count, SCALE_BYTES), _U8, device=device)
    if out is None:
        out = torch.empty((count, HEAD_DIM), dtype=checks.output_dtype(dtype), device=device)
    out = checks.output("out", out, (count, HEAD_DIM), checks.OUTPUTS, device)
    _, chosen = checked_backend(backend, device)
    if count:
        chosen.dequantize(values, scales, out)
    return out


def _view(cache_view: torch.Tensor, rows_per_page: int) -> checks.PagedView:
    return checks.paged_view(cache_view, rows_per_page, value_bytes=VALUE_BYTES, scale_bytes=SCALE_BYTES)


def insert(
    cache_view: torch.Tensor,
    x: torch.Tensor,
    slots: torch.Tensor,
    *,
    rows_per_page: int,
    rule: Rule | str = Rule.VLLM,
    checked: bool = True,
    backend: str = AUTO,
) -> None:
    """Quantize rows and write each at its slot; no other byte changes.

    Args:
        cache_view: uint8 `[num_blocks, page_bytes]`, strides `[block_stride, 1]`.
        x: float32, bfloat16 or float16 `[N, 128]`, any strides.
        slots: int32 or int64 `[N]`: `block_id * rows_per_page + row`, or -1 to skip a row.
            Where a slot stands twice the last row wins (checked mode).
        rows_per_page: Rows of one page.
        rule: How scales are chosen and elements rounded.
        checked: Check the slots' values, and settle repeated ones.
        backend: One of `BACKENDS`, or `auto`.

    Raises:
        InputError: An argument cannot be used, or the backend cannot run here.
    """
    view, x, rule = _view(cache_view, rows_per_page), checks.rows("x", x), checked_rule(rule)
    device, count = view.data.device, int(x.shape[0])
    checks.tensor("x", x, (count, HEAD_DIM), checks.FLOATS, device=device)
    slots = checks.tensor("slots", slots, (count,), checks.INDICES, device=device)
    _, chosen = checked_backend(backend, device)
    if checked:
        checks.slots_in_range(slots, view.num_slots)
        slots = checks.last_of_each(slots)
    if count and view.num_blocks:
        chosen.insert(view, x, slots, rule)


def _longest(
    view: checks.PagedView,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    field: str,
    max_length: int | None,
    checked: bool,
) -> int:
    """The length of the output; where it is given and nothing is checked no value is read."""
    longest = 0
    if checked:
        longest = checks.tables_in_range(view, block_table, lengths, field)
    elif max_length is None and lengths.numel():
        longest = max(int(lengths.max()), 0)
    if max_length is None:
        return longest
    return checked_int("max_length", max_length, minimum=longest)


def gather(
    cache_view: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    rows_per_page: int,
    dtype: torch.dtype = torch.float32,
    max_length: int | None = None,
    out: torch.Tensor | None = None,
    checked: bool = True,
    backend: str = AUTO,
) -> torch.Tensor:
    """Read and dequantize the first `lengths[b]` rows of each request.

    Args:
        cache_view: uint8 `[num_blocks, page_bytes]`, strides `[block_stride, 1]`.
        block_table: int32 or int64 `[B, nb]`, the block ids of each request in order.
        lengths: int32 or int64 `[B]`, in rows.
        rows_per_page: Rows of one page.
        dtype: float32 or bfloat16; where `out` is given its dtype counts.
        max_length: L; by default the largest of `lengths`.
        out: Where to write, `[B, L, 128]`.
        checked: Check lengths and block ids.
        backend: One of `BACKENDS`, or `auto`.

    Returns:
        `[B, L, 128]`; rows past a length are zero.

    Raises:
        InputError: An argument cannot be used, or the backend cannot run here.
    """
    view = _view(cache_view, rows_per_page)
    device = view.data.device
    block_table = checks.tensor("block_table", block_table, ("B", "nb"), checks.INDICES, device=device)
    batch = int(block_table.shape[0])
    lengths = checks.tensor("lengths", lengths, (batch,), checks.INDICES, device=device)
    _, chosen = checked_backend(backend, device)
    longest = _longest(view, block_table, lengths, "lengths", max_length, checked)
    if out is None:
        out = torch.empty((batch, longest, HEAD_DIM), dtype=checks.output_dtype(dtype), device=device)
    out = checks.output("out", out, (batch, longest, HEAD_DIM), checks.OUTPUTS, device)
    if view.num_blocks == 0 or block_table.shape[1] == 0:
        out.zero_()
    elif out.numel():
        chosen.gather(view, block_table, lengths, out)
    return out


def paged_logits(
    q: torch.Tensor | Packed,
    weights: torch.Tensor,
    cache_view: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    rows_per_page: int,
    max_length: int | None = None,
    out: torch.Tensor | None = None,
    checked: bool = True,
    backend: str = AUTO,
) -> torch.Tensor:
    """Score every key of a context: `logits[t, j] = sum_h w[t, h] * relu(q[t, h] . k[j])`.

    Args:
        q: float32, bfloat16 or float16 `[T, H, 128]`, or what `quantize_query` returned.
        weights: float32, bfloat16 or float16 `[T, H]`.
        cache_view: uint8 `[num_blocks, page_bytes]`, strides `[block_stride, 1]`.
        block_table: int32 or int64 `[T, nb]`, the block ids that each query sees, in order.
        context_lens: int32 or int64 `[T]`, in rows.
        rows_per_page: Rows of one page.
        max_length: L; by default the largest of `context_lens`.
        out: Where to write, float32 `[T, L]`.
        checked: Check lengths and block ids.
        backend: One of `BACKENDS`, or `auto`.

    Returns:
        float32 `[T, L]`, -inf past the context.

    Raises:
        InputError: An argument cannot be used, or the backend cannot run here.
    """
    view = _view(cache_view, rows_per_page)
    device = view.data.device
    _, chosen = checked_backend(backend, device)
    if isinstance(q, tuple):
        q = _expanded_query(q, device, backend)
    q = checks.tensor("q", q, ("T", "H", HEAD_DIM), checks.FLOATS, device=device)
    queries, heads = int(q.shape[0]), int(q.shape[1])
    weights = checks.tensor("weights", weights, (queries, heads), checks.FLOATS, device=device)
    block_table = checks.tensor("block_table", block_table, (queries, "nb"), checks.INDICES, device=device)
    context_lens = checks.tensor("context_lens", context_lens, (queries,), checks.INDICES, device=device)
    longest = _longest(view, block_table, context_lens, "context_lens", max_length, checked)
    if out is None:
        out = torch.empty((queries, longest), dtype=torch.float32, device=device)
    out = checks.output("out", out, (queries, longest), (torch.float32,), device)
    if view.num_blocks == 0 or block_table.shape[1] == 0 or heads == 0:
        out.fill_(-torch.inf)
    elif out.numel():
        chosen.logits(q, weights, view, block_table, context_lens, out)
    return out


def _expanded_query(packed: Packed, device: torch.device, backend: str) -> torch.Tensor:
    """A quantized query as bfloat16, which holds it exactly."""
    values, scales = packed
    values = checks.tensor("q[0]", values, ("T", "H", VALUE_BYTES), _U8, device=device)
    lead = int(values.shape[0]), int(values.shape[1])
    scales = checks.tensor("q[1]", scales, (*lead, SCALE_BYTES), _U8, device=device)
    flat = values.reshape(-1, VALUE_BYTES), scales.reshape(-1, SCALE_BYTES)
    return dequantize(*flat, dtype=torch.bfloat16, backend=backend).view(*lead, HEAD_DIM)


def topk(
    logits: torch.Tensor, k: int, *, out: Packed | None = None, backend: str = AUTO
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `k` largest logits of each row, largest first; of equal ones the lower index.

    Args:
        logits: float32 `[T, L]`; a NaN ranks as -inf.
        k: How many; more than L leaves the rest empty.
        out: Where to write, float32 and int32 `[T, k]`.
        backend: One of `BACKENDS`, or `auto`.

    Returns:
        Values float32 `[T, k]` and indices int32 `[T, k]`; an empty place holds -inf and -1.

    Raises:
        InputError: An argument cannot be used, or the backend cannot run here.

    >>> topk(torch.tensor([[1.0, 3.0, 3.0, float("-inf")]]), 4)[1].tolist()
    [[1, 2, 0, -1]]
    """
    logits = checks.tensor("logits", logits, ("T", "L"), (torch.float32,))
    k, device = checked_int("k", k), logits.device
    shape = int(logits.shape[0]), k
    if out is None:
        values = torch.empty(shape, dtype=torch.float32, device=device)
        indices = torch.empty(shape, dtype=torch.int32, device=device)
    else:
        values = checks.output("out[0]", out[0], shape, (torch.float32,), device)
        indices = checks.output("out[1]", out[1], shape, (torch.int32,), device)
    _, chosen = checked_backend(backend, device)
    found = min(k, int(logits.shape[1]))
    values[:, found:], indices[:, found:] = -torch.inf, -1
    if shape[0] and found:
        values[:, :found], indices[:, :found] = chosen.topk(logits, found)
    return values, indices
