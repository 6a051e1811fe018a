"""How fast are the CPU kernels, beside a copy and beside what else can be installed?

Every contender runs once in each round, in turning order, in one process; a ratio is taken
within a round, so that a change of the machine's speed meets both sides.  Printed and
written first is the copy: a yardstick, not a bound, since it moves every byte twice and a
quantizer writes about an eighth (fp32) or a quarter (bf16) of what it reads.

Writes `results/mxfp4_cpu/<device>.csv`, one row for an operation, a dtype, a number of threads and a
contender: `operation`, `dtype`, `threads`, `rows`, `contender`, `status` (`ok`, or why there
is no number), `bytes_equal` (share of output bytes equal to ours; a peer with another rule
has less than 1), `gb_s` with `gb_s_p10` and `gb_s_p90` (10**9 bytes of fp32 or bf16 a
second, in or out), `ours_over` (our speed over the contender's: median of the rounds) with
`ours_over_p10` and `ours_over_p90`, `rounds`, what measured it, `note`.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvslab import mxfp4
from kvslab.mxfp4 import Rule, fp8, reference
from kvslab.results.records import machine, quantiles, write_record

PACKAGES = ("torch", "numba", "numpy", "torchao", "ml_dtypes", "gguf")
ABSENT = {
    "DeepGEMM's utility": "not installed",
    "SGLang's utility": "not installed",
    "compressed-tensors": "not installed",
    "FlashInfer": "its quantizer needs CUDA",
}


@dataclass(kw_only=True)
class Contender:
    """Something that does the same work: `run` returns the output that `output` turns to bytes."""

    name: str
    run: Callable[[], Any]
    output: Callable[[Any], torch.Tensor] = lambda result: result
    seconds: list[float] = field(default_factory=list)
    status: str = "ok"
    bytes_equal: float | None = None


def packed(result: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    values, scales = result
    return torch.cat(
        (values.view(torch.uint8).reshape(-1, 64), scales.view(torch.uint8).reshape(-1, 4)), dim=1
    )


def compiled_reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, scales = torch.empty((len(x), 64), dtype=torch.uint8), torch.empty((len(x), 4), dtype=torch.uint8)
    reference.quantize(x, Rule.VLLM, values, scales)
    return values, scales


def ml_dtypes_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Our scale, then the cast of ml_dtypes: what its user would write."""
    import ml_dtypes

    blocks = x.to(torch.float32).numpy().reshape(-1, 4, 32)
    amax = np.maximum(np.abs(blocks).max(axis=-1), np.float32(6 * 2.0**-126))
    byte = ((amax.view(np.int32) + 0x3FFFFF) >> 23) - 2
    scaled = blocks * ((254 - byte) << 23).astype(np.int32).view(np.float32)[..., None]
    codes = scaled.astype(ml_dtypes.float4_e2m1fn).view(np.uint8).reshape(-1, 128)
    return torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4), torch.from_numpy(byte.astype(np.uint8))


def quantize_contenders(x: torch.Tensor) -> list[Contender]:
    values, scales = mxfp4.quantize(x)
    target = torch.empty_like(x)
    found = [
        Contender(name="copy", run=lambda: target.copy_(x)),
        Contender(name="kvslab cpu", run=lambda: mxfp4.quantize(x, out=(values, scales)), output=packed),
        Contender(
            name="kvslab reference, eager", run=lambda: mxfp4.quantize(x, backend="reference"), output=packed
        ),
    ]
    compiled = torch.compile(compiled_reference)
    found.append(Contender(name="kvslab reference, torch.compile", run=lambda: compiled(x), output=packed))
    try:
        from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx

        def convert(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            scales, values = to_mx(x, torch.float4_e2m1fn_x2, 32, ScaleCalculationMode.RCEIL)
            return values, scales

        for name, call in (("torchao, eager", convert), ("torchao, torch.compile", torch.compile(convert))):
            found.append(Contender(name=name, run=lambda call=call: call(x), output=packed))
    except ImportError:
        found.append(Contender(name="torchao", run=lambda: None, status="not installed"))
    found.append(Contender(name="ml_dtypes", run=lambda: ml_dtypes_quantize(x), output=packed))
    try:
        from gguf import GGMLQuantizationType, quants

        wide = x.to(torch.float32).numpy()
        kind = getattr(GGMLQuantizationType, "MXFP4", None)
        if kind is None:
            raise ImportError
        found.append(Contender(name="gguf", run=lambda: quants.quantize(wide, kind)))
    except ImportError:
        found.append(Contender(name="gguf", run=lambda: None, status="not installed"))
    return found


def dequantize_contenders(values: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> list[Contender]:
    out = torch.empty((len(values), 128), dtype=dtype)
    source = torch.randn((len(values), 128)).to(dtype)

    def bits(result: torch.Tensor) -> torch.Tensor:
        return result.reshape(-1, 128).contiguous().view(torch.uint8)

    def expand(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return reference.dequantized(values, scales).to(dtype)

    compiled = torch.compile(expand)
    found = [
        Contender(name="copy", run=lambda: out.copy_(source)),
        Contender(name="kvslab cpu", run=lambda: mxfp4.dequantize(values, scales, out=out), output=bits),
        Contender(name="kvslab reference, eager", run=lambda: expand(values, scales), output=bits),
        Contender(name="kvslab reference, torch.compile", run=lambda: compiled(values, scales), output=bits),
    ]
    try:
        from torchao.prototype.mx_formats.mx_tensor import to_dtype

        def convert(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
            return to_dtype(values, scales.view(torch.float8_e8m0fnu), torch.float4_e2m1fn_x2, 32, dtype)

        for name, call in (("torchao, eager", convert), ("torchao, torch.compile", torch.compile(convert))):
            found.append(Contender(name=name, run=lambda call=call: call(values, scales), output=bits))
    except ImportError:
        found.append(Contender(name="torchao", run=lambda: None, status="not installed"))
    import ml_dtypes

    def by_ml_dtypes() -> torch.Tensor:
        pairs = values.numpy()
        codes = np.stack((pairs & 15, pairs >> 4), axis=-1).view(ml_dtypes.float4_e2m1fn)
        scale = scales.numpy().view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
        wide = codes.astype(np.float32).reshape(-1, 4, 32) * scale[..., None]
        return torch.from_numpy(wide).to(dtype)

    found.append(Contender(name="ml_dtypes", run=by_ml_dtypes, output=bits))
    return found


def paged_contenders(x: torch.Tensor, operation: str) -> list[Contender]:
    """Insert and gather in a slab of the published stride, slots shuffled."""
    rows_per_page, stride = 64, 1_228_800
    blocks = len(x) // rows_per_page
    # Virtual: only the pages that are touched become memory.
    slab = torch.from_numpy(np.memmap(_sparse(stride * blocks), dtype=np.uint8, mode="r+"))
    view = slab.as_strided((blocks, 4_608), (stride, 1))
    slots = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    table, lengths = torch.randperm(blocks)[None], torch.tensor([len(x)])
    target = torch.empty_like(x)
    wide = torch.empty((1, len(x), 128), dtype=x.dtype)
    options: dict[str, Any] = {"rows_per_page": rows_per_page, "checked": False}
    mxfp4.insert(view, x, slots, **options)
    ours: Callable[[], Any] = lambda: mxfp4.insert(view, x, slots, **options)  # noqa: E731
    theirs: Callable[[], Any] = lambda: mxfp4.insert(view, x, slots, backend="reference", **options)  # noqa: E731
    if operation == "gather":
        ours = lambda: mxfp4.gather(view, table, lengths, out=wide, **options)  # noqa: E731
        theirs = lambda: mxfp4.gather(view, table, lengths, dtype=x.dtype, backend="reference", **options)  # noqa: E731
    return [
        Contender(name="copy", run=lambda: target.copy_(x)),
        Contender(name="kvslab cpu", run=ours),
        Contender(name="kvslab reference, eager", run=theirs),
    ]


def _sparse(total_bytes: int) -> str:
    import tempfile

    with tempfile.NamedTemporaryFile(delete=False) as stream:
        stream.truncate(total_bytes)
    _TEMPORARY.append(Path(stream.name))
    return stream.name


_TEMPORARY: list[Path] = []


def logits_contenders(keys: int) -> list[Contender]:
    """Scores of one query with 64 heads: MXFP4 rows, FP8 rows."""
    blocks, rows = keys // 64, 64
    x = torch.randn((keys, 128))
    slots, table, lengths = torch.arange(keys), torch.arange(blocks)[None], torch.tensor([keys])
    small = torch.zeros((blocks, 64 * 68), dtype=torch.uint8)
    large = torch.zeros((blocks, 64 * 132), dtype=torch.uint8)
    mxfp4.insert(small, x, slots, rows_per_page=rows)
    fp8.insert(large, x, slots, rows_per_page=rows)
    q, weights = torch.randn((1, 64, 128)), torch.rand((1, 64))
    source, target = torch.randn((keys, 128)), torch.empty((keys, 128))
    return [
        Contender(name="copy", run=lambda: target.copy_(source)),
        Contender(
            name="kvslab cpu",
            run=lambda: mxfp4.paged_logits(q, weights, small, table, lengths, rows_per_page=rows),
        ),
        Contender(
            name="FP8 rows, kvslab cpu",
            run=lambda: fp8.paged_logits(q, weights, large, table, lengths, rows_per_page=rows),
        ),
    ]


def race(contenders: list[Contender], rounds: int) -> None:
    """Check outputs against ours, warm up, then time every contender in every round."""
    expected: torch.Tensor | None = None
    for contender in sorted(contenders, key=lambda c: c.name != "kvslab cpu"):
        if contender.status != "ok":
            continue
        try:
            result = contender.run()
            contender.run()
            if contender.name == "kvslab cpu" and isinstance(result, (torch.Tensor, tuple)):
                expected = contender.output(result).clone()
            elif expected is not None and contender.name not in ("copy", "gguf", "FP8 rows, kvslab cpu"):
                got = contender.output(result)
                contender.bytes_equal = float(
                    (got.view(torch.uint8) == expected.view(torch.uint8)).double().mean()
                )
        except Exception as error:  # a peer that fails has no number, and says why
            contender.status = (
                f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
            )
    running = [c for c in contenders if c.status == "ok"]
    for number in range(rounds):
        turn = number % len(running)
        for contender in running[turn:] + running[:turn]:
            start = time.perf_counter()
            contender.run()
            contender.seconds.append(time.perf_counter() - start)


def records(contenders: list[Contender], base: dict[str, Any], moved_bytes: int) -> list[dict[str, Any]]:
    ours = next(c for c in contenders if c.name == "kvslab cpu")
    rows = []
    for contender in contenders:
        row = {**base, "contender": contender.name, "status": contender.status}
        if contender.status == "ok":
            slow, middle, fast = quantiles([moved_bytes / s / 1e9 for s in contender.seconds])
            ratios = [theirs / mine for theirs, mine in zip(contender.seconds, ours.seconds, strict=True)]
            low, ratio, high = quantiles(ratios)
            equal = "" if contender.bytes_equal is None else round(contender.bytes_equal, 6)
            row |= {"bytes_equal": equal, "gb_s": round(middle, 3)}
            row |= {"gb_s_p10": round(slow, 3), "gb_s_p90": round(fast, 3), "ours_over": round(ratio, 3)}
            row |= {"ours_over_p10": round(low, 3), "ours_over_p90": round(high, 3)}
        rows.append(row)
        if contender.status == "ok":
            print(f"  {contender.name:34} {row['gb_s']:8.2f} GB/s   ours is {row['ours_over']:7.2f} x")
        else:
            print(f"  {contender.name:34} {contender.status}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"), help="directory of the records")
    parser.add_argument("--rows", type=int, default=1 << 17)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--note", default="")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    import numba

    facts = machine(PACKAGES)
    rows: list[dict[str, Any]] = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn((options.rows, 128), generator=torch.Generator().manual_seed(0)).to(dtype)
            packed_rows = mxfp4.quantize(x)
            for operation in ("quantize", "dequantize", "insert", "gather", "logits"):
                keys = options.rows
                if operation == "logits":
                    if dtype != torch.float32:
                        continue
                    keys = min(keys, 1 << 14)
                torch.compiler.reset()
                match operation:
                    case "quantize":
                        contenders = quantize_contenders(x)
                    case "dequantize":
                        contenders = dequantize_contenders(*packed_rows, dtype)
                    case "logits":
                        contenders = logits_contenders(keys)
                    case _:
                        contenders = paged_contenders(x, operation)
                name = str(dtype).removeprefix("torch.")
                print(f"{operation}, {name}, {threads} threads, {keys:,} rows")
                race(contenders, options.rounds)
                base = {"operation": operation, "dtype": name, "threads": threads, "rows": keys}
                found = records(contenders, base, keys * 128 * x.element_size())
                for row in found:
                    row |= {"rounds": options.rounds, **facts, "note": options.note}
                rows += found
                del contenders
                for path in _TEMPORARY:
                    path.unlink(missing_ok=True)
                _TEMPORARY.clear()
    for name, reason in ABSENT.items():
        rows.append({"operation": "quantize", "contender": name, "status": reason, **facts})
        print(f"  {name:34} {reason}")
    print(write_record(options.results, "mxfp4_cpu", rows))


if __name__ == "__main__":
    main()
