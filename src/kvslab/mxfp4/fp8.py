"""FP8 rows, the format that MXFP4 is measured against: 132 bytes for a key of 128 numbers.

A row is 128 e4m3 bytes and one fp32 scale, a power of two; a page of R rows holds R x 128
value bytes, then R x 4 scale bytes.  With `amax` the row's largest magnitude::

    scale = 2**ceil(log2(max(amax, 1e-4) / 448))        value = e4m3(element / scale)

rounded to nearest even.  A NaN makes the whole row NaN (its scale is NaN, its values are 0);
an infinity becomes 448 times the scale.

Source: the FP8 path of vLLM's `fused_indexer_q` and of its DeepSeek-V4 indexer cache.

>>> values, scales = quantize(torch.full((1, 128), 448.0))
>>> hex(values[0, 0].item()), scales.tolist()
('0x7e', [1.0])
"""

import torch

from kvslab.errors import InputError
from kvslab.intmath import checked_int
from kvslab.mxfp4 import checks, reference
from kvslab.mxfp4.contract import FP8_FLOOR_BYTE, FP8_SCALE_BYTES, FP8_VALUE_BYTES, HEAD_DIM

E4M3_MAX = 448.0
BACKENDS = ("reference", "cpu")


def _chosen(backend: object, device: torch.device) -> str:
    """The backend's name; `auto` takes `cpu` on a CPU and `reference` elsewhere."""
    if backend == "auto":
        backend = "cpu" if device.type == "cpu" else "reference"
    if backend not in BACKENDS:
        raise InputError("backend", backend, f"auto or one of {', '.join(BACKENDS)}")
    if backend == "cpu" and device.type != "cpu":
        raise InputError("backend", backend, f"tensors on a cpu, not {device}")
    return str(backend)


def scale_bytes_of(x: torch.Tensor) -> torch.Tensor:
    """Exponent byte of each row's scale, int32 `[N, 1]`; 255 for a row with a NaN."""
    bits = x.to(torch.float32).contiguous().view(torch.int32) & 0x7FFFFFFF
    largest = bits.amax(dim=-1, keepdim=True)
    # 448 is 1.75 * 2**8: adding 0x1FFFFF carries exactly above a mantissa of 1.75.
    byte = (((largest.clamp(max=0x7F800000) + 0x1FFFFF) >> 23) - 8).clamp(min=FP8_FLOOR_BYTE)
    return torch.where(largest > 0x7F800000, 255, byte)


def quantize(
    x: torch.Tensor,
    *,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    backend: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize rows `[N, 128]` to e4m3 bytes, uint8 `[N, 128]`, and scales, float32 `[N]`.

    Raises:
        InputError: An argument cannot be used, or the backend cannot run here.
    """
    x = checks.rows("x", x)
    name, count = _chosen(backend, x.device), int(x.shape[0])
    if out is None:
        values = torch.empty((count, FP8_VALUE_BYTES), dtype=torch.uint8, device=x.device)
        scales = torch.empty(count, dtype=torch.float32, device=x.device)
    else:
        values = checks.output("out[0]", out[0], (count, FP8_VALUE_BYTES), (torch.uint8,), x.device)
        scales = checks.output("out[1]", out[1], (count,), (torch.float32,), x.device)
    if count and name == "cpu":
        from kvslab.mxfp4 import fp8_cpu

        fp8_cpu.quantize(x, values, scales)
    elif count:
        byte = scale_bytes_of(x)
        has_nan = byte == 255
        finite = torch.where(has_nan, 127, byte)
        scaled = x.to(torch.float32) * ((254 - finite) << 23).view(torch.float32)
        scaled = torch.where(has_nan, 0.0, scaled).clamp(-E4M3_MAX, E4M3_MAX)
        values.copy_(scaled.to(torch.float8_e4m3fn).view(torch.uint8))
        scales.copy_(torch.where(has_nan, torch.nan, (finite << 23).view(torch.float32)).squeeze(-1))
    return values, scales


def expanded(values: torch.Tensor, scale_bytes: torch.Tensor) -> torch.Tensor:
    """`values[..., 128]` and the four bytes of each scale as fp32 `[..., 128]`."""
    scales = scale_bytes.contiguous().view(torch.float32)
    return values.contiguous().view(torch.float8_e4m3fn).to(torch.float32) * scales


def _view(cache_view: torch.Tensor, rows_per_page: int) -> checks.PagedView:
    return checks.paged_view(
        cache_view, rows_per_page, value_bytes=FP8_VALUE_BYTES, scale_bytes=FP8_SCALE_BYTES
    )


def insert(
    cache_view: torch.Tensor,
    x: torch.Tensor,
    slots: torch.Tensor,
    *,
    rows_per_page: int,
    checked: bool = True,
    backend: str = "auto",
) -> None:
    """Quantize rows `[N, 128]` and write each at its slot, as `kvslab.mxfp4.insert` does.

    Raises:
        InputError: An argument cannot be used, or the backend cannot run here.
    """
    view, x = _view(cache_view, rows_per_page), checks.rows("x", x)
    device, count = view.data.device, int(x.shape[0])
    checks.tensor("x", x, (count, HEAD_DIM), checks.FLOATS, device=device)
    slots = checks.tensor("slots", slots, (count,), checks.INDICES, device=device)
    name = _chosen(backend, device)
    if checked:
        checks.slots_in_range(slots, view.num_slots)
        slots = checks.last_of_each(slots)
    if not (count and view.num_blocks):
        return
    if name == "cpu":
        from kvslab.mxfp4 import fp8_cpu

        fp8_cpu.insert(view, x, slots)
    else:
        values, scales = quantize(x, backend=name)
        reference.scatter_rows(view, slots, values, scales[:, None].view(torch.uint8))


def gather(
    cache_view: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    rows_per_page: int,
    dtype: torch.dtype = torch.float32,
    backend: str = "auto",
) -> torch.Tensor:
    """Read the first `lengths[b]` rows of each request, `[B, L, 128]`, zero past a length.

    Raises:
        InputError: An argument cannot be used, or the backend cannot run here.
    """
    view = _view(cache_view, rows_per_page)
    device = view.data.device
    block_table = checks.tensor("block_table", block_table, ("B", "nb"), checks.INDICES, device=device)
    batch = int(block_table.shape[0])
    lengths = checks.tensor("lengths", lengths, (batch,), checks.INDICES, device=device)
    name = _chosen(backend, device)
    longest = checks.tables_in_range(view, block_table, lengths, "lengths")
    out = torch.zeros((batch, longest, HEAD_DIM), dtype=checks.output_dtype(dtype), device=device)
    if out.numel() and name == "cpu":
        from kvslab.mxfp4 import fp8_cpu

        fp8_cpu.gather(view, block_table, lengths, out)
    elif out.numel():
        values, scales, exists = reference.gather_rows(view, block_table, lengths, longest)
        out.copy_(torch.where(exists[..., None], expanded(values, scales), 0.0))
    return out


def paged_logits(
    q: torch.Tensor,
    weights: torch.Tensor,
    cache_view: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    rows_per_page: int,
    max_length: int | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """`logits[t, j] = sum_h w[t, h] * relu(q[t, h] . k[j])`, float32 `[T, L]`, -inf past the context.

    Raises:
        InputError: An argument cannot be used, or the backend cannot run here.
    """
    view = _view(cache_view, rows_per_page)
    device = view.data.device
    q = checks.tensor("q", q, ("T", "H", HEAD_DIM), checks.FLOATS, device=device)
    queries, heads = int(q.shape[0]), int(q.shape[1])
    weights = checks.tensor("weights", weights, (queries, heads), checks.FLOATS, device=device)
    block_table = checks.tensor("block_table", block_table, (queries, "nb"), checks.INDICES, device=device)
    context_lens = checks.tensor("context_lens", context_lens, (queries,), checks.INDICES, device=device)
    name = _chosen(backend, device)
    longest = checks.tables_in_range(view, block_table, context_lens, "context_lens")
    if max_length is not None:
        longest = checked_int("max_length", max_length, minimum=longest)
    out = torch.full((queries, longest), -torch.inf, dtype=torch.float32, device=device)
    if not out.numel() or not heads or not block_table.shape[1] or not view.num_blocks:
        return out
    if name == "cpu":
        from kvslab.mxfp4 import cpu, fp8_cpu

        cpu.logits_of(fp8_cpu.gather, q, weights, view, block_table, context_lens, out)
    else:
        reference.logits_of(expanded, q, weights, view, block_table, context_lens, out)
    return out
