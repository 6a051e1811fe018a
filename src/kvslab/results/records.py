"""Records of a benchmark: the machine they come from, and rows written all at once."""

import csv
import datetime
import importlib.metadata
import io
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kvslab.files import write_atomically


def processor() -> str:
    """The CPU as the system names it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def version(package: str) -> str:
    """The installed version of a package, or nothing.

    >>> version("no such package")
    ''
    """
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def machine(packages: Iterable[str]) -> dict[str, str]:
    """What a number was measured on: processor, cores, versions, date."""
    versions = [f"{name} {version(name)}" for name in packages if version(name)]
    return {
        "device": f"{processor()}, {len(os.sched_getaffinity(0))} cores",
        "software": "; ".join([f"Python {platform.python_version()}", *versions]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def quantiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """The 10 %, 50 % and 90 % points of some samples.

    >>> quantiles([3.0, 1.0, 2.0])
    (1.0, 2.0, 3.0)
    """
    ordered = sorted(samples)
    last = len(ordered) - 1
    return ordered[round(last * 0.1)], statistics.median(ordered), ordered[round(last * 0.9)]


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows under one header; a field that a row lacks stays empty.

    Raises:
        InputError: The file cannot be written.
    """
    fields = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.getvalue())
