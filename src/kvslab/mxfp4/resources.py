"""What the Triton kernels compile to, found without a GPU: registers, spills, shared memory.

Each kernel is compiled ahead of time for each architecture with the hints that a launch
would give (pointers and strides of a slab divisible by 16), then its PTX goes through the
assembler of the Triton wheel, whose report is read.  It must run in a process in which
Triton's interpreter is off.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvslab.mxfp4 import triton_kernels, triton_logits
from kvslab.mxfp4.contract import Rule
from kvslab.mxfp4.triton_backend import LAUNCH, rule_constants

CAPABILITIES = (80, 90, 100, 120)
"""Architectures: A100, H100 and H200, B200, consumer and workstation Blackwell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One kernel with its compile-time constants.

    Attributes:
        kernel: Its name.
        variant: What tells it from the kernel's other variants.
        signature: Type of each argument, as Triton writes it.
        constants: Value of each compile-time constant.
        least_capability: The first architecture that has its instructions.
    """

    kernel: str
    variant: str
    signature: dict[str, str]
    constants: dict[str, Any]
    least_capability: int = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one kernel needs on one architecture; sizes in bytes, registers per thread.

    `flushed_instructions` counts those that would flush subnormal numbers to zero.
    """

    kernel: str
    variant: str
    capability: int
    triton: str
    num_warps: int
    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    shared_bytes: int
    ptx_instructions: int
    flushed_instructions: int

    def as_row(self) -> dict[str, Any]:
        """The fields, in order."""
        return asdict(self)


def _function(kernel: str) -> Any:
    """A kernel by its name."""
    module = triton_logits if kernel.startswith("logits") else triton_kernels
    return getattr(module, kernel)


def _signature(kernel: str, pointers: dict[str, str], constants: dict[str, Any]) -> dict[str, str]:
    """Pointers as given, constants as such, counts as i32 and everything else as i64."""
    small = ("count", "longest", "heads", "columns", "num_blocks", "rows_per_page")
    types = {}
    for name in _function(kernel).arg_names:
        if name in constants:
            types[name] = "constexpr"
        elif name in pointers:
            types[name] = pointers[name]
        else:
            types[name] = "i32" if name in small else "i64"
    return types


def variants(capability: int) -> Iterator[Variant]:
    """Every kernel that an architecture can run, in the form the backend launches."""
    hardware = capability >= 100
    for dtype in ("bf16", "fp32"):
        for paged in (False, True):
            constants = {
                **rule_constants(Rule.VLLM, hardware=hardware),
                "PAGED": paged,
                "BLOCK": LAUNCH["encode"].tile,
                "element_stride": 1,
            }
            pointers = {
                "x": f"*{dtype}",
                "values": "*u8",
                "scales": "*u8",
                "slots": "*i64" if paged else "*u8",
            }
            yield Variant(
                kernel="encode",
                variant=f"{'insert' if paged else 'quantize'} {dtype}",
                signature=_signature("encode", pointers, constants),
                constants=constants,
            )
            constants = {"PAGED": paged, "BLOCK": LAUNCH["decode"].tile}
            tables = "*i64" if paged else "*u8"
            pointers = {"values": "*u8", "scales": "*u8", "out": f"*{dtype}"}
            pointers |= {"block_table": tables, "lengths": tables}
            yield Variant(
                kernel="decode",
                variant=f"{'gather' if paged else 'dequantize'} {dtype}",
                signature=_signature("decode", pointers, constants),
                constants=constants,
            )
    for kernel, query, least in (
        ("logits_expand", "bf16", 80),
        ("logits_scaled", "bf16", 80),
        ("logits_e4m3", "fp8e4nv", 90),
        ("logits_fp8", "fp8e4nv", 90),
    ):
        if capability < least:
            continue
        launch = LAUNCH[kernel]
        constants = {"HEADS": 64, "KEYS": launch.tile, "TILES": launch.repeats}
        if kernel == "logits_expand":
            constants["WIDE"] = False
        pointers = {"q": f"*{query}", "weights": "*fp32", "slab": "*u8", "out": "*fp32"}
        pointers |= {"block_table": "*i64", "lengths": "*i64"}
        yield Variant(
            kernel=kernel,
            variant="64 heads",
            signature=_signature(kernel, pointers, constants),
            constants=constants,
            least_capability=least,
        )


def _attributes(variant: Variant) -> dict[tuple[int, ...], list[list[Any]]]:
    """Divisibility by 16 of every pointer and stride, as a launch on a slab finds it."""
    names = list(variant.signature)
    return {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if variant.signature[name].startswith("*") or name.endswith("stride")
        if variant.signature[name] != "constexpr"
    }


def _assembler(capability: int) -> Path:
    """The assembler of the Triton wheel that knows an architecture."""
    directory = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    newer = directory / "ptxas-blackwell"
    return newer if capability >= 90 and newer.exists() else directory / "ptxas"


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def measure(variant: Variant, capability: int) -> Resources:
    """Compile one variant for one architecture.

    Raises:
        RuntimeError: The interpreter is on, or the assembler refuses the code.
    """
    if os.environ.get("TRITON_INTERPRET", "0") == "1":
        raise RuntimeError("kernels cannot be compiled while TRITON_INTERPRET=1")
    launch = LAUNCH[variant.kernel]
    source = ASTSource(
        _function(variant.kernel),
        variant.signature,
        {(list(variant.signature).index(name),): value for name, value in variant.constants.items()},
        _attributes(variant),
    )
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": launch.num_warps, "num_stages": launch.num_stages},
    )
    ptx = compiled.asm["ptx"]
    match = re.search(r"\.target\s+(sm_\w+)", ptx)
    if match is None:
        raise RuntimeError("no .target in the PTX")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kernel.ptx"
        path.write_text(ptx, encoding="utf-8")
        command = [str(_assembler(capability)), "-v", f"--gpu-name={match[1]}", str(path)]
        done = subprocess.run(
            [*command, "-o", str(path.with_suffix(".cubin"))], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise RuntimeError(f"{variant.kernel} for sm_{capability}: {done.stderr.strip()}")
    instructions = [line for line in ptx.splitlines() if re.match(r"\s+(@!?%p\d+\s+)?[a-z][\w.]*\s.*;", line)]
    report = done.stderr + done.stdout
    return Resources(
        kernel=variant.kernel,
        variant=variant.variant,
        capability=capability,
        triton=triton.__version__,
        num_warps=launch.num_warps,
        registers=_number(r"Used (\d+) registers", report),
        spill_store_bytes=_number(r"(\d+) bytes spill stores", report),
        spill_load_bytes=_number(r"(\d+) bytes spill loads", report),
        stack_bytes=_number(r"(\d+) bytes stack frame", report),
        shared_bytes=int(compiled.metadata.shared),
        ptx_instructions=len(instructions),
        flushed_instructions=sum(".ftz" in line for line in instructions),
    )
