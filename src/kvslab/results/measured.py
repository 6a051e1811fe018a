"""The tables that are kept as they were made: measurements, and what needs a file of somebody else's.

They cannot be computed here, so each file has a checksum, and `kvslab results verify`
says when a file is not the one that its benchmark wrote.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvslab.results.registry import KERNEL_SOURCES

MOONCAKE_URL = "https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release/traces"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTable:
    """A table that needs a file which the package does not have: described here, never called stale.

    Args:
        name: File name without `.csv`.
        title: One line.
        fields: `(column, type)`.
        sources: `(title, url)` of what it rests on.
        regenerate: The command that computes it again.
        columns: Descriptions that differ from `COLUMNS` here.
        per_device: Whether every device has a file of its own, `<name>/<device>.csv`.
    """

    name: str
    title: str
    fields: tuple[tuple[str, str], ...]
    sources: tuple[tuple[str, str], ...]
    regenerate: str
    columns: Mapping[str, str] = field(default_factory=dict)
    per_device: bool = False

    def files(self, directory: Path) -> tuple[Path, ...]:
        """Its files in a directory of results, one for each device where devices differ."""
        if self.per_device:
            return tuple(sorted(path for path in (directory / self.name).glob("*.csv") if path.is_file()))
        path = directory / f"{self.name}.csv"
        return (path,) if path.is_file() else ()


_TRACE_TABLES: tuple[KeptTable, ...] = (
    KeptTable(
        name="trace_simulation",
        title="One hour of a production chat service, or its first requests, played against several planners",
        fields=(
            *((name, "string") for name in ("model", "backend", "indexer")),
            *((name, "integer") for name in ("budget_bytes", "max_in_flight_tokens")),
            ("arrivals", "string"),
            ("num_requests", "integer"),
            *((name, "string") for name in ("trace_sha256", "slab")),
            ("num_groups", "integer"),
            *((name, "number") for name in ("requests_steady", "mean_running")),
            *((name, "integer") for name in ("peak_running", "num_steps")),
            ("steps_change_percent", "number"),
            ("crowded_steps", "integer"),
            ("mean_wait_steps", "number"),
            *((name, "integer") for name in ("num_finished", "num_shortfalls")),
            ("source", "string"),
        ),
        sources=(("Mooncake traces, FAST'25 release", MOONCAKE_URL),),
        regenerate="kvslab simulate MODEL --backend BACKEND --indexer INDEXER --budget BUDGET_BYTES"
        " --trace conversation_trace.jsonl --limit NUM_REQUESTS --slab SLAB [--slab SLAB ...]"
        " --append results/trace_simulation.csv, once for each setup of the table",
    ),
)

_MEASURED = tuple((name, "string") for name in ("device", "driver", "software", "commit", "date"))
RECORD_TABLES: tuple[KeptTable, ...] = (
    KeptTable(
        name="mxfp4_cpu",
        title="MXFP4 on a CPU beside a copy and other packages",
        fields=(
            *((name, "string") for name in ("operation", "dtype")),
            *((name, "number") for name in ("threads", "rows")),
            *((name, "string") for name in ("contender", "status")),
            *((name, "number") for name in ("bytes_equal", "gb_s", "gb_s_p10", "gb_s_p90")),
            *((name, "number") for name in ("ours_over", "ours_over_p10", "ours_over_p90", "rounds")),
            *_MEASURED,
            ("note", "string"),
        ),
        sources=KERNEL_SOURCES,
        regenerate="python benchmarks/mxfp4_cpu.py",
        columns={"rows": "Rows of 128 elements."},
        per_device=True,
    ),
    KeptTable(
        name="mxfp4_gpu",
        title="MXFP4 on a GPU beside a copy, FP8 rows and other packages",
        fields=(
            *((name, "string") for name in ("operation", "contender", "layout")),
            *((name, "integer") for name in ("rows", "queries")),
            ("status", "string"),
            *((name, "number") for name in ("us", "us_p10", "us_p90")),
            ("moved_bytes", "integer"),
            *((name, "number") for name in ("gb_s", "of_copy", "ps_per_row")),
            ("launch", "string"),
            *_MEASURED,
        ),
        sources=KERNEL_SOURCES,
        regenerate="sbatch benchmarks/gpu_node.sbatch, or python benchmarks/mxfp4_gpu.py",
        per_device=True,
    ),
    KeptTable(
        name="indexer_recall",
        title="Recall and lost score mass of an indexer that ranks with quantized keys",
        fields=(
            ("keys", "string"),
            ("num_keys", "integer"),
            ("format", "string"),
            ("rotated", "boolean"),
            ("rule", "string"),
            ("k", "integer"),
            *((name, "number") for name in ("recall", "recall_95", "lost_mass", "lost_mass_95")),
            *((name, "integer") for name in ("seeds", "queries")),
            *_MEASURED,
            *((name, "number") for name in ("needle_recall", "needle_recall_exact")),
        ),
        sources=KERNEL_SOURCES,
        regenerate="python benchmarks/indexer_recall.py",
    ),
    KeptTable(
        name="fuzz_inputs",
        title="What hostile files meet: accepted, refused with one clear line, anything else",
        fields=(
            ("reader", "string"),
            *((name, "integer") for name in ("inputs", "seed", "accepted", "refused")),
            *((name, "integer") for name in ("input_errors", "other_plan_errors", "unclear")),
            ("slowest_ms", "number"),
            *_MEASURED,
        ),
        sources=(("kvslab, seeded generators of hostile inputs", "tests/fuzzing.py"),),
        regenerate="python benchmarks/fuzz_inputs.py",
    ),
    KeptTable(
        name="kernel_resources",
        title="What the Triton kernels take, compiled ahead of time",
        fields=(
            *((name, "string") for name in ("kernel", "variant")),
            ("capability", "integer"),
            ("triton", "string"),
            *(
                (name, "integer")
                for name in ("num_warps", "registers", "spill_store_bytes", "spill_load_bytes")
            ),
            *((name, "integer") for name in ("stack_bytes", "shared_bytes", "ptx_instructions")),
            *((name, "integer") for name in ("flushed_instructions", "tile", "repeats")),
            ("commit", "string"),
            ("date", "string"),
        ),
        sources=KERNEL_SOURCES,
        regenerate="python benchmarks/kernel_resources.py",
    ),
)

KEPT_TABLES: tuple[KeptTable, ...] = _TRACE_TABLES + RECORD_TABLES
"""Every table of `results/` that the library does not compute."""
