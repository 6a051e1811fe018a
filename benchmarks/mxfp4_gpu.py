"""How fast are the GPU kernels, beside their floors and beside what else runs there?

One prepared run, under four minutes: correctness against the reference first (a kernel whose
bytes differ gets no number), then the copy ceiling, then insert, gather, query quantization,
logits and top-k, each in a slab of the published block stride and in contiguous pages.
Contenders: the Triton kernels, `torch.compile` of the reference, dequantize-then-matmul,
FP8 rows (Triton), and FlashInfer where the architecture has FP4.

Writes `results/mxfp4_gpu/<device>.csv`, one row for a point: `operation`, `contender`, `layout`
(`slab`: stride 1,228,800; `contiguous`), `rows` (rows or keys a query), `queries`, `status`
(`ok`, `wrong bytes`, or why there is no number), `us` with `us_p10` and `us_p90`,
`moved_bytes` (the least that must move), `gb_s`, `of_copy` (share of the measured copy),
`ps_per_row` (or per key and query), `launch`, `device`, `driver`, `software`, `commit`, `date`.

    python benchmarks/mxfp4_gpu.py                         the run, on CUDA
    python benchmarks/mxfp4_gpu.py --tune                  also every launch of `LAUNCHES`
    python benchmarks/mxfp4_gpu.py --device cpu --quick    a rehearsal on tiny shapes
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from kvslab import mxfp4
from kvslab.errors import InputError
from kvslab.mxfp4 import fp8, reference
from kvslab.mxfp4.checks import paged_view
from kvslab.results.records import machine, quantiles, write_record

STRIDE, PAGE_BYTES, ROWS, HEADS = 1_228_800, 4_608, 64, 64
LAUNCHES = list(itertools.product((32, 64, 128), (1, 2, 4, 8), (4, 8), (2, 3)))
BUDGET_SECONDS = 230.0


class Clock:
    """Times a call on a device, with its caches cold.

    Args:
        device: Where the work runs.
        quick: Few repeats, for a rehearsal.
    """

    def __init__(self, device: torch.device, *, quick: bool) -> None:
        self.device, self.quick = device, quick
        self.started = time.monotonic()
        size = 1 << 16 if quick else 1 << 28
        self.cold = torch.empty(size, dtype=torch.uint8, device=device)

    def out_of_time(self) -> bool:
        """Whether the run's budget is used up."""
        return time.monotonic() - self.started > BUDGET_SECONDS

    def samples(self, run: Callable[[], object]) -> list[float]:
        """Seconds of single calls, after warm-up; the level-2 cache is overwritten before each."""
        for _ in range(1 if self.quick else 3):
            run()
        if self.device.type != "cuda":
            found = []
            for _ in range(2):
                start = time.perf_counter()
                run()
                found.append(time.perf_counter() - start)
            return found
        repeats = 25
        events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(repeats)
        ]
        for before, after in events:
            self.cold.zero_()
            before.record()
            run()
            after.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in events]


class Report:
    """Rows of the record, and the copy that they are compared with."""

    def __init__(self, clock: Clock, facts: dict[str, str]) -> None:
        self.clock, self.facts = clock, facts
        self.rows: list[dict[str, Any]] = []
        self.copy_bytes_per_second = 0.0

    def add(
        self,
        point: dict[str, Any],
        run: Callable[[], object],
        *,
        moved_bytes: int,
        units: int,
        correct: Callable[[], bool] | None = None,
    ) -> float | None:
        """Check, time and note one point; its median seconds, or None where it has no number."""
        row: dict[str, Any] = dict(point)
        try:
            if self.clock.out_of_time():
                row["status"] = "out of time"
            elif correct is not None and not correct():
                row["status"] = "wrong bytes"
            else:
                fast, middle, slow = quantiles(self.clock.samples(run))
                speed = moved_bytes / middle
                row |= {"status": "ok", "us": round(middle * 1e6, 3)}
                row |= {"us_p10": round(fast * 1e6, 3), "us_p90": round(slow * 1e6, 3)}
                row |= {"moved_bytes": moved_bytes, "gb_s": round(speed / 1e9, 2)}
                row["of_copy"] = (
                    round(speed / self.copy_bytes_per_second, 4) if self.copy_bytes_per_second else 1.0
                )
                row["ps_per_row"] = round(middle * 1e12 / max(units, 1), 2)
        except (InputError, RuntimeError, ImportError) as error:
            row["status"] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        except Exception as error:  # a compiler's own error classes: the point has no number
            row["status"] = f"{type(error).__name__}: {str(error)[:120]!r}"
        label = " ".join(str(value) for value in point.values())
        print(
            f"  {label:70} {row.get('us', '')!s:>12} us {row.get('of_copy', '')!s:>7} {row['status']}",
            flush=True,
        )
        self.rows.append(row | self.facts)
        return float(row["us"]) / 1e6 if row["status"] == "ok" else None


def pages(layout: str, blocks: int, row_bytes: int, device: torch.device) -> torch.Tensor:
    """The view of one layer: pages at the published stride, or one after the other."""
    page = max(PAGE_BYTES, ROWS * row_bytes)
    stride = STRIDE if layout == "slab" else page
    slab = torch.zeros((blocks - 1) * stride + page, dtype=torch.uint8, device=device)
    return slab.as_strided((blocks, page), (stride, 1))


def rows_points(report: Report, backend: str, device: torch.device, counts: list[int]) -> None:
    """Insert, gather and query quantization."""
    for layout, count in itertools.product(("contiguous", "slab"), counts):
        rows_at(report, backend, device, layout, count)


def rows_at(report: Report, backend: str, device: torch.device, layout: str, count: int) -> None:
    """`rows_points` for one layout and one number of rows."""
    compiled = torch.compile(reference.dequantized)
    blocks = count // ROWS
    generator = torch.Generator(device=device).manual_seed(1)
    x = torch.randn((count, 128), device=device, generator=generator).to(torch.bfloat16)
    slots = torch.randperm(count, device=device, generator=generator)
    table = torch.randperm(blocks, device=device, generator=generator)[None]
    lengths = torch.tensor([count], device=device)
    view, witness = (pages(layout, blocks, 68, device) for _ in range(2))
    options: dict[str, Any] = {"rows_per_page": ROWS, "checked": False}
    mxfp4.insert(witness, x, slots, backend="reference", **options)
    point = {"layout": layout, "rows": count, "queries": ""}

    def insert() -> None:
        mxfp4.insert(view, x, slots, backend=backend, **options)

    def inserted() -> bool:
        insert()
        return torch.equal(view, witness)

    bytes_of_row = 256 + 8 + 68
    report.add(
        {"operation": "insert", "contender": f"kvslab {backend}"} | point,
        insert,
        moved_bytes=count * bytes_of_row,
        units=count,
        correct=inserted,
    )
    wide = torch.empty((1, count, 128), dtype=torch.bfloat16, device=device)

    def gather() -> None:
        mxfp4.gather(witness, table, lengths, out=wide, max_length=count, backend=backend, **options)

    def gathered() -> bool:
        gather()
        expected = mxfp4.gather(
            witness, table, lengths, dtype=torch.bfloat16, backend="reference", rows_per_page=ROWS
        )
        return torch.equal(wide, expected)

    report.add(
        {"operation": "gather", "contender": f"kvslab {backend}"} | point,
        gather,
        moved_bytes=count * (68 + 256),
        units=count,
        correct=gathered,
    )
    if layout == "contiguous":
        values, scales = mxfp4.quantize(x, backend="reference")
        report.add(
            {"operation": "gather", "contender": "reference, torch.compile, rows in order"} | point,
            lambda: compiled(values, scales).to(torch.bfloat16),
            moved_bytes=count * (68 + 256),
            units=count,
        )
        query_points(report, backend, x)


def query_points(report: Report, backend: str, x: torch.Tensor) -> None:
    """Quantization of rows as a query's heads are quantized: no slots."""
    count = len(x)
    expected = mxfp4.quantize(x, backend="reference")
    out = tuple(torch.empty_like(part) for part in expected)
    compiled = torch.compile(reference.quantize)
    for contender in (f"kvslab {backend}", "reference, torch.compile", "flashinfer"):

        def run(contender: str = contender) -> None:
            if contender == "reference, torch.compile":
                compiled(x, mxfp4.Rule.VLLM, *out)
            else:
                name = "flashinfer" if contender == "flashinfer" else backend
                mxfp4.quantize(x, out=out, backend=name)

        def correct(run: Callable[[], None] = run) -> bool:
            run()
            return all(torch.equal(a, b) for a, b in zip(out, expected, strict=True))

        report.add(
            {"operation": "quantize", "contender": contender, "layout": "", "rows": count, "queries": ""},
            run,
            moved_bytes=count * (256 + 68),
            units=count,
            correct=correct,
        )


def fp8_query(q: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A query as e4m3 with one scale a head, folded into the weights."""
    flat = q.reshape(-1, 128)
    values, scales = fp8.quantize(flat, backend="reference")
    return values.view(torch.float8_e4m3fn).reshape(q.shape), weights * scales.reshape(weights.shape)


def logits_ways(backend: str, device: torch.device, *, tune: bool) -> Iterator[tuple[str, str, Any]]:
    """Contender, kernel and launch of every way to score keys."""
    if backend != "triton":
        yield f"kvslab {backend}", "", None
        return
    from kvslab.mxfp4.triton_backend import LAUNCH, Launch

    for kernel in ("logits_expand", "logits_scaled", "logits_e4m3", "logits_fp8"):
        yield f"kvslab triton {kernel}", kernel, LAUNCH[kernel]
        for tile, repeats, warps, stages in LAUNCHES if tune else ():
            launch = Launch(tile=tile, repeats=repeats, num_warps=warps, num_stages=stages)
            yield f"kvslab triton {kernel}", kernel, launch


def logits_points(
    report: Report, backend: str, device: torch.device, sizes: list[tuple[int, int]], *, tune: bool
) -> None:
    """Logits of some queries over some keys each; all queries share the pages."""
    for layout, (queries, count) in itertools.product(("contiguous", "slab"), sizes):
        logits_at(report, backend, device, layout, queries, count, tune=tune and queries in (1, 16))


def logits_at(
    report: Report, backend: str, device: torch.device, layout: str, queries: int, count: int, *, tune: bool
) -> None:
    """`logits_points` for one layout, number of queries and number of keys."""
    blocks = count // ROWS
    generator = torch.Generator(device=device).manual_seed(2)
    keys = torch.randn((count, 128), device=device, generator=generator).to(torch.bfloat16)
    q = torch.randn((queries, HEADS, 128), device=device, generator=generator).to(torch.bfloat16)
    weights = torch.rand((queries, HEADS), device=device, generator=generator)
    table = torch.randperm(blocks, device=device, generator=generator).repeat(queries, 1)
    lengths = torch.full((queries,), count, device=device)
    slots = torch.arange(count, device=device)
    view, large = pages(layout, blocks, 68, device), pages(layout, blocks, 132, device)
    mxfp4.insert(view, keys, slots, rows_per_page=ROWS, checked=False, backend="reference")
    fp8.insert(large, keys, slots, rows_per_page=ROWS, checked=False, backend="reference")
    query8, weights8 = fp8_query(q, weights)
    out = torch.empty((queries, count), device=device)
    options: dict[str, Any] = {"rows_per_page": ROWS, "checked": False, "max_length": count}
    expected = mxfp4.paged_logits(
        q[:1], weights[:1], view, table[:1], lengths[:1], backend="reference", **options
    )
    expected8 = fp8.paged_logits(
        q[:1], weights[:1], large, table[:1], lengths[:1], rows_per_page=ROWS, backend="reference"
    )
    small_view = paged_view(view, ROWS, value_bytes=64, scale_bytes=4)
    large_view = paged_view(large, ROWS, value_bytes=128, scale_bytes=4)
    point = {"layout": layout, "rows": count, "queries": queries}
    for contender, kernel, launch in logits_ways(backend, device, tune=tune):

        def run(kernel: str = kernel, launch: Any = launch) -> None:
            if not kernel:
                mxfp4.paged_logits(q, weights, view, table, lengths, out=out, backend=backend, **options)
                return
            from kvslab.mxfp4 import triton_backend

            narrow = kernel in ("logits_e4m3", "logits_fp8")
            pair = (query8, weights8) if narrow else (q, weights)
            target = large_view if kernel == "logits_fp8" else small_view
            triton_backend.logits(*pair, target, table, lengths, out, kernel=kernel, launch=launch)

        def correct(run: Callable[[], None] = run, kernel: str = kernel) -> bool:
            """Exact ways to rounding; ways with an FP8 query within its rounding."""
            run()
            narrow = kernel in ("logits_e4m3", "logits_fp8")
            wanted = expected8 if kernel == "logits_fp8" else expected
            error = (out[:1] - wanted).abs().max() / wanted.abs().max()
            return bool(error < (0.05 if narrow else 1e-4))

        report.add(
            {"operation": "logits", "contender": contender} | point | {"launch": str(launch or "")},
            run,
            moved_bytes=queries * count * (132 + 4 if kernel == "logits_fp8" else 68 + 4),
            units=queries * count,
            correct=correct,
        )
    wide = torch.empty((1, count, 128), dtype=torch.bfloat16, device=device)

    def dense() -> None:
        mxfp4.gather(view, table[:1], lengths[:1], out=wide, backend=backend, **options)
        for t in range(queries):
            out[t] = weights[t] @ torch.relu(q[t] @ wide[0].T).float()

    report.add(
        {"operation": "logits", "contender": "dequantize once, then matmul"} | point,
        dense,
        moved_bytes=queries * count * (68 + 4),
        units=queries * count,
    )


def topk_points(report: Report, backend: str, device: torch.device, sizes: list[tuple[int, int]]) -> None:
    """The 512 and 1024 best of each row."""
    for queries, count in sizes:
        scores = torch.randn((queries, count), device=device)
        for k, contender in itertools.product((512, 1024), (f"kvslab {backend}", "torch.topk", "flashinfer")):
            if k > count:
                continue
            expected = torch.topk(scores, k).values

            def run(k: int = k, contender: str = contender, scores: torch.Tensor = scores) -> torch.Tensor:
                if contender == "torch.topk":
                    return torch.topk(scores, k).values
                name = "flashinfer" if contender == "flashinfer" else backend
                return mxfp4.topk(scores, k, backend=name)[0]

            report.add(
                {
                    "operation": f"top {k}",
                    "contender": contender,
                    "layout": "",
                    "rows": count,
                    "queries": queries,
                },
                run,
                moved_bytes=queries * count * 4,
                units=queries * count,
                correct=lambda run=run, expected=expected: torch.equal(run(), expected),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu with --quick")
    parser.add_argument("--quick", action="store_true", help="tiny shapes: a rehearsal, nothing is written")
    parser.add_argument("--tune", action="store_true", help="also measure every launch of LAUNCHES")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--results", type=Path, default=Path("results"), help="directory of the records")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("--device: got cuda, need a GPU that torch can use (or --device cpu --quick)")
    if device.type == "cpu" and not options.quick:
        parser.error("--device: got cpu, need --quick with it: CPU numbers are benchmarks/mxfp4_cpu.py's")
    backend = ("triton" if device.type == "cuda" else "cpu") if options.backend == "auto" else options.backend
    gpu = ""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        gpu = f"{torch.cuda.get_device_name(device)}, sm_{major}{minor}"
    facts = machine(("torch", "triton", "flashinfer-python", "numba"), gpu=gpu)
    clock = Clock(device, quick=options.quick)
    report = Report(clock, facts)
    print(facts["device"])

    size = 1 << 12 if options.quick else 1 << 20
    source = torch.randn((size, 128), device=device).to(torch.bfloat16)
    target = torch.empty_like(source)
    moved = 2 * source.numel() * source.element_size()
    seconds = report.add(
        {"operation": "copy", "contender": "torch", "layout": "", "rows": size, "queries": ""},
        lambda: target.copy_(source),
        moved_bytes=moved,
        units=size,
    )
    report.copy_bytes_per_second = moved / seconds if seconds else 0.0
    if options.quick:
        sizes, counts = [(1, 128), (2, 256)], [128]
    else:
        sizes = [(1, 4_096), (1, 65_536), (1, 262_144), (16, 4_096), (16, 65_536), (64, 4_096), (64, 65_536)]
        counts = [4_096, 65_536]
    logits_points(report, backend, device, sizes, tune=options.tune)
    rows_points(report, backend, device, counts)
    topk_points(report, backend, device, [(1, 1_024)] if options.quick else sizes)
    if options.quick:
        print(f"rehearsal: {len(report.rows)} points, nothing written")
    else:
        print(write_record(options.results, "mxfp4_gpu", report.rows))


if __name__ == "__main__":
    main()
