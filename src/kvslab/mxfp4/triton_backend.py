"""The Triton backend: launches of `triton_kernels` on CUDA, or under Triton's interpreter.

`LAUNCH` holds the tile of every kernel.  It is a record, not a search: nothing is tuned when
the module is imported.  `benchmarks/mxfp4_gpu.py --tune` measures the alternatives on a
device; `results/kernel_resources.csv` lists what each compiles to.
"""

import os
from dataclasses import dataclass
from typing import Any

import torch

from kvslab.mxfp4 import triton_kernels as kernels
from kvslab.mxfp4 import triton_logits
from kvslab.mxfp4.checks import PagedView
from kvslab.mxfp4.contract import RULES, SCALES_PER_ROW, Rule
from kvslab.mxfp4.selection import topk_by_key

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""Whether kernels run in Triton's interpreter, on CPU tensors; settled at import."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How one kernel is launched.

    Attributes:
        tile: Microblocks (encode, decode) or keys (logits) that a program takes at once.
        repeats: Tiles that a program takes one after the other.
        num_warps: Warps of a program.
        num_stages: Depth of software pipelining.
    """

    tile: int
    repeats: int = 1
    num_warps: int = 4
    num_stages: int = 2


LAUNCH: dict[str, Launch] = {
    "encode": Launch(tile=128),
    "decode": Launch(tile=128),
    "logits_expand": Launch(tile=64, repeats=4),
    "logits_scaled": Launch(tile=64, repeats=4),
    "logits_e4m3": Launch(tile=64, repeats=4),
    "logits_fp8": Launch(tile=64, repeats=4),
}


def missing(device: torch.device) -> str | None:
    """What this backend lacks on a device: CUDA, or the interpreter for tensors on a CPU."""
    if device.type == "cuda" or (INTERPRETED and device.type == "cpu"):
        return None
    return f"tensors on cuda, not {device} (or TRITON_INTERPRET=1 before Python starts, which is slow)"


def _options(launch: Launch) -> dict[str, int]:
    return {"num_warps": launch.num_warps, "num_stages": launch.num_stages}


def _programs(count: int, tile: int) -> int:
    return -(-count // tile)


def has_hardware_convert(device: torch.device) -> bool:
    """Whether the device converts fp32 to E2M1 in one instruction (sm_100 and up)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 10


def rule_constants(rule: Rule, *, hardware: bool) -> dict[str, Any]:
    """A rule as the compile-time constants of `encode`."""
    formula = RULES[rule]
    return {
        "ADD": formula.add,
        "FLOOR_BYTE": formula.floor_byte,
        "TIES_TO_EVEN": formula.ties_to_even,
        "KEEPS_NEGATIVE_ZERO": formula.keeps_negative_zero,
        "NAN_BYTE": formula.nan_byte,
        "INF_BYTE": formula.inf_byte,
        "NAN_CODE": formula.nan_code,
        "NAN_ZEROES": formula.nan_zeroes,
        "HARDWARE": hardware and rule is Rule.VLLM,
    }


def _encode(
    x: torch.Tensor,
    rule: Rule,
    values: torch.Tensor,
    scales: torch.Tensor,
    slots: torch.Tensor,
    view: PagedView | None,
    strides: tuple[int, int],
) -> None:
    launch = LAUNCH["encode"]
    count = int(x.shape[0])
    kernels.encode[(_programs(count * SCALES_PER_ROW, launch.tile),)](
        x,
        values,
        scales,
        slots,
        count,
        x.stride(0),
        x.stride(1),
        *strides,
        0 if view is None else view.block_stride,
        0 if view is None else view.num_slots,
        1 if view is None else view.page.rows_per_page,
        PAGED=view is not None,
        BLOCK=launch.tile,
        **rule_constants(rule, hardware=has_hardware_convert(x.device)),
        **_options(launch),
    )


def quantize(x: torch.Tensor, rule: Rule, values: torch.Tensor, scales: torch.Tensor) -> None:
    """Quantize `x[N, 128]` into `values[N, 64]` and `scales[N, 4]`, uint8."""
    _encode(x, rule, values, scales, scales, None, (values.stride(0), scales.stride(0)))


def insert(view: PagedView, x: torch.Tensor, slots: torch.Tensor, rule: Rule) -> None:
    """Quantize `x[N, 128]` and write each row at its slot."""
    _encode(x, rule, view.data, view.data, slots.contiguous(), view, (0, 0))


def dequantize(values: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """Dequantize `values[N, 64]`, `scales[N, 4]` into `out[N, 128]`."""
    if values.stride(1) != 1 or scales.stride(1) != 1:
        values, scales = values.contiguous(), scales.contiguous()
    launch = LAUNCH["decode"]
    count = int(values.shape[0])
    kernels.decode[(_programs(count * SCALES_PER_ROW, launch.tile), 1)](
        values,
        scales,
        out,
        scales,
        scales,
        count,
        values.stride(0),
        scales.stride(0),
        0,
        out.stride(0),
        0,
        0,
        0,
        0,
        1,
        PAGED=False,
        BLOCK=launch.tile,
        **_options(launch),
    )


def gather(view: PagedView, block_table: torch.Tensor, lengths: torch.Tensor, out: torch.Tensor) -> None:
    """Read rows into `out[B, L, 128]`; rows past a length are zero."""
    launch = LAUNCH["decode"]
    block_table, lengths = block_table.contiguous(), lengths.contiguous()
    requests, longest = int(out.shape[0]), int(out.shape[1])
    kernels.decode[(_programs(longest * SCALES_PER_ROW, launch.tile), requests)](
        view.data,
        view.data,
        out,
        block_table,
        lengths,
        longest,
        0,
        0,
        out.stride(0),
        out.stride(1),
        block_table.stride(0),
        int(block_table.shape[1]),
        view.num_blocks,
        view.block_stride,
        view.page.rows_per_page,
        PAGED=True,
        BLOCK=launch.tile,
        **_options(launch),
    )


def logits(
    q: torch.Tensor,
    weights: torch.Tensor,
    view: PagedView,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    *,
    kernel: str = "logits_expand",
    launch: Launch | None = None,
) -> None:
    """Indexer logits `out[T, L]` of `q[T, H, 128]`, `weights[T, H]`; -inf past the context.

    Args:
        q: The query; e4m3 for the kernels `logits_e4m3` and `logits_fp8`.
        weights: Weights of the heads.
        view: The pages.
        block_table: Block ids of each query.
        context_lens: Rows that each query sees.
        out: Where to write.
        kernel: Which kernel of `triton_logits` to use.
        launch: How; by default as `LAUNCH` says.
    """
    launch = LAUNCH[kernel] if launch is None else launch
    block_table, context_lens = block_table.contiguous(), context_lens.contiguous()
    q = q if q.stride(2) == 1 else q.contiguous()
    weights = weights if weights.stride(1) == 1 else weights.contiguous()
    queries, heads, longest = int(q.shape[0]), int(q.shape[1]), int(out.shape[1])
    constants: dict[str, Any] = {
        # A product needs 16 lines at least, and a power of two.
        "HEADS": max(16, 1 << (heads - 1).bit_length()),
        "KEYS": launch.tile,
        "TILES": launch.repeats,
    }
    if kernel == "logits_expand":
        constants["WIDE"] = INTERPRETED or q.dtype != torch.bfloat16
    getattr(triton_logits, kernel)[(_programs(longest, launch.tile * launch.repeats), queries)](
        q,
        weights,
        view.data,
        block_table,
        context_lens,
        out,
        longest,
        heads,
        q.stride(0),
        q.stride(1),
        weights.stride(0),
        out.stride(0),
        block_table.stride(0),
        int(block_table.shape[1]),
        view.num_blocks,
        view.block_stride,
        view.page.rows_per_page,
        **constants,
        **_options(launch),
    )


def topk(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `k` largest of each row, ties to the lower index: values and int32 indices."""
    return topk_by_key(scores, k)
