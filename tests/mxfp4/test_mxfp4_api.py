"""Guards the way in: what cannot be used is refused by name before a byte is touched."""

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mxfp4_inputs import guarded_slab, view_of

from kvslab import mxfp4
from kvslab.errors import InputError
from kvslab.mxfp4 import fp8

X = torch.zeros((3, 128))
SLAB = guarded_slab(2_000)
VIEW = view_of(SLAB, num_blocks=3, block_stride=500, rows_per_page=7)
U8 = torch.uint8


def insert(view: Any = VIEW, x: Any = X, slots: Any = None, rows: Any = 7, **options: Any) -> None:
    mxfp4.insert(view, x, torch.arange(3) if slots is None else slots, rows_per_page=rows, **options)


def gather(table: Any, lengths: Any, **options: Any) -> torch.Tensor:
    return mxfp4.gather(VIEW, table, lengths, rows_per_page=7, **options)


def logits(q: Any, weights: Any) -> torch.Tensor:
    table, lengths = torch.zeros((2, 1), dtype=torch.int64), torch.ones(2, dtype=torch.int64)
    return mxfp4.paged_logits(q, weights, VIEW, table, lengths, rows_per_page=7)


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: mxfp4.quantize([1.0]), "x: got [1.0], need float32 or bfloat16 or float16[N, 128]"),  # type: ignore[arg-type]
    (lambda: mxfp4.quantize(torch.zeros(3, 64)), "x: got float32[3, 64] on cpu, need"),
    (lambda: mxfp4.quantize(torch.zeros(128)), "x: got float32[128] on cpu, need"),
    (lambda: mxfp4.quantize(torch.zeros(3, 128, dtype=torch.float64)), "x: got float64[3, 128]"),
    (lambda: mxfp4.quantize(X, rule="nvfp4"), "rule: got 'nvfp4', need one of vllm, ocp_floor, torchao_even"),
    (lambda: mxfp4.quantize(X, backend="cuda"), "backend: got 'cuda', need auto or one of codec, reference"),
    (lambda: mxfp4.quantize(X, backend="triton"), "backend: got 'triton', need tensors on cuda, not cpu"),
    (
        lambda: mxfp4.quantize(X, out=(torch.zeros((2, 64), dtype=U8), torch.zeros((3, 4), dtype=U8))),
        "out[0]: got uint8[2, 64] on cpu, need uint8[3, 64] on cpu",
    ),
    (
        lambda: mxfp4.quantize(X, out=(torch.zeros((64, 3), dtype=U8).T, torch.zeros((3, 4), dtype=U8))),
        "out[0]: got strides (1, 3), need a last dimension of stride 1",
    ),
    (
        lambda: mxfp4.quantize(
            X, out=(torch.zeros((3, 64), dtype=U8), torch.zeros((1, 4), dtype=U8).expand(3, 4))
        ),
        "out[1]: got strides (0, 1), need a tensor that stores each element once",
    ),
    (lambda: mxfp4.quantize_query(X), "q: got float32[3, 128] on cpu, need"),
    (
        lambda: mxfp4.dequantize(torch.zeros((3, 64), dtype=U8), torch.zeros((2, 4), dtype=U8)),
        "scales: got uint8[2, 4] on cpu, need uint8[3, 4] on cpu",
    ),
    (
        lambda: mxfp4.dequantize(
            torch.zeros((3, 64), dtype=U8), torch.zeros((3, 4), dtype=U8), dtype=torch.float16
        ),
        "dtype: got torch.float16, need torch.float32 or torch.bfloat16",
    ),
    (lambda: insert(view=VIEW.to(torch.int8)), "cache_view: got int8[3, 476] on cpu, need uint8[num_blocks"),
    (
        lambda: insert(rows=8),
        "cache_view: got uint8[3, 476] on cpu, need pages of at least 8 rows * 68 bytes = 544",
    ),
    (lambda: insert(rows=0), "rows_per_page: got 0, need an integer from 1"),
    (lambda: insert(rows=True), "rows_per_page: got True, need an integer"),
    (
        lambda: insert(view=SLAB.as_strided((3, 476), (400, 1))),
        "cache_view: got a block stride of 400 bytes, need at least the 476 bytes that rows use",
    ),
    (
        lambda: insert(view=SLAB.as_strided((2, 476), (1_000, 2))),
        "cache_view: got strides (1000, 2), need adjacent bytes in a page (stride 1)",
    ),
    (lambda: insert(slots=torch.arange(4)), "slots: got int64[4] on cpu, need int32 or int64[3] on cpu"),
    (lambda: insert(slots=torch.tensor([0, -2, 1])), "slots[1]: got -2, need -1 or a slot from 0 to 20"),
    (lambda: insert(slots=torch.tensor([0, 20, 21])), "slots[2]: got 21, need -1 or a slot from 0 to 20"),
    (
        lambda: gather(torch.tensor([[0, 1]]), torch.tensor([15])),
        "lengths[0]: got 15, need 0 to 14, the rows of 2 blocks of 7",
    ),
    (lambda: gather(torch.tensor([[0]]), torch.tensor([-1])), "lengths[0]: got -1, need 0 to 7"),
    (
        lambda: gather(torch.tensor([[0, 1], [2, 3]]), torch.tensor([14, 8])),
        "block_table[1, 1]: got 3, need a block id from 0 to 2",
    ),
    (
        lambda: gather(torch.tensor([[0]]), torch.tensor([5]), max_length=4),
        "max_length: got 4, need an integer from 5",
    ),
    (
        lambda: gather(torch.tensor([[0.0]]), torch.tensor([5])),
        "block_table: got float32[1, 1] on cpu, need int32",
    ),
    (lambda: gather(torch.tensor([[0]]), torch.tensor([1, 2])), "lengths: got int64[2] on cpu, need"),
    (lambda: logits(torch.zeros(2, 4, 64), torch.zeros(2, 4)), "q: got float32[2, 4, 64] on cpu, need"),
    (lambda: logits(torch.zeros(2, 4, 128), torch.zeros(2, 5)), "weights: got float32[2, 5] on cpu, need"),
    (
        lambda: logits(
            (torch.zeros((2, 4, 64), dtype=U8), torch.zeros((2, 3, 4), dtype=U8)), torch.zeros(2, 4)
        ),
        "q[1]: got uint8[2, 3, 4] on cpu, need uint8[2, 4, 4] on cpu",
    ),
    (lambda: mxfp4.topk(torch.zeros(2, 3), 0), "k: got 0, need an integer from 1"),
    (lambda: mxfp4.topk(torch.zeros(3), 1), "logits: got float32[3] on cpu, need float32[T, L]"),
    (lambda: fp8.quantize(X, backend="triton"), "backend: got 'triton', need auto or one of reference, cpu"),
    (
        lambda: fp8.insert(VIEW, X, torch.arange(3), rows_per_page=7),
        "cache_view: got uint8[3, 476] on cpu, need pages of at least 7 rows * 132 bytes = 924",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_refused_by_name(call: Callable[[], object], message: str) -> None:
    before = SLAB.clone()
    with pytest.raises(InputError, match="^" + re.escape(message)):
        call()
    assert torch.equal(SLAB, before)


def test_entries_past_a_length_may_be_anything() -> None:
    got = gather(torch.tensor([[1, -1, 999]]), torch.tensor([7]))
    assert got.shape == (1, 7, 128)


def test_the_import_is_light() -> None:
    """numba, triton and flashinfer load with their backend, not before."""
    program = (
        "import sys; from kvslab import mxfp4; from kvslab.mxfp4 import fp8;"
        "print(sorted({'numba', 'triton', 'flashinfer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="backend: got 'flashinfer', need the package flashinfer-python"):
        mxfp4.quantize(X, backend="flashinfer")


def test_flashinfer_says_what_it_needs() -> None:
    from kvslab.mxfp4 import flashinfer

    assert flashinfer.missing(torch.device("cpu")) == "tensors on cuda, not cpu"
    with pytest.raises(InputError, match="a backend that has dequantize: FlashInfer offers quantize, topk"):
        flashinfer.dequantize(X, X, X)
    with pytest.raises(InputError, match="rule: got 'sglang', need vllm"):
        flashinfer.quantize(X, mxfp4.Rule.SGLANG, X, X)


def test_what_runs_here() -> None:
    assert mxfp4.available("cpu")[:3] == ("codec", "reference", "cpu")
