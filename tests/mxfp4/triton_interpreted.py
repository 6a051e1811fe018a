"""Run by a test in a process with TRITON_INTERPRET=1: the Triton kernels against the codec.

A program of the interpreter takes about 7 ms, so shapes are small and checks are dense.
"""

import torch
from mxfp4_inputs import codec_bytes, guarded_slab, inserted_by_codec, mixed_rows, patterns, view_of

from kvslab import mxfp4
from kvslab.mxfp4 import Rule

TIES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def same(x: torch.Tensor, rule: Rule) -> None:
    values, scales = mxfp4.quantize(x, rule=rule, backend="triton")
    expected = codec_bytes(x, rule)
    assert torch.equal(values, expected[0]) and torch.equal(scales, expected[1]), (rule, x.dtype)


def bf16_everywhere() -> torch.Tensor:
    """Every 21st bf16 number in one position of a microblock, the others controlled."""
    every = torch.arange(0, 65536, 21, dtype=torch.int32)[:3120].to(torch.int16).view(torch.bfloat16)
    x = torch.full((3120, 32), 6.0, dtype=torch.bfloat16)
    x[:, ::2] = -0.5
    x[torch.arange(3120), torch.arange(3120) % 32] = every
    return x.reshape(-1, 128)


def ties() -> torch.Tensor:
    rows = []
    for byte in (1, 2, 3, 64, 126, 127, 128, 200, 252, 253):
        scale = 2.0 ** (byte - 127)
        at = torch.tensor(TIES[: 7 if byte < 253 else 4], dtype=torch.float64) * scale
        at = at.to(torch.float32)
        near = torch.cat((at, torch.nextafter(at, at * 0), torch.nextafter(at, at * 0 + torch.inf)))
        row = torch.zeros(128)
        row[0] = row[32] = torch.tensor((6.0 if byte < 253 else 3.0) * scale, dtype=torch.float64)
        row[1 : 1 + len(near)], row[33 : 33 + len(near)] = near, -near
        row[96] = -0.0
        rows.append(row)
    return torch.stack(rows)


def specials() -> torch.Tensor:
    rows = []
    for special in (0x7FC00000, 0xFFC00000, 0x7F800000, 0xFF800000, 1, 0x80000001, 0x7F7FFFFF):
        for position in (0, 15, 31):
            block = [0x3F800000 + 0x00234567 * i % 0x01000000 for i in range(32)]
            block[(position + 7) % 32], block[(position + 9) % 32] = 0x80000000, 0x7F000000
            block[(position + 11) % 32] = 0x7F800000 if position % 2 else 3
            block[position] = special
            alone = [0] * 32
            alone[position] = special
            rows.append(block + alone + block[::-1] + alone[::-1])
    return torch.stack([patterns(row) for row in rows])


def narrow_products(table: torch.Tensor, view: torch.Tensor) -> None:
    """The e4m3 expansion and FP8 rows, for a query that e4m3 holds exactly."""
    from kvslab.mxfp4 import fp8
    from kvslab.mxfp4.checks import paged_view
    from kvslab.mxfp4.triton_backend import logits

    q = torch.randint(-8, 9, (2, 5, 128)).to(torch.float32)
    weights, table, lengths = torch.randn(2, 5), table[:2], torch.tensor([20, 14])
    keys = torch.randn(42, 128)
    # Scales of one row that spread over 12 to 14 powers of two, and a row of zeros.
    keys *= torch.exp2(torch.tensor([0.0, -5.0, -9.0, -12.0])).repeat_interleave(32)
    keys[3] = 0.0
    mxfp4.insert(view, keys, torch.arange(42), rows_per_page=7, backend="reference")
    large = torch.zeros((6, 7 * 132 + 5), dtype=torch.uint8)
    fp8.insert(large, keys, torch.arange(42), rows_per_page=7, backend="reference")
    options = {"rows_per_page": 7, "max_length": 23}
    for kernel, pages, sizes, wanted in (
        (
            "logits_e4m3",
            view,
            (64, 4),
            mxfp4.paged_logits(q, weights, view, table, lengths, backend="codec", **options),
        ),
        (
            "logits_fp8",
            large,
            (128, 4),
            fp8.paged_logits(q, weights, large, table, lengths, backend="reference", **options),
        ),
    ):
        out = torch.empty(2, 23)
        target = paged_view(pages, 7, value_bytes=sizes[0], scale_bytes=sizes[1])
        logits(q.to(torch.float8_e4m3fn), weights, target, table, lengths, out, kernel=kernel)
        torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-4)


def main() -> None:
    torch.manual_seed(0)
    same(bf16_everywhere(), Rule.VLLM)
    for rule in Rule:
        same(torch.cat((ties(), specials(), mixed_rows(33, seed=3))), rule)
    same(torch.cat((ties(), specials())).to(torch.bfloat16), Rule.VLLM)
    same(mixed_rows(9, seed=4, dtype=torch.float16), Rule.VLLM)
    same(mixed_rows(128, seed=5).T.contiguous().T, Rule.VLLM)
    same(mixed_rows(2, seed=6)[:1].expand(3, 128), Rule.VLLM)

    scale = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 4)
    value = torch.arange(64, dtype=torch.uint8) * 4 + scale[:, :1] % 4
    for dtype, integers in ((torch.float32, torch.int32), (torch.bfloat16, torch.int16)):
        got, expected = (
            mxfp4.dequantize(value, scale, dtype=dtype, backend=backend) for backend in ("triton", "codec")
        )
        keep = ~expected.isnan()
        assert torch.equal(got.isnan(), ~keep)
        assert torch.equal(got[keep].view(integers), expected[keep].view(integers)), dtype

    for rows, stride, dtype in (
        (64, 1_228_800, torch.bfloat16),
        (7, 479, torch.float32),
        (2, 137, torch.bfloat16),
    ):
        slab = guarded_slab(5 * stride + 64, seed=rows)
        count = min(40, 5 * rows)
        x, slots = mixed_rows(count, seed=rows, dtype=dtype), torch.randperm(5 * rows)[:count]
        slots[1::7] = -1
        expected = inserted_by_codec(
            slab, x, slots.tolist(), block_stride=stride, rows_per_page=rows, offset=1
        )
        view = view_of(slab, num_blocks=5, block_stride=stride, rows_per_page=rows, offset=1, pad=1)
        mxfp4.insert(view, x, slots, rows_per_page=rows, backend="triton")
        assert torch.equal(slab, expected), rows
        bad = torch.tensor([-2, 5 * rows, 2**40])
        mxfp4.insert(view, x[:3], bad, rows_per_page=rows, checked=False, backend="triton")
        assert torch.equal(slab, expected), rows
        table = torch.tensor([[3, 1, 0, -1], [4, 4, 2, 7]])
        lengths = torch.tensor([2 * rows + 1, min(rows, 40)])
        for kind in (torch.float32, torch.bfloat16):
            options = {"rows_per_page": rows, "dtype": kind, "max_length": 2 * rows + 3}
            got = mxfp4.gather(view, table, lengths, backend="triton", **options)
            wanted = mxfp4.gather(view, table, lengths, backend="reference", **options)
            assert torch.equal(got.nan_to_num(nan=7.5), wanted.nan_to_num(nan=7.5)), (rows, kind)
            assert torch.equal(got.isnan(), wanted.isnan())

    slab = guarded_slab(6 * 600)
    view = view_of(slab, num_blocks=6, block_stride=600, rows_per_page=7)
    mxfp4.insert(view, torch.randn(42, 128), torch.arange(42), rows_per_page=7, backend="reference")
    nan_row = torch.full((1, 128), torch.nan)
    mxfp4.insert(view, nan_row, torch.tensor([9]), rows_per_page=7, backend="reference")
    table, lengths = torch.tensor([[3, 1, 0], [4, 5, 2], [0, 0, 2**40]]), torch.tensor([20, 14, 0])
    for heads, dtype in ((6, torch.bfloat16), (17, torch.float32)):
        q, weights = torch.randn(3, heads, 128).to(dtype), torch.randn(3, heads)
        options = {"rows_per_page": 7, "max_length": 23, "checked": False}
        got = mxfp4.paged_logits(q, weights, view, table, lengths, backend="triton", **options)
        wanted = mxfp4.paged_logits(q, weights, view, table, lengths, backend="codec", **options)
        assert torch.equal(got.isnan(), wanted.isnan()) and int(got.isnan().sum()) == 1
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-4, equal_nan=True)
    packed = mxfp4.quantize_query(torch.randn(3, 4, 128), backend="triton")
    got = mxfp4.paged_logits(
        packed, torch.rand(3, 4), view, table, lengths, backend="triton", rows_per_page=7
    )
    assert mxfp4.topk(got, 3, backend="triton")[1][2].tolist() == [-1, -1, -1]
    narrow_products(table, view)
    print("interpreted kernels agree with the codec")


if __name__ == "__main__":
    main()
