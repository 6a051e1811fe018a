"""`kvslab plan`, `compare`, `layers` and `draw`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kvslab.capacity import FORMULAS, Load, Summary, plan_stages, summarize
from kvslab.cli.common import (
    DEFAULT_IN_FLIGHT,
    AsJson,
    Budget,
    Dcp,
    InFlight,
    MaxModelLen,
    Output,
    Packed,
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
    NoHybrid,
    PipelineParallel,
    Slab,
    TensorParallel,
    load,
    options_of,
    stacks_of,
    with_packing,
)
from kvslab.cli.staging import print_stages, stages_json
from kvslab.errors import BudgetError, PlanError
from kvslab.files import write_atomically
from kvslab.fit import NOTICEABLE, fit
from kvslab.fit.generation import generation_for
from kvslab.generations import GENERATIONS, generation_named
from kvslab.intmath import parse_bytes
from kvslab.layers import CacheLayer, layers_to_json
from kvslab.models import default_max_model_len, read_model
from kvslab.plan import Plan
from kvslab.slab import SlabLayout
from kvslab.tables import compare_table, groups_table, layers_table


def _load_of(model: str, max_model_len: int | None, in_flight: int, dcp: int) -> Load | None:
    """The load of one request length, or None where neither the user nor the model names one."""
    length = max_model_len if max_model_len is not None else default_max_model_len(read_model(model))
    if length is None:
        return None
    return Load.of(length, max_in_flight_tokens=in_flight, dcp=dcp)


def _summary_json(summary: Summary | None, load_: Load | None) -> dict[str, Any]:
    if summary is None or load_ is None:
        names = (
            "max_model_len",
            "blocks_per_request",
            "admission_bytes",
            "max_concurrency",
            "auto_fit_max_model_len",
        )
        return dict.fromkeys(names)
    return {
        "max_model_len": load_.longest,
        "max_in_flight_tokens": load_.max_in_flight_tokens,
        "dcp": load_.dcp,
        "blocks_per_request": list(summary.blocks_per_request),
        "admission_bytes": summary.admission_bytes,
        "max_concurrency": {name: float(value) for name, value in summary.max_concurrency.items()},
        "auto_fit_max_model_len": {"engine": summary.auto_fit_engine, "exact": summary.auto_fit_exact},
    }


def _groups_json(slab: SlabLayout) -> list[dict[str, Any]]:
    return [
        {
            "layers": [layer.name for layer in group.layers],
            "bytes": group.group_bytes,
            "payload_bytes": group.payload_bytes,
            "padding_bytes": slab.group_padding_bytes(group_id),
            "block_size": group.block_size,
        }
        for group_id, group in enumerate(slab.groups)
    ]


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    for command in (plan, compare, layers, draw):
        app.command()(command)


def plan(
    model: Model,
    budget: Budget,
    backend: Backend = None,
    indexer: Indexer = None,
    slab: Slab = "overlay",
    mtp: Mtp = None,
    tensor_parallel: TensorParallel = 1,
    kv_cache_dtype: KvCacheDtype = "auto",
    block_size: BlockSize = None,
    draft: Draft = None,
    no_hybrid: NoHybrid = False,
    pipeline_parallel: PipelineParallel = "1",
    num_blocks_override: Annotated[
        int | None, typer.Option(help="Take this many blocks, whatever the budget.")
    ] = None,
    max_model_len: MaxModelLen = None,
    max_in_flight_tokens: InFlight = DEFAULT_IN_FLIGHT,
    dcp: Dcp = 1,
    packed: Packed = False,
    as_json: AsJson = False,
) -> None:
    """Plan one slab: block stride, groups, the blocks that a budget holds and what they serve."""
    generation = generation_named(slab)
    options = options_of(
        backend, indexer, mtp, tensor_parallel, pipeline_parallel, kv_cache_dtype, block_size, no_hybrid
    )
    stack = load(model, options, draft)
    requests = _load_of(model, max_model_len, max_in_flight_tokens, dcp)
    if options.num_stages > 1:
        budgets = [parse_bytes(part) for part in budget.split(",")]
        staged = plan_stages(
            generation,
            stack.stages(options.pipeline_parallel),
            budgets * options.num_stages if len(budgets) == 1 else budgets,
            packed=packed,
            num_blocks_override=num_blocks_override,
        )
        if as_json:
            print_json(stages_json(model, slab, staged, requests) | {"notes": list(stack.notes)})
        else:
            print_stages(model, slab, staged, requests, stack.notes)
        return
    layout = generation.lay_out(stack.layers, packed=packed)
    planned = Plan(slab=layout, budget_bytes=parse_bytes(budget), num_blocks_override=num_blocks_override)
    summary = summarize(planned, generation, requests) if requests else None
    if as_json:
        notes = {"notes": list(stack.notes)}
        print_json(_plan_json(model, slab, planned) | _summary_json(summary, requests) | notes)
        return
    rows = records(groups_table(layout))
    if summary:
        for row, count in zip(rows, summary.blocks_per_request, strict=True):
            row["blocks_per_request"] = count
    print_table(f"{model}, {slab} slab", rows)
    for note in stack.notes:
        print(f"note           {note}")
    print(f"block stride   {layout.block_stride:,} bytes")
    print(f"blocks         {planned.num_blocks:,} in {planned.budget_bytes:,} bytes (one is the null block)")
    print(f"left over      {planned.remaining_bytes:,} bytes")
    if summary and requests:
        _print_summary(summary, requests)


def _print_summary(summary: Summary, requests: Load) -> None:
    print(f"one request    {requests.longest:,} tokens, {sum(summary.blocks_per_request):,} blocks")
    for price, size in summary.admission_bytes.items():
        print(f"its price      {size:,} bytes ({price})")
    for formula, count in summary.max_concurrency.items():
        print(f"requests       {float(count):,.2f} ({formula})")
    print(f"longest        {summary.auto_fit_engine:,} tokens (engine), {summary.auto_fit_exact:,} (exact)")


def _plan_json(model: str, slab: str, planned: Plan) -> dict[str, Any]:
    layout = planned.slab
    return {
        "model": model,
        "slab": slab,
        "budget_bytes": planned.budget_bytes,
        "block_stride": layout.block_stride,
        "num_blocks": planned.num_blocks,
        "remaining_bytes": planned.remaining_bytes,
        "groups": _groups_json(layout),
        "offsets": layout.offset_of,
        "padding_bytes": layout.padding_bytes,
        "tensors": [
            {
                "layers": list(tensor.layers),
                "group": tensor.group_id,
                "offset": tensor.offset,
                "layer_stride": tensor.layer_stride,
                "block_stride": tensor.block_stride,
                "payload_bytes": tensor.payload_bytes,
            }
            for tensor in planned.tensors
        ],
    }


def _fitted_row(
    label: str, layers: Sequence[CacheLayer], budget_bytes: int, requests: Load
) -> tuple[dict[str, Any], Summary | None]:
    """What a plan searched for this load brings, as a row of the comparison.

    It has no change in blocks: its requests hold other numbers of them.  Overlay's own
    groups stay where a search gains nothing that is noticeable.
    """
    row: dict[str, Any] = {"slab": "fitted", "rows": label, "num_groups": None, "block_stride_bytes": None}
    try:
        planned = fit(layers, requests, budget_bytes, min_gain=NOTICEABLE).plan
    except PlanError as error:
        return row | {"num_blocks": None, "change_percent": None, "refused": str(error)}, None
    row |= {
        "change_percent": None,
        "num_groups": len(planned.slab.groups),
        "block_stride_bytes": planned.slab.block_stride,
        "num_blocks": planned.num_blocks,
        "refused": "",
    }
    return row, summarize(planned, generation_for(requests, budget_bytes), requests)


def compare(
    model: Model,
    budget: Budget,
    backend: Backend = None,
    mtp: Mtp = None,
    tensor_parallel: TensorParallel = 1,
    kv_cache_dtype: KvCacheDtype = "auto",
    block_size: BlockSize = None,
    draft: Draft = None,
    no_hybrid: NoHybrid = False,
    max_model_len: MaxModelLen = None,
    max_in_flight_tokens: InFlight = DEFAULT_IN_FLIGHT,
    dcp: Dcp = 1,
    packed: Packed = False,
    as_json: AsJson = False,
) -> None:
    """Plan every generation side by side, packed and not, with every indexer row format.

    A model whose engine packs by itself has one row a format; any other has one as the
    engine plans it and one packed, unless --packed leaves the packed ones alone.
    """
    budget_bytes = parse_bytes(budget)
    options = options_of(
        backend=backend,
        mtp=mtp,
        tensor_parallel=tensor_parallel,
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size,
        no_hybrid=no_hybrid,
    )
    stacks = stacks_of(model, options, draft)
    packed_labels = {} if packed else with_packing(stacks)
    stacks |= {label: stacks[plain] for label, plain in packed_labels.items()}
    requests = _load_of(model, max_model_len, max_in_flight_tokens, dcp)
    rows = records(
        compare_table(list(stacks.items()), budget_bytes, packed=packed, packed_labels=packed_labels)
    )
    summaries = []
    for row in rows:
        summary = None
        if requests and not row["refused"] and row["num_blocks"]:
            generation = GENERATIONS[row["slab"]]
            layout = generation.lay_out(stacks[row["rows"]], packed=packed or row["rows"] in packed_labels)
            summary = summarize(Plan(slab=layout, budget_bytes=budget_bytes), generation, requests)
        summaries.append(summary)
    if requests:
        for label in (label for label in stacks if label not in packed_labels):
            row, summary = _fitted_row(label, stacks[label], budget_bytes, requests)
            rows.append(row)
            summaries.append(summary)
    stride = min((row["block_stride_bytes"] for row in rows if not row["refused"]), default=None)
    if stride is not None and budget_bytes < stride:
        raise BudgetError(
            f"budget: got {budget_bytes:,} bytes, need one block: {stride:,} in the smallest slab"
        )
    if as_json:
        plans = [
            {"block_stride": row.pop("block_stride_bytes"), **row} | _summary_json(summary, requests)
            for row, summary in zip(rows, summaries, strict=True)
        ]
        print_json({"model": model, "budget_bytes": budget_bytes, "plans": plans})
        return
    shown = []
    for row, summary in zip(rows, summaries, strict=True):
        line = {key: value for key, value in row.items() if key != "refused"}
        if requests:
            line["blocks_per_request"] = sum(summary.blocks_per_request) if summary else None
            for formula in FORMULAS:
                line[f"{formula}_requests"] = float(summary.max_concurrency[formula]) if summary else None
        shown.append(line)
    title = f"{model}, {budget_bytes:,} bytes"
    if requests:
        title += f", requests of {requests.longest:,} tokens, {requests.max_in_flight_tokens:,} in flight"
    print_table(title, shown)
    for row in rows:
        if row["refused"]:
            print(f"{row['slab']} refuses {row['rows']}: {row['refused']}")


def layers(
    model: Model,
    backend: Backend = None,
    indexer: Indexer = None,
    mtp: Mtp = None,
    tensor_parallel: TensorParallel = 1,
    kv_cache_dtype: KvCacheDtype = "auto",
    block_size: BlockSize = None,
    draft: Draft = None,
    no_hybrid: NoHybrid = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the layer file here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print a model's cache layers, or export them as a layer file."""
    options = options_of(
        backend=backend,
        indexer=indexer,
        mtp=mtp,
        tensor_parallel=tensor_parallel,
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size,
        no_hybrid=no_hybrid,
    )
    found = load(model, options, draft)
    stack = found.layers
    if output is not None:
        write_atomically(output, json.dumps(layers_to_json(stack), indent=1) + "\n")
        print(f"{len(stack)} layers written to {output}")
    elif as_json:
        print_json(layers_to_json(stack))
    else:
        print_table(f"{model}: {len(stack)} cache layers", records(layers_table(stack)))
        for note in found.notes:
            print(f"note: {note}")


def draw(
    model: Model,
    output: Output,
    backend: Backend = None,
    indexer: Indexer = None,
    slab: Annotated[
        list[str] | None, typer.Option(help="Generation; repeat it to draw several on one scale.")
    ] = None,
    mtp: Mtp = None,
    tensor_parallel: TensorParallel = 1,
    kv_cache_dtype: KvCacheDtype = "auto",
    block_size: BlockSize = None,
    draft: Draft = None,
    no_hybrid: NoHybrid = False,
    packed: Packed = False,
) -> None:
    """Draw a slab to scale."""
    from kvslab.plots import save_figure, slab_figure  # matplotlib loads slowly

    options = options_of(
        backend=backend,
        indexer=indexer,
        mtp=mtp,
        tensor_parallel=tensor_parallel,
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size,
        no_hybrid=no_hybrid,
    )
    stack = load(model, options, draft).layers
    names = slab or ["overlay"]
    slabs = [(name, generation_named(name).lay_out(stack, packed=packed)) for name in names]
    save_figure(slab_figure(slabs), output)
    print(f"{', '.join(names)} drawn to {output}")
