"""Inputs and helpers that the MXFP4 tests share; the bytes they expect come from the codec."""

import random

import torch

from kvslab.mxfp4 import codec
from kvslab.mxfp4.contract import PageGeometry, Rule

FAST_BACKENDS = ("reference", "cpu")


def patterns(words: list[int]) -> torch.Tensor:
    """fp32 patterns, unsigned, as a float32 tensor."""
    return torch.tensor([w - 2**32 if w >> 31 else w for w in words], dtype=torch.int32).view(torch.float32)


def words(x: torch.Tensor) -> list[list[int]]:
    """Rows as lists of unsigned fp32 patterns."""
    return [[w % 2**32 for w in row] for row in x.to(torch.float32).contiguous().view(torch.int32).tolist()]


def every_bf16() -> torch.Tensor:
    """All 65,536 bf16 numbers, NaNs and infinities included."""
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def codec_bytes(x: torch.Tensor, rule: Rule = Rule.VLLM) -> tuple[torch.Tensor, torch.Tensor]:
    """What the codec makes of rows: values and scales."""
    rows = [codec.quantize_row(row, rule) for row in words(x)]
    values = torch.tensor([list(v) for v, _ in rows], dtype=torch.uint8).reshape(-1, 64)
    return values, torch.tensor([list(s) for _, s in rows], dtype=torch.uint8).reshape(-1, 4)


def mixed_rows(count: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows that together hold every input class: magnitudes from subnormal to the largest."""
    generator = torch.Generator().manual_seed(seed)
    exponent = torch.randint(-140, 120, (count, 4, 1), generator=generator).to(torch.float64)
    spread = torch.randn((count, 4, 32), generator=generator, dtype=torch.float64)
    x = (spread * torch.exp2(exponent)).reshape(count, 128).to(torch.float32)
    picker = random.Random(seed)
    specials = [
        0.0,
        -0.0,
        float("nan"),
        float("inf"),
        -float("inf"),
        1e-45,
        -1e-45,
        3.4e38,
        -3.4e38,
        6.0,
        -0.5,
    ]
    for row in range(0, count, 2):
        for _ in range(4):
            x[row, picker.randrange(128)] = picker.choice(specials)
    if count > 3:
        x[1], x[3] = 0.0, -0.0
    return x.to(dtype)


def guarded_slab(total_bytes: int, seed: int = 7) -> torch.Tensor:
    """A slab of noise: a byte that changes where it should not is seen."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (total_bytes,), generator=generator, dtype=torch.uint8)


def view_of(
    slab: torch.Tensor,
    *,
    num_blocks: int,
    block_stride: int,
    rows_per_page: int,
    offset: int = 0,
    pad: int = 0,
) -> torch.Tensor:
    """The strided `[num_blocks, page_bytes]` view of one layer's pages."""
    return slab.as_strided((num_blocks, rows_per_page * 68 + pad), (block_stride, 1), offset)


def inserted_by_codec(
    slab: torch.Tensor,
    x: torch.Tensor,
    slots: list[int],
    *,
    block_stride: int,
    rows_per_page: int,
    offset: int = 0,
    rule: Rule = Rule.VLLM,
) -> torch.Tensor:
    """The whole slab after the codec has inserted rows one by one."""
    flat = bytearray(slab.numpy().tobytes())
    page = PageGeometry(rows_per_page=rows_per_page)
    window = memoryview(flat)[offset:]
    for row, slot in zip(words(x), slots, strict=True):
        codec.insert_row(window, row, slot, page=page, block_stride=block_stride, rule=rule)
    return torch.frombuffer(flat, dtype=torch.uint8)
