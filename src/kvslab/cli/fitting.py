"""`kvslab fit` and `kvslab simulate`: search a plan for a workload, and play requests against it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kvslab.capacity import Load
from kvslab.cli.common import (
    DEFAULT_IN_FLIGHT,
    AsJson,
    Budget,
    Dcp,
    InFlight,
    MaxModelLen,
    print_json,
    print_table,
    records,
)
from kvslab.cli.serving import (
    Backend,
    BlockSize,
    Draft,
    Indexer,
    KvCacheDtype,
    Model,
    Mtp,
    TensorParallel,
    load,
    options_of,
)
from kvslab.errors import InputError
from kvslab.files import is_there, read_json, write_atomically
from kvslab.fit import (
    BLOCK_SIZES,
    BlockSizes,
    FittedPlan,
    Objective,
    breakdown,
    cost_of,
    fit,
    load_from_json,
    plan_to_json,
    rival_plans,
)
from kvslab.intmath import checked_int, parse_bytes
from kvslab.models import (
    DEFAULT_BACKEND,
    DEFAULT_INDEXER,
    default_max_model_len,
    heeded_options,
    is_layer_file,
    read_model,
)
from kvslab.simulate import poisson_requests
from kvslab.tables.replay import replay_table, trace_requests

if TYPE_CHECKING:
    import pandas as pd

CONSTANT_COLUMNS = (
    "budget_bytes",
    "max_in_flight_tokens",
    "arrivals",
    "num_requests",
    "trace_sha256",
    "num_finished",
    "source",
)

Rule = Annotated[
    str, typer.Option("--block-sizes", help=f"Block sizes that may be chosen: {', '.join(BLOCK_SIZES)}.")
]


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    app.command(name="fit")(fit_command)
    app.command()(simulate)


def _workload(
    model: str, max_model_len: int | None, mix: Path | None, max_in_flight_tokens: int, dcp: int
) -> Load:
    if mix is not None:
        if max_model_len is not None:
            raise InputError(
                "max_model_len", max_model_len, "no such option beside --mix, which lists lengths"
            )
        return load_from_json(
            read_json(mix), max_in_flight_tokens=max_in_flight_tokens, dcp=dcp, where=str(mix)
        )
    tokens = max_model_len if max_model_len is not None else default_max_model_len(read_model(model))
    if tokens is None:
        raise InputError("max_model_len", None, "--max-model-len or --mix for a model that states no length")
    return Load.of(tokens, max_in_flight_tokens=max_in_flight_tokens, dcp=dcp)


def fit_command(
    model: Model,
    budget: Budget,
    backend: Backend = None,
    indexer: Indexer = None,
    mtp: Mtp = None,
    tensor_parallel: TensorParallel = 1,
    kv_cache_dtype: KvCacheDtype = "auto",
    block_size: BlockSize = None,
    draft: Draft = None,
    max_model_len: MaxModelLen = None,
    max_in_flight_tokens: InFlight = DEFAULT_IN_FLIGHT,
    dcp: Dcp = 1,
    mix: Annotated[Path | None, typer.Option(help="A JSON file of request lengths with weights.")] = None,
    objective: Annotated[str, typer.Option(help="What to maximise: requests or tokens.")] = "requests",
    block_sizes: Rule = "kernel-legal",
    max_groups: Annotated[int | None, typer.Option(help="Block tables that a request may have.")] = None,
    export: Annotated[Path | None, typer.Option(help="Write the plan here, for another engine.")] = None,
    as_json: AsJson = False,
) -> None:
    """Search the splits and block sizes that serve a workload best."""
    workload = _workload(model, max_model_len, mix, max_in_flight_tokens, dcp)
    options = options_of(
        backend,
        indexer,
        mtp,
        tensor_parallel=tensor_parallel,
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size,
    )
    fitted = fit(
        load(model, options, draft).layers,
        workload,
        parse_bytes(budget),
        objective=cast(Objective, objective),
        block_sizes=cast(BlockSizes, block_sizes),
        max_groups=max_groups,
    )
    if export is not None:
        write_atomically(export, json.dumps(plan_to_json(fitted.plan), indent=1) + "\n")
    if as_json:
        print_json({"model": model} | _fit_json(fitted))
        return
    _print_fit(model, fitted)
    if export is not None:
        print(f"plan           written to {export}")


def _fit_json(fitted: FittedPlan) -> dict[str, Any]:
    plan, gain, before = fitted.plan, fitted.gain_over_overlay, fitted.overlay_requests
    cost, parts = cost_of(plan.slab.groups, fitted.load), breakdown(plan, fitted.load)
    zero_waste, whole_page = fitted.zero_waste_bound, fitted.whole_page_bound
    return {
        "objective": fitted.objective,
        "block_sizes": fitted.block_sizes,
        "budget_bytes": plan.budget_bytes,
        "lengths": [{"tokens": tokens, "weight": weight} for tokens, weight in fitted.load.lengths],
        "max_in_flight_tokens": fitted.load.max_in_flight_tokens,
        "classes": [
            {
                "first_layer": choice.first_layer,
                "num_layers": choice.num_layers,
                "num_groups": choice.num_groups,
                "block_size": choice.block_size,
                "declared_block_size": choice.declared_block_size,
                "largest_bytes": choice.largest_bytes,
            }
            for choice in fitted.choices
        ],
        "groups": [
            {
                "layers": [layer.name for layer in group.layers],
                "block_size": group.block_size,
                "bytes": group.group_bytes,
            }
            for group in plan.slab.groups
        ],
        "block_stride": plan.slab.block_stride,
        "num_blocks": plan.num_blocks,
        "max_concurrency": {"steady": float(fitted.requests)},
        "max_tokens": int(fitted.tokens),
        "overlay": {
            "block_stride": None if fitted.overlay is None else fitted.overlay.slab.block_stride,
            "max_concurrency": {"steady": None if before is None else float(before)},
        },
        "gain_over_overlay": None if gain is None else float(gain),
        "bound": {"zero_waste": float(zero_waste), "whole_page": float(whole_page)},
        "bytes": {name: round(getattr(parts, name)) for name in parts.__slots__},
        "cost": {
            "num_tables": cost.num_tables,
            "table_entries": float(cost.table_entries),
            "blocks_per_1000_tokens": float(cost.blocks_per_1000_tokens),
        },
    }


def _print_fit(model: str, fitted: FittedPlan) -> None:
    plan, slab = fitted.plan, fitted.plan.slab
    rows = [
        {
            "first_layer": choice.first_layer,
            "num_layers": choice.num_layers,
            "num_groups": choice.num_groups,
            "declared_block_size": choice.declared_block_size,
            "block_size": choice.block_size,
            "largest_group_bytes": choice.largest_bytes,
        }
        for choice in fitted.choices
    ]
    print_table(f"{model}, fitted slab", rows)
    cost = cost_of(slab.groups, fitted.load)
    gain, before = fitted.gain_over_overlay, fitted.overlay_requests
    print(f"block stride   {slab.block_stride:,} bytes")
    print(f"blocks         {plan.num_blocks:,} in {plan.budget_bytes:,} bytes (one is the null block)")
    print(f"requests       {float(fitted.requests):,.3f} (steady)")
    if before is not None:
        print(
            f"overlay        {float(before):,.3f}" + ("" if gain is None else f", {100 * float(gain):+.2f} %")
        )
    for name, bound in (("zero waste", fitted.zero_waste_bound), ("whole pages", fitted.whole_page_bound)):
        below = f", this plan lies {100 * float(1 - fitted.requests / bound):.2f} % below" if bound else ""
        print(f"{name:<15}{float(bound):,.3f}{below}")
    print(
        f"price          {cost.num_tables} block tables, {float(cost.table_entries):,.0f} entries a request,"
        f" {float(cost.blocks_per_1000_tokens):,.1f} blocks handed out a 1,000 tokens"
    )


@contextmanager
def progress_bar(total: int, *, shown: bool) -> Iterator[Callable[[str, int], None]]:
    """A progress bar on stderr; yields what to call with a name and how many are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        tasks: dict[str, Any] = {}

        def report(name: str, num_done: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=num_done)

        yield report


def simulate(
    model: Model,
    budget: Budget,
    backend: Backend = None,
    indexer: Indexer = None,
    mtp: Mtp = None,
    trace: Annotated[
        Path | None, typer.Option(help="Requests in Mooncake's JSONL form, plain or gzipped.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Play the first so many requests of the trace.")] = None,
    step_ms: Annotated[
        int | None,
        typer.Option(help="Milliseconds of one step: requests arrive as recorded. Default: all at once."),
    ] = None,
    num_requests: Annotated[int, typer.Option(help="Without a trace: so many seeded requests.")] = 200,
    seed: Annotated[int, typer.Option(help="Without a trace: the seed.")] = 0,
    slab: Annotated[
        list[str] | None, typer.Option(help="Planner to play; repeat it. Default: all that take the model.")
    ] = None,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens of one step.")] = DEFAULT_IN_FLIGHT,
    block_sizes: Rule = "kernel-legal",
    checkpoint: Annotated[
        Path | None, typer.Option(help="Keep what is done here, and continue from it.")
    ] = None,
    append: Annotated[
        Path | None, typer.Option(help="Add the rows to this CSV, in place of rows of the same setup.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
    as_json: AsJson = False,
) -> None:
    """Play requests block by block against every planner: a trace, or a seeded workload."""
    stack = load(model, options_of(backend, indexer, mtp)).layers
    checked_int("num_requests", num_requests)
    earlier = None if append is None else _read_rows(append)
    if trace is None:
        for name, value in (("limit", limit), ("step_ms", step_ms)):
            if value is not None:
                raise InputError(name, value, "no such option without --trace")
        made = poisson_requests(
            num_requests,
            steps_between=1,
            prompt_tokens=(2_000, 8_000, 32_000, 120_000),
            output_tokens=(50, 300, 1_000),
            seed=seed,
        )
        source = trace_requests(made, name=f"seeded workload {seed}")
    else:
        source = trace_requests(trace, step_ms=step_ms, limit=limit)
    workload = source.load(max_in_flight_tokens=max_num_batched_tokens)
    plans = rival_plans(stack, workload, parse_bytes(budget), block_sizes=cast(BlockSizes, block_sizes))
    unknown = [name for name in slab or () if name not in plans]
    if unknown:
        raise InputError("slab", unknown[0], f"one of {', '.join(plans)}")
    parsed = read_model(model)
    heeded = frozenset[str]() if is_layer_file(parsed) else heeded_options(parsed)
    setup: dict[str, object] = {
        "model": model,
        "backend": (backend or DEFAULT_BACKEND) if "backend" in heeded else "",
        "indexer": (indexer or DEFAULT_INDEXER) if "indexer" in heeded else "",
    }
    with progress_bar(source.num_requests, shown=not quiet and not as_json) as report:
        frame = replay_table(
            source,
            {name: plans[name] for name in slab} if slab else plans,
            workload,
            setup,
            checkpoint=checkpoint,
            on_progress=report,
        )
    rows = records(frame)
    if append is not None:
        _append(append, earlier, frame)
    if as_json:
        print_json({"model": model, "rows": rows})
        return
    names = [name for name in rows[0] if name not in setup and name not in CONSTANT_COLUMNS]
    shown = [{name: row[name] for name in names} for row in rows]
    print_table(f"{model}: {source.num_requests:,} requests, {source.arrivals}", shown)


ROW_KEY = ["model", "backend", "indexer", "budget_bytes", "arrivals", "num_requests", "trace_sha256", "slab"]


def _read_rows(path: Path) -> "pd.DataFrame | None":
    """The rows of an earlier run, None where there is no file; anything else is refused before a run."""
    import pandas as pd

    if not is_there(path):
        return None
    try:
        frame = pd.read_csv(path, keep_default_na=False)
    except (OSError, ValueError):
        frame = pd.DataFrame()
    if not {*ROW_KEY, "num_steps", "source"} <= set(frame.columns):
        raise InputError(str(path), "another table", "a CSV that this command wrote")
    return frame


def _append(path: Path, old: "pd.DataFrame | None", new: "pd.DataFrame") -> None:
    import pandas as pd

    from kvslab.results.records import SUMS, seal

    frame = new if old is None else pd.concat([old, new]).drop_duplicates(ROW_KEY, keep="last")
    write_atomically(path, frame.to_csv(index=False, lineterminator="\n"))
    if is_there(path.parent / SUMS):  # a directory of results, whose kept tables have checksums
        seal(path.parent, path)
