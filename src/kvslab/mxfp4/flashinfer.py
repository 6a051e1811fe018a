"""FlashInfer's own quantizer and top-k, adapted lazily; they need a GPU from sm_100 on.

Only what FlashInfer has is offered: `quantize` (its rule is `vllm`'s for finite input, its
scales in the linear layout) and `topk`.  Its public dequantize asks for device 0 of CUDA
whatever it is given, so nothing of it runs on a CPU.

Source: FlashInfer 0.7, `flashinfer/quantization/fp4_quantization.py`, `flashinfer/topk.py`.
"""

import importlib
from typing import Any, NoReturn

import torch

from kvslab.errors import InputError
from kvslab.mxfp4.checks import PagedView
from kvslab.mxfp4.contract import SCALE_BYTES, VALUE_BYTES, Rule

_LEAST_CAPABILITY = 10


def missing(device: torch.device) -> str | None:
    """What FlashInfer lacks on a device: a GPU that has FP4 conversion."""
    if device.type != "cuda":
        return f"tensors on cuda, not {device}"
    major, minor = torch.cuda.get_device_capability(device)
    if major < _LEAST_CAPABILITY:
        return f"a GPU from sm_100 on, not sm_{major}{minor}"
    return None


def _flashinfer() -> Any:
    return importlib.import_module("flashinfer")


def _unsupported(operation: str) -> NoReturn:
    raise InputError(
        "backend", "flashinfer", f"a backend that has {operation}: FlashInfer offers quantize, topk"
    )


def quantize(x: torch.Tensor, rule: Rule, values: torch.Tensor, scales: torch.Tensor) -> None:
    """Quantize `x[N, 128]` into `values[N, 64]` and `scales[N, 4]`, uint8."""
    if rule is not Rule.VLLM:
        raise InputError("rule", str(rule), "vllm, the only rule of FlashInfer")
    if x.dtype == torch.float32:
        raise InputError("x", x.dtype, "bfloat16 or float16 for FlashInfer")
    module = _flashinfer()
    packed, scale = module.mxfp4_quantize(x.contiguous(), sfLayout=module.SfLayout.layout_linear)
    values.copy_(packed.view(torch.uint8).reshape(-1, VALUE_BYTES))
    scales.copy_(scale.view(torch.uint8).reshape(-1, SCALE_BYTES))


def topk(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `k` largest of each row, ties to the lower index: values and int32 indices."""
    clean = torch.where(scores.isnan(), -torch.inf, scores).contiguous()
    values, indices = _flashinfer().top_k(clean, k, sorted=True, deterministic=True, tie_break=1)
    return values, torch.where(values == -torch.inf, -1, indices).to(torch.int32)


def dequantize(values: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """FlashInfer has none for this layout."""
    _unsupported("dequantize")


def insert(view: PagedView, x: torch.Tensor, slots: torch.Tensor, rule: Rule) -> None:
    """FlashInfer has none for this page."""
    _unsupported("insert")


def gather(view: PagedView, block_table: torch.Tensor, lengths: torch.Tensor, out: torch.Tensor) -> None:
    """FlashInfer has none for this page."""
    _unsupported("gather")


def logits(
    q: torch.Tensor,
    weights: torch.Tensor,
    view: PagedView,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """FlashInfer has none for this page."""
    _unsupported("paged_logits")
