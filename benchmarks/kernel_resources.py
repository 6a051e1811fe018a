"""What does each GPU kernel need: registers, spills, shared memory, instructions?

Compiles every Triton kernel ahead of time for sm_80, sm_90, sm_100 and sm_120 and reads the
assembler's report; no GPU is needed.  Writes `results/kernel_resources.csv`, one row for a
kernel, its variant and an architecture: `kernel`, `variant`, `capability`, `triton`,
`num_warps`, `registers` (a thread), `spill_store_bytes`, `spill_load_bytes`, `stack_bytes`,
`shared_bytes` (a program), `ptx_instructions`, `flushed_instructions` (those that would
flush subnormal numbers), `tile` and `repeats` (see `triton_backend.LAUNCH`), `commit`, `date`.
"""

import argparse
import datetime
from pathlib import Path

from kvslab.mxfp4 import resources
from kvslab.mxfp4.triton_backend import LAUNCH
from kvslab.results.records import commit, write_record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"), help="directory of the records")
    parser.add_argument("--capability", type=int, nargs="*", default=list(resources.CAPABILITIES))
    parser.add_argument("--rehearse", action="store_true", help="compile and print, write nothing")
    options = parser.parse_args()
    rows = []
    for capability in options.capability:
        for variant in resources.variants(capability):
            found = resources.measure(variant, capability)
            launch = LAUNCH[variant.kernel]
            rows.append(
                found.as_row()
                | {
                    "tile": launch.tile,
                    "repeats": launch.repeats,
                    "commit": commit(),
                    "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
                }
            )
            print(
                f"sm_{capability:<4} {found.kernel:14} {found.variant:16} {found.registers:4} registers"
                f" {found.spill_store_bytes + found.spill_load_bytes:4} spill bytes"
                f" {found.shared_bytes:7,} shared bytes {found.ptx_instructions:6,} instructions"
            )
    if not options.rehearse:
        print(write_record(options.results, "kernel_resources", rows))


if __name__ == "__main__":
    main()
