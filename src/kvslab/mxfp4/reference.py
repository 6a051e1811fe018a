"""The readable form: every operation in a few lines of torch, on any device.

Rounding follows the vectorised nearest-even of the contract.  With `a` the scaled
magnitude::

    code = where(a < 2, round(2a), where(a < 4, round(a) + 2, min(round(a / 2), 3) + 4))

`torch.round` takes ties to even, and the three steps (1/2, 1, 2) are the spacing of the
grid in each range.

Under `torch.compile` (torch 2.13) the members of `Rule` are not told apart once one of them
was compiled: compile for one rule in a process, or hold the bytes against this module's.
"""

from collections.abc import Callable

import torch

from kvslab.mxfp4.checks import PagedView
from kvslab.mxfp4.contract import (
    E2M1,
    HEAD_DIM,
    MICROBLOCK,
    NAN_SCALE,
    RULES,
    SCALES_PER_ROW,
    SKIP_SLOT,
    Rule,
    RuleFormula,
)

_INFINITY = 0x7F800000
_TIES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def missing(device: torch.device) -> str | None:
    """What this backend lacks on a device: nothing."""
    return None


def _power_of_two(byte: torch.Tensor) -> torch.Tensor:
    """`2**(byte - 127)` as fp32 for int32 bytes 0 to 254; byte 0 is a subnormal number."""
    return torch.where(byte == 0, 0x00400000, byte << 23).view(torch.float32)


def _scale_bytes(largest: torch.Tensor, formula: RuleFormula) -> torch.Tensor:
    finite = torch.where(largest < _INFINITY, largest, 0)
    byte = (((finite + formula.add) >> 23) - 2).clamp(min=formula.floor_byte)
    byte = torch.where(largest == _INFINITY, formula.inf_byte, byte)
    return torch.where(largest > _INFINITY, formula.nan_byte, byte)


def _nearest_even(a: torch.Tensor) -> torch.Tensor:
    coarse = torch.where(a < 4, torch.round(a) + 2, torch.round(a / 2).clamp(max=3) + 4)
    return torch.where(a < 2, torch.round(2 * a), coarse)


def _nearest_toward_zero(a: torch.Tensor) -> torch.Tensor:
    return sum((a > tie).to(torch.float32) for tie in _TIES) + torch.zeros_like(a)


def quantize(x: torch.Tensor, rule: Rule, values: torch.Tensor, scales: torch.Tensor) -> None:
    """Quantize `x[N, 128]` into `values[N, 64]` and `scales[N, 4]`, uint8."""
    formula = RULES[rule]
    x = x.to(torch.float32).reshape(-1, SCALES_PER_ROW, MICROBLOCK)
    bits = x.contiguous().view(torch.int32)
    magnitude = bits & 0x7FFFFFFF
    largest = magnitude.amax(dim=-1, keepdim=True)
    byte = _scale_bytes(largest, formula)

    # 254 - byte is the exponent of the reciprocal; byte 255 is handled below.
    reciprocal = _power_of_two(254 - byte.clamp(1, 254))
    a = magnitude.view(torch.float32) * reciprocal
    code = (_nearest_even(a) if formula.ties_to_even else _nearest_toward_zero(a)).nan_to_num()
    code = code.to(torch.int32)
    is_nan, has_nan = magnitude > _INFINITY, largest > _INFINITY
    if formula.nan_byte == NAN_SCALE:
        # Dividing by a NaN's scale leaves no finite element.
        code = torch.where(has_nan, torch.where(magnitude >= _INFINITY, formula.nan_code, 0), code)
    else:
        code = torch.where(is_nan, formula.nan_code, code)
    sign = (bits >> 28) & 8
    if not formula.keeps_negative_zero:
        sign = torch.where((code == 0) | is_nan, 0, sign)
    code = code | sign
    if formula.nan_zeroes:
        code = torch.where(has_nan, 0, code)
    code = code.reshape(-1, HEAD_DIM)
    values.copy_(code[:, 0::2] | code[:, 1::2] << 4)
    scales.copy_(byte.squeeze(-1))


def dequantize(values: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """Dequantize `values[N, 64]`, `scales[N, 4]` into `out[N, 128]`."""
    out.copy_(dequantized(values, scales))


def dequantized(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """`values[..., 64]` and `scales[..., 4]` as fp32 `[..., 128]`."""
    table = torch.tensor(E2M1, dtype=torch.float32, device=values.device)
    codes = torch.stack((values & 15, values >> 4), dim=-1).to(torch.int64)
    elements = table[codes].reshape(*values.shape[:-1], SCALES_PER_ROW, MICROBLOCK)
    byte = scales.to(torch.int32)
    scale = torch.where(byte == NAN_SCALE, torch.nan, _power_of_two(byte.clamp(max=254)))
    return (elements * scale[..., None]).reshape(*values.shape[:-1], HEAD_DIM)


def _columns(first: torch.Tensor, count: int) -> torch.Tensor:
    return first[:, None] + torch.arange(count, device=first.device)


def scatter_rows(view: PagedView, slots: torch.Tensor, values: torch.Tensor, scales: torch.Tensor) -> None:
    """Write value and scale bytes of rows at their slots; others are left out."""
    page = view.page
    keep = (slots != SKIP_SLOT) & (slots >= 0) & (slots < view.num_slots)
    kept = slots[keep].to(torch.int64)
    block, row = kept // page.rows_per_page, kept % page.rows_per_page
    view.data[block[:, None], _columns(row * page.value_bytes, page.value_bytes)] = values[keep]
    at = page.scales_at(0) + row * page.scale_bytes
    view.data[block[:, None], _columns(at, page.scale_bytes)] = scales[keep]


def gather_rows(
    view: PagedView, block_table: torch.Tensor, lengths: torch.Tensor, longest: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Value bytes, scale bytes `[B, longest, n]` and which rows exist `[B, longest]`."""
    page = view.page
    position = torch.arange(longest, device=block_table.device)
    column, row = position // page.rows_per_page, position % page.rows_per_page
    exists = (position < lengths[:, None]) & (column < block_table.shape[1])
    block = block_table[:, column.clamp(max=block_table.shape[1] - 1)].to(torch.int64)
    exists &= (block >= 0) & (block < view.num_blocks)
    block = torch.where(exists, block, 0)[..., None]
    values = view.data[block, _columns(row * page.value_bytes, page.value_bytes)]
    scales = view.data[block, _columns(page.scales_at(0) + row * page.scale_bytes, page.scale_bytes)]
    return values, scales, exists


def insert(view: PagedView, x: torch.Tensor, slots: torch.Tensor, rule: Rule) -> None:
    """Quantize `x[N, 128]` and write each row at its slot."""
    values = torch.empty((x.shape[0], HEAD_DIM // 2), dtype=torch.uint8, device=x.device)
    scales = torch.empty((x.shape[0], SCALES_PER_ROW), dtype=torch.uint8, device=x.device)
    quantize(x, rule, values, scales)
    scatter_rows(view, slots, values, scales)


def gather(view: PagedView, block_table: torch.Tensor, lengths: torch.Tensor, out: torch.Tensor) -> None:
    """Read rows into `out[B, L, 128]`; rows past a length are zero."""
    values, scales, exists = gather_rows(view, block_table, lengths, out.shape[1])
    out.copy_(torch.where(exists[..., None], dequantized(values, scales), 0.0))


def weighted_relu(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """`sum_h weights[h] * relu(q[h] . keys[j])`: `[H, 128]`, `[H]`, `[L, 128]` -> `[L]`."""
    return weights @ torch.relu(q @ keys.T)


def logits(
    q: torch.Tensor,
    weights: torch.Tensor,
    view: PagedView,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Indexer logits `out[T, L]` of `q[T, H, 128]`, `weights[T, H]`; -inf past the context."""
    logits_of(dequantized, q, weights, view, block_table, context_lens, out)


def logits_of(
    expand: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    q: torch.Tensor,
    weights: torch.Tensor,
    view: PagedView,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """`logits` for rows whose value and scale bytes `expand` turns into numbers."""
    for t in range(q.shape[0]):
        one = slice(t, t + 1)
        values, scales, exists = gather_rows(view, block_table[one], context_lens[one], out.shape[1])
        keys = expand(values, scales)[0]
        scores = weighted_relu(q[t].to(torch.float32), weights[t].to(torch.float32), keys)
        out[t] = torch.where(exists[0], scores, -torch.inf)


def topk(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `k` largest of each row, ties to the lower index: values and int32 indices."""
    scores = torch.where(scores.isnan(), -torch.inf, scores)
    values, indices = torch.sort(scores, dim=-1, descending=True, stable=True)
    values, indices = values[:, :k], indices[:, :k]
    return values, torch.where(values == -torch.inf, -1, indices).to(torch.int32)
