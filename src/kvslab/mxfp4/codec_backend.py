"""The oracle as a backend: tensors to Python integers and back, for tests and small shapes."""

import torch

from kvslab.mxfp4 import codec
from kvslab.mxfp4.checks import PagedView
from kvslab.mxfp4.contract import Rule


def missing(device: torch.device) -> str | None:
    """What this backend lacks on a device: a CPU."""
    return None if device.type == "cpu" else f"tensors on a cpu, not {device}"


def _patterns(x: torch.Tensor) -> list[list[int]]:
    words = x.to(torch.float32).contiguous().view(torch.int32).tolist()
    return [[word % 2**32 for word in row] for row in words]


def _floats(patterns: list[list[int]]) -> torch.Tensor:
    signed = [[p - 2**32 if p >> 31 else p for p in row] for row in patterns]
    return torch.tensor(signed, dtype=torch.int32).view(torch.float32)


def quantize(x: torch.Tensor, rule: Rule, values: torch.Tensor, scales: torch.Tensor) -> None:
    """Quantize `x[N, 128]` into `values[N, 64]` and `scales[N, 4]`, uint8."""
    for n, row in enumerate(_patterns(x)):
        value_bytes, scale_bytes = codec.quantize_row(row, rule)
        values[n] = torch.tensor(list(value_bytes), dtype=torch.uint8)
        scales[n] = torch.tensor(list(scale_bytes), dtype=torch.uint8)


def dequantize(values: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """Dequantize `values[N, 64]`, `scales[N, 4]` into `out[N, 128]`."""
    for n, (row, bytes_of_row) in enumerate(zip(values.tolist(), scales.tolist(), strict=True)):
        out[n] = _floats([codec.dequantize_row(row, bytes_of_row)])[0]


def insert(view: PagedView, x: torch.Tensor, slots: torch.Tensor, rule: Rule) -> None:
    """Quantize `x[N, 128]` and write each row at its slot."""
    for row, slot in zip(_patterns(x), slots.tolist(), strict=True):
        if 0 <= slot < view.num_slots:
            block_id, index = view.page.place(slot)
            values, scales = codec.quantize_row(row, rule)
            for at, stored in ((view.page.values_at(index), values), (view.page.scales_at(index), scales)):
                for i, byte in enumerate(stored):
                    view.data[block_id, at + i] = byte


def _row(view: PagedView, block_id: int, index: int) -> list[int]:
    page = view.data[block_id]
    values_at, scales_at = view.page.values_at(index), view.page.scales_at(index)
    return codec.dequantize_row(
        page[values_at : values_at + view.page.value_bytes].tolist(),
        page[scales_at : scales_at + view.page.scale_bytes].tolist(),
    )


def gather(view: PagedView, block_table: torch.Tensor, lengths: torch.Tensor, out: torch.Tensor) -> None:
    """Read rows into `out[B, L, 128]`; rows past a length are zero."""
    out.zero_()
    tables = block_table.tolist()
    for b, length in enumerate(lengths.tolist()):
        for position in range(min(length, int(out.shape[1]))):
            column, index = divmod(position, view.page.rows_per_page)
            if column < len(tables[b]) and 0 <= tables[b][column] < view.num_blocks:
                out[b, position] = _floats([_row(view, tables[b][column], index)])[0]


def logits(
    q: torch.Tensor,
    weights: torch.Tensor,
    view: PagedView,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Indexer logits in float64, rounded once: `out[T, L]`; -inf past the context."""
    out.fill_(-torch.inf)
    tables = block_table.tolist()
    for t, length in enumerate(context_lens.tolist()):
        for position in range(min(length, int(out.shape[1]))):
            column, index = divmod(position, view.page.rows_per_page)
            if column < len(tables[t]) and 0 <= tables[t][column] < view.num_blocks:
                key = _floats([_row(view, tables[t][column], index)])[0].to(torch.float64)
                scores = torch.relu(q[t].to(torch.float64) @ key)
                out[t, position] = (weights[t].to(torch.float64) * scores).sum()


def topk(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `k` largest of each row, ties to the lower index: values and int32 indices."""
    values, indices = [], []
    for row in scores.tolist():
        ranked = sorted(range(len(row)), key=lambda i: (-row[i] if row[i] == row[i] else float("inf"), i))
        best = ranked[:k]
        cleaned = [row[i] if row[i] == row[i] else float("-inf") for i in best]
        values.append(cleaned)
        indices.append([i if v != float("-inf") else -1 for i, v in zip(best, cleaned, strict=True)])
    shape = (len(scores), k)
    return (
        torch.tensor(values, dtype=torch.float32).reshape(shape),
        torch.tensor(indices, dtype=torch.int32).reshape(shape),
    )
