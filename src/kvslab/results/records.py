"""Records of a benchmark: what they were measured on, and files that are whole and have a checksum.

A device has a file of its own where devices differ, so the records of two devices lie
side by side::

    results/mxfp4_gpu/nvidia-h200-sm-90.csv
    results/mxfp4_gpu/nvidia-gb200-sm-100.csv

`results/measured.sha256` holds a checksum for each file, in the form of `sha256sum`.
"""

import csv
import datetime
import hashlib
import importlib.metadata
import io
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from kvslab.errors import InputError
from kvslab.files import write_atomically
from kvslab.results.measured import KEPT_TABLES, KeptTable

SUMS = "measured.sha256"


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


def _said(*command: str) -> str:
    """The first line that a program prints; nothing where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.partition("\n")[0].strip()


def commit() -> str:
    """The commit of the repository that holds this package, with a plus where tracked files differ from it.

    Files of `results/` do not count: a run that writes records must not spoil the stamp of
    the next.  Empty where the package is installed outside a repository.
    """
    here = str(Path(__file__).parent)
    if _said("git", "-C", here, "ls-files", "--error-unmatch", Path(__file__).name) == "":
        return ""
    name = _said("git", "-C", here, "rev-parse", "--short=12", "HEAD")
    code = (":(top)", ":(top,exclude)results")
    changed = _said("git", "-C", here, "status", "--porcelain", "--untracked-files=no", "--", *code)
    return name + ("+" if name and changed else "")


def machine(packages: Iterable[str], *, gpu: str = "") -> dict[str, str]:
    """What a number was measured on: device, GPU driver, versions, commit, day.

    Args:
        packages: Names of distributions whose versions matter.
        gpu: The GPU as its runtime names it; without one the device is the CPU.
    """
    versions = [f"{name} {version(name)}" for name in packages if version(name)]
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        "device": gpu or f"{processor()}, {len(os.sched_getaffinity(0))} cores",
        "driver": _said(*query) if gpu else "",
        "software": "; ".join([f"Python {platform.python_version()}", *versions]),
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def device_slug(device: str) -> str:
    """A device's name as a file name.

    >>> device_slug("NVIDIA H200, sm_90")
    'nvidia-h200-sm-90'
    """
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") or "device"


def quantiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """The 10 %, 50 % and 90 % points of some samples.

    >>> quantiles([3.0, 1.0, 2.0])
    (1.0, 2.0, 3.0)
    """
    ordered = sorted(samples)
    last = len(ordered) - 1
    return ordered[round(last * 0.1)], statistics.median(ordered), ordered[round(last * 0.9)]


def table_named(name: str) -> KeptTable:
    """Look up a table that is kept.

    Raises:
        InputError: There is none of that name.
    """
    for table in KEPT_TABLES:
        if table.name == name:
            return table
    raise InputError("table", name, f"one of {', '.join(table.name for table in KEPT_TABLES)}")


def write_record(directory: Path, name: str, rows: Sequence[Mapping[str, object]]) -> Path:
    """Write a benchmark's rows as a file of `results/`, and its checksum.

    Args:
        directory: The directory of the results.
        name: The table, one of `KEPT_TABLES`; its schema gives the columns and their order.
        rows: The rows; a column that a row lacks stays empty.

    Returns:
        The file; `<name>/<device>.csv` where devices have files of their own.

    Raises:
        InputError: There is no row, a row has a column that the schema lacks, or a file
            cannot be written.
    """
    table = table_named(name)
    fields = [column for column, _ in table.fields]
    if not rows:
        raise InputError(name, "no rows", "at least one")
    for row in rows:
        unknown = [column for column in row if column not in fields]
        if unknown:
            raise InputError(f"{name}.{unknown[0]}", row[unknown[0]], f"one of {', '.join(fields)}")
    text = io.StringIO()
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path = directory / f"{name}.csv"
    if table.per_device:
        path = directory / name / f"{device_slug(str(rows[0]['device']))}.csv"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(str(path.parent), error.strerror or "an error", "a directory to write to") from None
    write_atomically(path, text.getvalue())
    seal(directory, path)
    return path


def sha256_of_bytes(data: bytes) -> str:
    """The SHA-256 of some bytes, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def seal(directory: Path, path: Path) -> None:
    """Note the checksum of a file of `results/` as it is now."""
    sums = read_sums(directory) | {path.relative_to(directory).as_posix(): sha256_of_bytes(path.read_bytes())}
    lines = [f"{value}  {name}\n" for name, value in sorted(sums.items())]
    write_atomically(directory / SUMS, "".join(lines))


def read_sums(directory: Path) -> dict[str, str]:
    """File, as a path inside `results/` -> its checksum.

    Raises:
        InputError: A line is not of the form that `sha256sum` writes.
    """
    path = directory / SUMS
    if not path.is_file():
        return {}
    sums = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = re.fullmatch(r"([0-9a-f]{64})  (\S.*)", line)
        if match is None:
            raise InputError(f"{path}:{number}", line, "a SHA-256, two blanks and a file")
        sums[match[2]] = match[1]
    return sums


def broken_records(directory: Path) -> dict[str, str]:
    """What is wrong with the kept files of a directory: file -> fault; empty where all hold.

    Raises:
        InputError: The file of checksums cannot be read.
    """
    sums = read_sums(directory)
    faults = {name: "is missing" for name in sums if not (directory / name).is_file()}
    for table in KEPT_TABLES:
        header = ",".join(column for column, _ in table.fields)
        for path in table.files(directory):
            name, data = path.relative_to(directory).as_posix(), path.read_bytes()
            if name not in sums:
                faults[name] = f"has no checksum in {SUMS}"
            elif sums[name] != sha256_of_bytes(data):
                faults[name] = "is not the file that its benchmark wrote (another checksum)"
            elif data.partition(b"\n")[0].decode("utf-8", "replace") != header:
                faults[name] = f"has other columns than its schema: {header}"
    return faults


def read_record(directory: Path, name: str) -> pd.DataFrame | None:
    """The records of a table, all devices one below the other; None where there is none yet."""
    frames = [pd.read_csv(path) for path in table_named(name).files(directory)]
    return pd.concat(frames, ignore_index=True) if frames else None
