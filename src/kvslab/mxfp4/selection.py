"""Top-k with ties settled, for every device that has `torch.topk`."""

import torch


def topk_by_key(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Top-k with ties settled, through one 64-bit key an element; on any device.

    The high half of a key orders as the value does, the low half prefers a lower index, so
    no two keys are equal and a selection without a stable order is enough.
    """
    scores = torch.where(scores.isnan(), -torch.inf, scores) + 0.0
    bits = scores.contiguous().view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    index = torch.arange(scores.shape[-1], device=scores.device)
    key, _ = torch.topk(ordered << 32 | (0xFFFFFFFF - index), k, dim=-1, sorted=True)
    indices = 0xFFFFFFFF - (key & 0xFFFFFFFF)
    values = torch.gather(scores, -1, indices)
    return values, torch.where(values == -torch.inf, -1, indices).to(torch.int32)
