"""How long does it take from a parsed config.json to a plan?

Prints the median and quartiles over many runs in one process, for each generation.
Run: python benchmarks/planner_speed.py [--runs N]
"""

import argparse
import platform
import statistics
import sys
import time

from kvslab.generations import GENERATIONS
from kvslab.models import PRESETS, layers_from_config, preset_config
from kvslab.plan import Plan

BUDGET_BYTES = 28_410_134_921


def main() -> int:
    """Measure and print one line per preset and generation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    runs = parser.parse_args().runs
    if runs < 2:
        print(f"planner_speed: runs: got {runs}, need at least 2", file=sys.stderr)
        return 2
    print(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {runs} runs each"
    )
    print(f"{'model':<20}{'slab':<10}{'blocks':>8}{'median ms':>12}{'quartiles ms':>18}")
    for preset in PRESETS:
        config = preset_config(preset)
        for name, generation in GENERATIONS.items():
            times = []
            for _ in range(runs + 3):
                start = time.perf_counter()
                plan = Plan(slab=generation.lay_out(layers_from_config(config)), budget_bytes=BUDGET_BYTES)
                num_blocks = plan.num_blocks
                times.append(1e3 * (time.perf_counter() - start))
            low, median, high = statistics.quantiles(times[3:], n=4)
            print(f"{preset:<20}{name:<10}{num_blocks:>8,}{median:>12.3f}{f'{low:.3f} to {high:.3f}':>18}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
