"""Guards the scores: a key read from the wrong block ranks plausibly and is wrong.

The oracle reads rows with the codec and adds up in float64.
"""

import pytest
import torch
from mxfp4_inputs import FAST_BACKENDS, guarded_slab, view_of

from kvslab import mxfp4
from kvslab.mxfp4 import Rule, codec, fp8
from kvslab.mxfp4.contract import PageGeometry

ROWS, BLOCKS, STRIDE = 7, 11, 517
TABLE = torch.tensor([[3, 1, 0, 10], [4, 4, 9, 2], [5, 6, 7, 8], [0, 0, 0, 0]])
LENGTHS = torch.tensor([28, 17, 1, 0])


def filled_view() -> tuple[torch.Tensor, torch.Tensor]:
    slab = guarded_slab(BLOCKS * STRIDE)
    view = view_of(slab, num_blocks=BLOCKS, block_stride=STRIDE, rows_per_page=ROWS)
    keys = torch.randn((BLOCKS * ROWS, 128), generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    mxfp4.insert(view, keys, torch.arange(BLOCKS * ROWS), rows_per_page=ROWS, backend="reference")
    return slab, view


def query(heads: int, seed: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn((4, heads, 128), generator=generator).to(torch.bfloat16)
    return q, torch.randn((4, heads), generator=generator)


def in_float64(
    slab: torch.Tensor, q: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and the sum of magnitudes that they come from."""
    flat, page = slab.numpy().tobytes(), PageGeometry(rows_per_page=ROWS)
    scores = torch.full((4, 28), -torch.inf, dtype=torch.float64)
    sizes = torch.ones((4, 28), dtype=torch.float64)
    for t, length in enumerate(LENGTHS.tolist()):
        for position in range(length):
            block = int(TABLE[t, position // ROWS])
            line = codec.read_row(flat, block, position % ROWS, page=page, block_stride=STRIDE)
            signed = torch.tensor([p - 2**32 if p >> 31 else p for p in line], dtype=torch.int32)
            key = signed.view(torch.float32).to(torch.float64)
            heads = torch.relu(q[t].to(torch.float64) @ key)
            scores[t, position] = weights[t].to(torch.float64) @ heads
            sizes[t, position] = weights[t].abs().to(torch.float64) @ (
                q[t].abs().to(torch.float64) @ key.abs()
            )
    return scores, sizes


@pytest.mark.parametrize("heads", [1, 5, 64])
@pytest.mark.parametrize("backend", ["codec", *FAST_BACKENDS])
def test_logits_agree_with_float64(backend: str, heads: int) -> None:
    slab, view = filled_view()
    q, weights = query(heads)
    got = mxfp4.paged_logits(q, weights, view, TABLE, LENGTHS, rows_per_page=ROWS, backend=backend)
    expected, sizes = in_float64(slab, q, weights)
    exists = torch.arange(28) < LENGTHS[:, None]
    assert got.dtype == torch.float32 and got.shape == (4, 28)
    assert torch.equal(got == -torch.inf, ~exists)
    error = (got.to(torch.float64) - expected)[exists].abs()
    # 1e-5 of the largest logit, and fp32 rounding of each sum.
    assert float(error.max()) <= 1e-5 * float(expected[exists].abs().max())
    assert bool((error <= 1e-6 * sizes[exists]).all())


@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_a_quantized_query_is_its_expansion(backend: str) -> None:
    _, view = filled_view()
    q, weights = query(8)
    packed = mxfp4.quantize_query(q, backend=backend)
    wide = mxfp4.dequantize(packed[0].reshape(-1, 64), packed[1].reshape(-1, 4), backend=backend)
    options = {"rows_per_page": ROWS, "backend": backend}
    got = mxfp4.paged_logits(packed, weights, view, TABLE, LENGTHS, **options)
    expected = mxfp4.paged_logits(wide.reshape(4, 8, 128), weights, view, TABLE, LENGTHS, **options)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_strided_inputs_given_outputs_and_long_contexts(backend: str) -> None:
    """More keys than are expanded at a time, repeated blocks, a transposed query."""
    _, view = filled_view()
    q, weights = query(6)
    table = (torch.arange(1_000) % BLOCKS).repeat(4, 1)
    lengths = torch.tensor([6_999, 2_049, 4_097, 0])
    out = torch.full((4, 7_010), 3.0)
    turned = q.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    got = mxfp4.paged_logits(
        turned, weights.T.contiguous().T, view, table, lengths,
        rows_per_page=ROWS, max_length=7_005, out=out[:, 2:7_007], backend=backend,
    )  # fmt: skip
    short = mxfp4.paged_logits(
        q,
        weights,
        view,
        table[:, :BLOCKS],
        torch.full((4,), BLOCKS * ROWS),
        rows_per_page=ROWS,
        backend="codec",
    )
    for t, length in enumerate(lengths.tolist()):
        repeated = short[t].repeat(100)[:length]
        torch.testing.assert_close(got[t, :length], repeated, rtol=1e-5, atol=1e-4)
        assert bool((got[t, length:] == -torch.inf).all())
    assert bool((out[:, :2] == 3).all()) and bool((out[:, 7_007:] == 3).all())


@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_a_nan_key_scores_nan_and_a_missing_block_scores_nothing(backend: str) -> None:
    _, view = filled_view()
    x = torch.zeros((1, 128))
    x[0, 5] = torch.nan
    mxfp4.insert(view, x, torch.tensor([3 * ROWS + 2]), rows_per_page=ROWS, backend=backend)
    q, weights = query(4)
    got = mxfp4.paged_logits(q, weights, view, TABLE, LENGTHS, rows_per_page=ROWS, backend=backend)
    assert got.isnan().nonzero().tolist() == [[0, 2]]
    bad = TABLE.clone()
    bad[0, 1] = 2**35
    got = mxfp4.paged_logits(
        q, weights, view, bad, LENGTHS, rows_per_page=ROWS, checked=False, backend=backend
    )
    assert bool((got[0, 7:14] == -torch.inf).all()) and bool(got[0, 14:].isfinite().all())


@pytest.mark.parametrize("backend", ["codec", *FAST_BACKENDS])
def test_topk_settles_ties_by_the_lower_index(backend: str) -> None:
    inf = torch.inf
    scores = torch.tensor(
        [
            [1.0, 3.0, 3.0, -inf, 2.0, 3.0],
            [0.0, -0.0, torch.nan, -1.0, -0.0, 0.0],
            [-inf, -inf, torch.nan, -inf, 5.0, -inf],
        ]
    )
    values, indices = mxfp4.topk(scores, 4, backend=backend)
    assert indices.tolist() == [[1, 2, 5, 4], [0, 1, 4, 5], [4, -1, -1, -1]]
    assert values.tolist() == [[3.0, 3.0, 3.0, 2.0], [0.0] * 4, [5.0, -inf, -inf, -inf]]
    assert indices.dtype == torch.int32
    values, indices = mxfp4.topk(scores[:, :2], 4, backend=backend)
    assert indices.tolist() == [[1, 0, -1, -1], [0, 1, -1, -1], [-1, -1, -1, -1]]
    assert mxfp4.topk(scores[:0], 2, backend=backend)[0].shape == (0, 2)
    out = torch.zeros((3, 9))[:, 2:6], torch.zeros((3, 4), dtype=torch.int32)
    assert mxfp4.topk(scores, 4, out=out, backend=backend)[1].tolist()[2] == [4, -1, -1, -1]


@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_topk_of_many_ties(backend: str) -> None:
    scores = torch.randint(-20, 20, (5, 4_000), generator=torch.Generator().manual_seed(3)).to(torch.float32)
    values, indices = mxfp4.topk(scores, 500, backend=backend)
    for row in range(5):
        ranked = sorted(range(4_000), key=lambda i: (-float(scores[row, i]), i))[:500]
        assert indices[row].tolist() == ranked
    assert torch.equal(values, torch.gather(scores, 1, indices.to(torch.int64)))


def test_rules_reach_the_scores() -> None:
    """The floor rule saturates elements, so its scores differ: the rule is not lost on the way."""
    q, weights = query(4)
    scored = []
    for rule in (Rule.VLLM, Rule.OCP_FLOOR):
        slab = guarded_slab(BLOCKS * STRIDE)
        view = view_of(slab, num_blocks=BLOCKS, block_stride=STRIDE, rows_per_page=ROWS)
        keys = torch.randn((BLOCKS * ROWS, 128), generator=torch.Generator().manual_seed(1))
        mxfp4.insert(view, keys, torch.arange(BLOCKS * ROWS), rows_per_page=ROWS, rule=rule)
        scored.append(mxfp4.paged_logits(q, weights, view, TABLE, LENGTHS, rows_per_page=ROWS))
    assert not torch.equal(*scored)


@pytest.mark.parametrize("backend", fp8.BACKENDS)
def test_fp8_rows(backend: str) -> None:
    """Bytes by ml_dtypes under a scale found in float64; the page by hand; scores in float64."""
    import ml_dtypes
    import numpy as np

    x = torch.randn((40, 128), generator=torch.Generator().manual_seed(4))
    x *= torch.exp2(torch.arange(-20.0, 20.0))[:, None]
    x[3], x[4, 7], x[5, 1], x[6, 0] = 0.0, torch.inf, torch.nan, 448.0
    values, scales = fp8.quantize(x, backend=backend)
    finite = [n for n in range(40) if n not in (4, 5)]
    amax = np.maximum(x[finite].abs().amax(dim=1).numpy().astype(np.float64), np.float32(1e-4))
    expected = 2.0 ** np.ceil(np.log2(amax / 448.0))
    assert scales[finite].tolist() == expected.tolist()
    theirs = (x[finite].numpy() / expected[:, None]).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(values[finite].numpy(), theirs.view(np.uint8))
    assert scales[5].isnan() and not bool(values[5].any())
    assert int(values[4, 7]) == 0x7E and float(scales[4]) == 2.0**120
    slab = guarded_slab(5_000)
    view = slab.as_strided((4, 7 * 132 + 3), (1_001, 1), 40)
    untouched = slab.clone()
    slots = torch.randperm(28, generator=torch.Generator().manual_seed(5))[:20]
    fp8.insert(view, x[10:30], slots, rows_per_page=7, backend=backend)
    for row, slot in enumerate(slots.tolist()):
        page = 40 + slot // 7 * 1_001
        untouched[page + slot % 7 * 128 : page + slot % 7 * 128 + 128] = values[10 + row]
        at = page + 7 * 128 + slot % 7 * 4
        untouched[at : at + 4] = scales[10 + row : 11 + row].view(torch.uint8)
    assert torch.equal(slab, untouched)
    fp8.insert(view, x[8:36], torch.arange(28), rows_per_page=7, backend=backend)
    keys = fp8.gather(view, torch.tensor([[2, 0]]), torch.tensor([13]), rows_per_page=7, backend=backend)
    order = torch.tensor([*range(14, 21), *range(6)]) + 8
    wide = values.view(torch.float8_e4m3fn).to(torch.float32) * scales[:, None]
    assert torch.equal(keys[0], wide[order])
    q, weights = query(6)
    got = fp8.paged_logits(
        q[:1], weights[:1], view, torch.tensor([[2, 0]]), torch.tensor([13]),
        rows_per_page=7, max_length=15, backend=backend,
    )  # fmt: skip
    heads = torch.relu(q[0].to(torch.float64) @ wide[order].to(torch.float64).T)
    exact = weights[0].to(torch.float64) @ heads
    torch.testing.assert_close(got[0, :13].to(torch.float64), exact, rtol=1e-4, atol=1e-5)
    assert bool((got[0, 13:] == -torch.inf).all())
