"""Is the memory side of a plan fast enough to be used while an engine starts and runs?

Four questions: is the address of a layer's block O(1) in the number of layers and
blocks; how long does it take to build every view of DeepSeek-V4-Pro (aim: under
5 ms); how long do a million blocks take to allocate and free (aim: under 1 s); how
long does it take to say which bytes a connector may move.

Correctness comes first, then a ceiling (one pass over as much memory), then medians
of repeated runs after a warm-up.
"""

import statistics
import time
from collections.abc import Callable

import torch

from kvslab.generations import generation_named
from kvslab.layers import CacheLayer
from kvslab.memory import BlockPool, page_addresses
from kvslab.memory.views import SlabMemory, allocate
from kvslab.models import load_layers
from kvslab.plan import Plan

BUDGET_BYTES = 28_410_134_921
NUM_BLOCKS = 1_000_000


def median_ms(act: Callable[[], object], *, repeats: int = 9) -> float:
    act()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        act()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def report(what: str, value_ms: float, aim_ms: float | None = None) -> None:
    aim = "" if aim_ms is None else f"   aim < {aim_ms:g} ms: {'met' if value_ms < aim_ms else 'MISSED'}"
    print(f"{what:<62} {value_ms:>11.4f} ms{aim}")


def check_correct(plan: Plan) -> None:
    memory = allocate(Plan(slab=plan.slab, budget_bytes=3 * plan.slab.block_stride))
    for name, page in memory.pages.items():
        view = memory.rows(name)
        if view[2].data_ptr() != memory.backing.data_ptr() + page.address(2):
            raise SystemExit(f"view of {name} is not at its address")


def address_lines() -> None:
    specs = [layer.spec for layer in load_layers("deepseek-v4-pro")]
    for num_layers, num_blocks in ((24, 1_000), (243, 1_000), (2_430, 1_000), (2_430, 10_000_000)):
        layers = [CacheLayer(name=str(i), spec=specs[i % len(specs)]) for i in range(num_layers)]
        slab = generation_named("standard").lay_out(layers)
        plan = Plan(slab=slab, budget_bytes=slab.block_stride, num_blocks_override=num_blocks)
        page = page_addresses(plan)[str(num_layers - 1)]
        loop = range(1_000)

        def addresses(page=page, last=num_blocks - 1, loop=loop) -> None:
            for _ in loop:
                page.address(last)

        report(f"1,000 addresses, {num_layers:,} layers x {num_blocks:,} blocks", median_ms(addresses))


def view_lines(plan: Plan) -> None:
    backing = torch.empty(plan.pool_bytes, dtype=torch.uint8, device="meta")
    num_layers = len(plan.slab.offset_of)

    def build() -> None:
        SlabMemory(plan=plan, backing=backing).all_rows()

    report(f"all {num_layers} views of Pro, address table included", median_ms(build), 5)
    memory = SlabMemory(plan=plan, backing=backing)
    report(f"all {num_layers} views of Pro, address table at hand", median_ms(memory.all_rows))


def pool_lines(plan: Plan) -> None:
    pool = BlockPool(Plan(slab=plan.slab, budget_bytes=1 << 40, num_blocks_override=NUM_BLOCKS + 1))
    table = torch.zeros(NUM_BLOCKS, dtype=torch.int32)
    report("ceiling: one pass over a million owners in memory", median_ms(lambda: table.fill_(1)))
    for size in (NUM_BLOCKS, 64, 1):
        calls = range(NUM_BLOCKS // size)

        def churn(size=size, calls=calls) -> None:
            for _ in calls:
                pool.free(0, pool.allocate(0, size))

        what = f"allocate + free a million blocks, {size:,} a call"
        report(what, median_ms(churn, repeats=3), 1_000)


def span_lines(plan: Plan) -> None:
    pool = BlockPool(plan)
    (block,) = pool.allocate(2)
    many = (block, *pool.allocate(2, 63))
    names = [layer.name for layer in plan.slab.groups[2].layers]
    report(
        "zero spans of one block of the main group (91 layers)", median_ms(lambda: pool.zero_spans(2, block))
    )
    report("transfer spans of 64 blocks x 91 layers", median_ms(lambda: pool.transfer_spans(names, many)))


def main() -> None:
    slab = generation_named("standard").lay_out(load_layers("deepseek-v4-pro"))
    plan = Plan(slab=slab, budget_bytes=BUDGET_BYTES)
    check_correct(plan)
    address_lines()
    view_lines(plan)
    pool_lines(plan)
    span_lines(plan)


if __name__ == "__main__":
    main()
