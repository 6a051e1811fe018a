"""A sweep: `fit` over a grid of models, backends, rows, budgets, lengths and tokens in flight.

A grid file is YAML; every key but `models` and `budgets` has a default::

    models: [deepseek-v4-pro, deepseek-v4-flash]
    backends: [flashinfer, flashmla]
    indexers: [mxfp4]
    budgets: [26.46GiB, 80GB]
    lengths: [8192, 131072, 1048576]
    max_in_flight_tokens: [1, 8192]
    block_sizes: [kernel-legal]

Points run by joblib, so the backend is chosen by name: `loky` for this machine's
processes, `dask` or `ray` for a cluster.  Results are written batch by batch, whole or
not at all; a sweep that is started again computes only the points that are missing.
"""

import importlib
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pandas as pd

from kvslab.capacity import Load
from kvslab.errors import InputError, PlanError
from kvslab.files import Fields, is_there, read_text, write_atomically
from kvslab.fit import BLOCK_SIZES, BlockSizes, fit
from kvslab.formats import BACKENDS, INDEXER_FORMATS
from kvslab.intmath import checked_int, parse_bytes
from kvslab.models import DEFAULT_INDEXER, heeded_options, is_layer_file, load_layers, read_model
from kvslab.tables.fitting import fit_columns

RUNNERS = ("loky", "threading", "sequential", "dask", "ray")
MOST_POINTS = 1_000_000
POINTS_A_BATCH = 64
_CLUSTER_PACKAGES = {"dask": (("distributed", "dask[distributed]"),), "ray": (("ray", "ray"),)}

KEY = (
    "model",
    "backend",
    "indexer",
    "budget_bytes",
    "max_model_len_tokens",
    "max_in_flight_tokens",
    "block_sizes",
)
NUMBERS = (
    "overlay_stride_bytes",
    "overlay_groups",
    "overlay_requests",
    "fitted_stride_bytes",
    "fitted_groups",
    "fitted_splits",
    "fitted_requests",
    "gain_percent",
    "zero_waste_requests",
    "below_zero_waste_percent",
    "whole_page_requests",
    "below_whole_page_percent",
    "overlay_table_entries",
    "fitted_table_entries",
    "overlay_blocks_per_1000_tokens",
    "fitted_blocks_per_1000_tokens",
)
_TYPES = {
    "fitted_splits": "string",
    **dict.fromkeys(
        ("overlay_stride_bytes", "overlay_groups", "fitted_stride_bytes", "fitted_groups"), "Int64"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a grid; its fields are the columns of `KEY`.

    `backend` and `indexer` are empty for models that take none.
    """

    model: str
    backend: str
    indexer: str
    budget_bytes: int
    max_model_len_tokens: int
    max_in_flight_tokens: int
    block_sizes: str

    @property
    def key(self) -> tuple[str | int, ...]:
        """What tells it from the other points."""
        return tuple(getattr(self, name) for name in KEY)


def read_grid(path: Path) -> tuple[Point, ...]:
    """Read a grid file.

    Raises:
        InputError: The file cannot be read, is no YAML, or a value is wrong.
        PlanError: PyYAML is missing.
    """
    yaml = _needed("yaml", "PyYAML")
    text = read_text(path, "YAML file")
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(str(path), " ".join(str(error).split()), "a YAML mapping") from None
    except (LookupError, AttributeError, TypeError):  # how PyYAML meets a tag whose text does not suit it
        raise InputError(str(path), "a value that its tag does not suit", "a YAML mapping") from None
    return grid_points(value, str(path))


def _needed(module: str, package: str) -> Any:
    """An optional package, imported when it is used."""
    try:
        return importlib.import_module(module)
    except ImportError:
        how = "ray" if package == "ray" else "'kvslab[sweep]'"
        raise PlanError(f"this sweep needs {package}: pip install {how}") from None


def grid_points(value: object, where: str = "grid") -> tuple[Point, ...]:
    """The points of a parsed grid, the last key varying fastest.

    Args:
        value: The parsed YAML.
        where: How errors call it.

    Raises:
        InputError: A key is missing, unknown, or holds a wrong value.

    >>> grid = {"models": ["deepseek-v4-pro"], "budgets": ["26GiB"], "lengths": [8192, 65536]}
    >>> [point.max_model_len_tokens for point in grid_points(grid)]
    [8192, 65536]
    """
    fields = Fields(value, where)
    known = ("models", "backends", "indexers", "budgets", "lengths", "max_in_flight_tokens", "block_sizes")
    fields.refuse_unknown(known)
    models = _texts(fields, "models", ())
    axes: tuple[Sequence[Any], ...] = (
        _texts(fields, "backends", tuple(BACKENDS), default=["flashinfer"]),
        _texts(fields, "indexers", INDEXER_FORMATS, default=[DEFAULT_INDEXER]),
        [
            parse_bytes(cast(str | int, entry), fields.path(f"budgets[{i}]"))
            for i, entry in enumerate(_entries(fields, "budgets"))
        ],
        _integers(fields, "lengths", [8192, 131_072, 1_048_576]),
        _integers(fields, "max_in_flight_tokens", [1]),
        _texts(fields, "block_sizes", BLOCK_SIZES, default=["kernel-legal"]),
    )
    num_points = len(models)
    for axis in axes:
        num_points *= len(axis)
    if num_points > MOST_POINTS:
        raise InputError(where, f"{num_points:,} points", f"at most {MOST_POINTS:,}")
    points: dict[tuple[str | int, ...], Point] = {}
    for i, model in enumerate(models):
        heeded = _heeded(model, fields.path(f"models[{i}]"))
        backends, indexers, *others = axes
        own = (backends if "backend" in heeded else [""], indexers if "indexer" in heeded else [""], *others)
        for values in itertools.product([model], *own):
            point = Point(**dict(zip(KEY, values, strict=True)))
            points[point.key] = point
    return tuple(points.values())


def _heeded(model: str, where: str) -> frozenset[str]:
    """The options that a model of a grid takes."""
    try:
        value = read_model(model)
        if is_layer_file(value):
            raise InputError("model", model, "a preset or a config.json, not a layer file")
        return heeded_options(value)
    except InputError as error:
        raise error.within(where) from None


def _entries(fields: Fields, name: str, default: list[object] | None = None) -> list[object]:
    entries = fields.sequence(name) if default is None or name in fields else default
    if not entries:
        raise InputError(fields.path(name), entries, "at least one entry")
    return entries


def _texts(
    fields: Fields, name: str, choices: Sequence[str], default: list[object] | None = None
) -> list[str]:
    texts = []
    for i, entry in enumerate(_entries(fields, name, default)):
        if not isinstance(entry, str) or not entry or (choices and entry not in choices):
            need = f"one of {', '.join(choices)}" if choices else "a preset or a config.json"
            raise InputError(fields.path(f"{name}[{i}]"), entry, need)
        texts.append(entry)
    return texts


def _integers(fields: Fields, name: str, default: list[object]) -> list[int]:
    entries = _entries(fields, name, default)
    return [checked_int(fields.path(f"{name}[{i}]"), entry) for i, entry in enumerate(entries)]


def compute(point: Point) -> dict[str, Any]:
    """One row: what `fit` finds at a point, or why there is no plan."""
    row: dict[str, Any] = {name: getattr(point, name) for name in KEY}
    try:
        layers = load_layers(point.model, backend=point.backend or None, indexer=point.indexer or None)
        load = Load.of(point.max_model_len_tokens, max_in_flight_tokens=point.max_in_flight_tokens)
        fitted = fit(layers, load, point.budget_bytes, block_sizes=cast(BlockSizes, point.block_sizes))
    except PlanError as error:
        return row | dict.fromkeys(NUMBERS) | {"refused": str(error)}
    return row | fit_columns(fitted) | {"refused": ""}


def check_runner(runner: str, num_jobs: int = -1, address: str | None = None) -> None:
    """Refuse a way to run a sweep that cannot work here.

    Raises:
        InputError: The runner is unknown, the jobs are neither -1 nor positive, or the
            runner takes no address.
        PlanError: A package that the runner needs is missing.
    """
    if runner not in RUNNERS:
        raise InputError("runner", runner, f"one of {', '.join(RUNNERS)}")
    if num_jobs != -1:
        checked_int("jobs", num_jobs)
    if address is not None and runner not in ("dask", "ray"):
        raise InputError("address", address, f"no such option for runner {runner}")
    for module, package in (("pyarrow", "pyarrow"), ("joblib", "joblib"), *_CLUSTER_PACKAGES.get(runner, ())):
        _needed(module, package)


@contextmanager
def _runner(name: str, num_jobs: int, address: str | None) -> Iterator[None]:
    """Make joblib's backend of this name the current one; connects to a cluster where it needs one."""
    joblib = _needed("joblib", "joblib")
    with _cluster(name, num_jobs, address), joblib.parallel_config(backend=name, n_jobs=num_jobs):
        yield


@contextmanager
def _cluster(name: str, num_jobs: int, address: str | None) -> Iterator[None]:
    match name:
        case "dask":
            distributed = _needed("distributed", "dask[distributed]")
            if address is None:
                try:
                    current = distributed.get_client()
                except ValueError:
                    current = None
                if current is not None:  # a caller's own client
                    yield
                    return
            try:
                client = (
                    distributed.Client(address, timeout=10)
                    if address is not None
                    else distributed.Client(
                        n_workers=num_jobs if num_jobs > 0 else None,
                        threads_per_worker=1,
                        dashboard_address=None,
                    )
                )
            except (OSError, ValueError) as error:
                raise InputError("address", address, f"a Dask scheduler that answers ({error})") from None
            with client:
                yield
        case "ray":
            _needed("ray.util.joblib", "ray").register_ray()
            yield
        case _:
            yield


def run_sweep(
    points: Sequence[Point],
    output: Path,
    *,
    runner: str = "loky",
    num_jobs: int = -1,
    address: str | None = None,
    on_progress: Callable[[int], None] = lambda num_done: None,
) -> pd.DataFrame:
    """Compute the points that a Parquet file lacks, and write it anew after each batch.

    Args:
        points: The grid.
        output: The Parquet file; rows of other points in it are kept.
        runner: joblib's backend, one of `RUNNERS`.
        num_jobs: Processes on this machine; -1 for all.
        address: Where a cluster's scheduler listens.
        on_progress: Called with the points that are done.

    Returns:
        The rows of these points, in their order; the file holds the same first.

    Raises:
        InputError: The runner is unknown, or the file is none of a sweep.
        PlanError: A package that the runner needs is missing.
    """
    if not points:
        raise InputError("points", len(points), "at least one")
    check_runner(runner, num_jobs, address)
    rows = _read(output)
    missing = [point for point in points if point.key not in rows]
    on_progress(len(points) - len(missing))
    if missing:
        with _runner(runner, num_jobs, address):
            joblib = _needed("joblib", "joblib")
            for start in range(0, len(missing), POINTS_A_BATCH):
                batch = missing[start : start + POINTS_A_BATCH]
                for point, row in zip(
                    batch, joblib.Parallel()(joblib.delayed(compute)(point) for point in batch), strict=True
                ):
                    rows[point.key] = row
                _write(points, rows, output)
                on_progress(len(points) - len(missing) + start + len(batch))
    else:
        _write(points, rows, output)
    return _frame([rows[point.key] for point in points])


def _frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=[*KEY, *NUMBERS, "refused"])
    kinds = {name: _TYPES.get(name, "Float64") for name in NUMBERS}
    return frame.astype(kinds | {"refused": "string"})


def _write(points: Sequence[Point], rows: dict[tuple[Any, ...], dict[str, Any]], output: Path) -> None:
    ours = [point.key for point in points if point.key in rows]
    mine = set(ours)
    frame = _frame([rows[key] for key in (*ours, *(key for key in rows if key not in mine))])
    stream = io.BytesIO()
    frame.to_parquet(stream, index=False)
    write_atomically(output, stream.getvalue())


def _read(output: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    if not is_there(output):
        return {}
    try:
        frame = pd.read_parquet(output)
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        reason = " ".join(str(error).split())
        raise InputError(str(output), reason, "a Parquet file of a sweep, or no file yet") from None
    if list(frame.columns) != [*KEY, *NUMBERS, "refused"]:
        raise InputError(str(output), list(frame.columns)[:3], "the columns of a sweep, or no file yet")
    plain = frame.astype(object).where(frame.notna(), None)
    rows = [dict(zip(plain.columns, row, strict=True)) for row in plain.itertuples(index=False, name=None)]
    return {tuple(row[name] for name in KEY): row for row in rows}
