"""How long does the search for the best splits and block sizes take?

Prints the median and quartiles over many runs in one process: of `fit`, which also builds
and proves the slab layer by layer, and of the search alone.  Then the same against the
number of layers (classes fixed) and against the number of classes (layers a class fixed).
Run: python benchmarks/fit_speed.py [--runs N]
"""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable

from kvslab.capacity import Load
from kvslab.fit import BLOCK_SIZES, BlockSizes, fit
from kvslab.fit.classes import layer_classes, options_of
from kvslab.fit.search import best_options
from kvslab.layers import CacheLayer, LayerSpec, SlidingWindow
from kvslab.models import PRESETS, load_layers

BUDGET_BYTES = 28_410_134_921


def timed(call: Callable[[], object], runs: int) -> list[float]:
    """Quartiles in ms, after two runs to warm up."""
    times = []
    for _ in range(runs + 2):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.quantiles(times[2:], n=4)


def stack(num_classes: int, layers_a_class: int) -> list[CacheLayer]:
    """One latent class and windows of different lengths beside it."""
    latent = LayerSpec(kind="mla_attention", block_size=256, row_bytes=512, compress_ratio=4)
    specs = [latent] + [
        LayerSpec(
            kind="sliding_window_mla",
            block_size=64,
            row_bytes=512,
            retention=SlidingWindow(window_tokens=128 + i),
        )
        for i in range(num_classes - 1)
    ]
    return [
        CacheLayer(name=f"{i}.{j}", spec=spec) for i, spec in enumerate(specs) for j in range(layers_a_class)
    ]


def main() -> int:
    """Measure and print one line per case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50)
    runs = parser.parse_args().runs
    if runs < 2:
        print(f"fit_speed: runs: got {runs}, need at least 2", file=sys.stderr)
        return 2
    print(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {runs} runs each"
    )
    print(f"{'case':<44}{'gain %':>8}{'median ms':>12}{'quartiles ms':>20}{'search ms':>12}")

    def line(case: str, layers: list[CacheLayer], load: Load, rule: BlockSizes, runs: int) -> None:
        gain = fit(layers, load, BUDGET_BYTES, block_sizes=rule).gain_over_overlay
        low, median, high = timed(lambda: fit(layers, load, BUDGET_BYTES, block_sizes=rule), runs)
        classes = layer_classes(layers)

        def search() -> object:
            options = [options_of(members, load, load.lengths, rule) for members in classes]
            return best_options(options, BUDGET_BYTES)

        alone = timed(search, runs)[1]
        shown = "-" if gain is None else f"{100 * float(gain):.2f}"
        print(f"{case:<44}{shown:>8}{median:>12.2f}{f'{low:.2f} to {high:.2f}':>20}{alone:>12.2f}")

    for preset in PRESETS:
        layers = list(load_layers(preset))
        for rule in BLOCK_SIZES:
            load = Load.of(1_048_576, max_in_flight_tokens=8192)
            line(f"{preset}, {rule}", layers, load, rule, runs)
    load = Load.of(131_072, max_in_flight_tokens=8192)
    for layers_a_class in (100, 400, 1600):
        case = f"4 classes of {layers_a_class:,} layers"
        line(case, stack(4, layers_a_class), load, "keep", max(2, runs // 5))
    for num_classes in (10, 40, 160):
        case = f"{num_classes} classes of 10 layers"
        line(case, stack(num_classes, 10), load, "keep", max(2, runs // 5))
    return 0


if __name__ == "__main__":
    sys.exit(main())
