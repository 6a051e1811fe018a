"""Guards the GPU kernels on a machine without a GPU: their bytes, and what they compile to.

Both run in processes of their own: Triton decides when it is imported whether it interprets.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent


def run(arguments: list[str], *, interpret: bool) -> str:
    environment = {**os.environ, "TRITON_INTERPRET": "1" if interpret else "0"}
    environment["PYTHONPATH"] = os.pathsep.join((str(HERE), environment.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_interpreted_kernels_write_the_bytes_of_the_codec() -> None:
    assert "agree with the codec" in run([str(HERE / "triton_interpreted.py")], interpret=True)


PROGRAM = """
import sys
from kvslab.mxfp4 import resources
for capability in map(int, sys.argv[1:]):
    for variant in resources.variants(capability):
        found = resources.measure(variant, capability)
        spilled = found.spill_store_bytes + found.spill_load_bytes
        assert found.registers > 0, found
        assert spilled == 0, found
        assert found.shared_bytes <= 100 * 1024, found
        assert found.flushed_instructions == 0, found
        print(capability, found.kernel, found.variant)
"""


def test_every_kernel_compiles_for_every_architecture_without_spills() -> None:
    """Also: no instruction flushes subnormal numbers, on which decoding relies."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        halves = pool.map(
            lambda caps: run(["-c", PROGRAM, *caps], interpret=False), (("80", "120"), ("90", "100"))
        )
        lines = [line for half in halves for line in half.splitlines()]
    assert sum(line.startswith("80 ") for line in lines) == 10
    assert len(lines) == 10 + 3 * 12
    assert {line.split()[1] for line in lines} == {
        "encode", "decode", "logits_expand", "logits_scaled", "logits_e4m3", "logits_fp8",
    }  # fmt: skip
