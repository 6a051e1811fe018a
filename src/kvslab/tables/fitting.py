"""Tables of the fitted planner: its gain, its bounds, its peers, its price, and a trace played on it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from pathlib import Path

import pandas as pd

from kvslab.capacity import Load
from kvslab.fit import (
    BLOCK_SIZES,
    BlockSizes,
    FittedPlan,
    breakdown,
    cost_of,
    fit,
    frontier,
    peers,
    rival_plans,
    steady_requests,
    zero_waste_bound,
)
from kvslab.formats import BACKENDS, INDEXER_FORMATS
from kvslab.models import DEFAULT_INDEXER, PRESETS, load_layers
from kvslab.plan import Plan
from kvslab.simulate import Request, Simulation
from kvslab.tables.change import IN_FLIGHT_TOKENS
from kvslab.tables.layout import COMPUTED, percent
from kvslab.tables.serving import LENGTHS_TOKENS, published_budget_bytes
from kvslab.trace import Tally, load_of_requests, read_trace, replay_all, sha256_of

PEER_LENGTHS_TOKENS = (8_192, 32_768, 131_072, 524_288, 1_048_576)
KNOWN_TRACES = {
    "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df": (
        "kvcache-ai/Mooncake, FAST25-release, conversation_trace.jsonl"
    )
}
"""Published traces by the SHA-256 of their text."""

PARTS = {
    "live_bytes": "live rows",
    "inside_pages_bytes": "inside pages",
    "inside_blocks_bytes": "inside blocks",
    "padding_bytes": "padding",
    "transient_bytes": "in flight",
    "null_block_bytes": "null block",
    "left_over_bytes": "left over",
}
"""Columns of `breakdown_table` and how figures call them."""


def _rounded(value: Fraction, digits: int = 3) -> float:
    return float(round(value, digits))


def splits_of(fitted: FittedPlan) -> str:
    """Each class's groups and tokens of a block: `2 x 64` is two groups of 64-token blocks."""
    return "; ".join(f"{choice.num_groups} x {choice.block_size}" for choice in fitted.choices)


def fit_columns(fitted: FittedPlan) -> dict[str, object]:
    """What a fit found, beside the merged change and the bounds; the columns of `fit_table` and of sweeps."""
    plan, before = fitted.plan, fitted.overlay
    cost = cost_of(plan.slab.groups, fitted.load)
    overlay_cost = None if before is None else cost_of(before.slab.groups, fitted.load)
    overlay_requests = fitted.overlay_requests

    def below(bound: Fraction) -> float:
        return -percent(Fraction(fitted.requests, bound)) if bound else 0.0

    return {
        "overlay_stride_bytes": None if before is None else before.slab.block_stride,
        "overlay_groups": None if before is None else len(before.slab.groups),
        "overlay_requests": None if overlay_requests is None else _rounded(overlay_requests),
        "fitted_stride_bytes": plan.slab.block_stride,
        "fitted_groups": len(plan.slab.groups),
        "fitted_splits": splits_of(fitted),
        "fitted_requests": _rounded(fitted.requests),
        "gain_percent": None if fitted.gain_over_overlay is None else percent(fitted.gain_over_overlay + 1),
        "zero_waste_requests": _rounded(fitted.zero_waste_bound),
        "below_zero_waste_percent": below(fitted.zero_waste_bound),
        "whole_page_requests": _rounded(fitted.whole_page_bound),
        "below_whole_page_percent": below(fitted.whole_page_bound),
        "overlay_table_entries": None if overlay_cost is None else _rounded(overlay_cost.table_entries, 1),
        "fitted_table_entries": _rounded(cost.table_entries, 1),
        "overlay_blocks_per_1000_tokens": None
        if overlay_cost is None
        else _rounded(overlay_cost.blocks_per_1000_tokens, 1),
        "fitted_blocks_per_1000_tokens": _rounded(cost.blocks_per_1000_tokens, 1),
    }


def fit_table(
    max_in_flight_tokens: Iterable[int] = (1, IN_FLIGHT_TOKENS),
    block_sizes: Iterable[BlockSizes] = ("keep", "kernel-legal"),
) -> pd.DataFrame:
    """Overlay, fitted and the bounds at the published budgets: models x backends x rows x lengths."""
    in_flight, rules = tuple(max_in_flight_tokens), tuple(block_sizes)
    rows = []
    for model in PRESETS:
        for backend in BACKENDS:
            for indexer in INDEXER_FORMATS:
                layers = load_layers(model, backend=backend, indexer=indexer)
                budget = published_budget_bytes(backend)
                for tokens in LENGTHS_TOKENS:
                    for flying in in_flight:
                        for rule in rules:
                            load = Load.of(tokens, max_in_flight_tokens=flying)
                            fitted = fit(layers, load, budget, block_sizes=rule)
                            rows.append(
                                {
                                    "model": model,
                                    "backend": backend,
                                    "indexer": indexer,
                                    "budget_bytes": budget,
                                    "max_model_len_tokens": tokens,
                                    "max_in_flight_tokens": flying,
                                    "block_sizes": rule,
                                }
                                | fit_columns(fitted)
                                | {"source": COMPUTED}
                            )
    return pd.DataFrame(rows)


def peers_table(
    lengths: Sequence[int] = PEER_LENGTHS_TOKENS,
    max_in_flight_tokens: int = 1,
    models: Sequence[str] = PRESETS,
    backends: Sequence[str] = tuple(BACKENDS),
) -> pd.DataFrame:
    """Every way of dividing the bytes on the same inputs: MXFP4 rows, the published budgets."""
    rows: list[dict[str, object]] = []
    for model in models:
        for backend in backends:
            layers = load_layers(model, backend=backend)
            budget = published_budget_bytes(backend)
            for tokens in lengths:
                load = Load.of(tokens, max_in_flight_tokens=max_in_flight_tokens)
                found = peers(layers, load, budget)
                overlay = next(peer.requests for peer in found if peer.name == "overlay")
                bound = zero_waste_bound(layers, load, budget)
                for peer in found:
                    change = (
                        None
                        if not overlay or peer.requests is None
                        else percent(Fraction(peer.requests, overlay))
                    )
                    rows.append(
                        {
                            "model": model,
                            "backend": backend,
                            "indexer": DEFAULT_INDEXER,
                            "peer": peer.name,
                            "budget_bytes": budget,
                            "max_model_len_tokens": tokens,
                            "max_in_flight_tokens": max_in_flight_tokens,
                            "requests_steady": None if peer.requests is None else _rounded(peer.requests),
                            "change_from_overlay_percent": change,
                            "zero_waste_requests": _rounded(bound),
                            "num_tables": None if peer.cost is None else peer.cost.num_tables,
                            "table_entries": None
                            if peer.cost is None
                            else _rounded(peer.cost.table_entries, 1),
                            "blocks_per_1000_tokens": None
                            if peer.cost is None
                            else _rounded(peer.cost.blocks_per_1000_tokens, 1),
                            "note": peer.note,
                            "source": COMPUTED,
                        }
                    )
    return pd.DataFrame(rows)


def breakdown_table(
    lengths: Sequence[int] = LENGTHS_TOKENS,
    max_in_flight_tokens: int = 1,
    models: Sequence[str] = PRESETS,
    backends: Sequence[str] = tuple(BACKENDS),
) -> pd.DataFrame:
    """Where the bytes of the published budgets go, plan by plan; the parts add up to the budget."""
    rows = []
    for model in models:
        for backend in backends:
            layers = load_layers(model, backend=backend)
            budget = published_budget_bytes(backend)
            for tokens in lengths:
                load = Load.of(tokens, max_in_flight_tokens=max_in_flight_tokens)
                for name, plan in rival_plans(layers, load, budget).items():
                    parts = breakdown(plan, load)
                    rows.append(
                        {
                            "model": model,
                            "backend": backend,
                            "indexer": DEFAULT_INDEXER,
                            "slab": name,
                            "budget_bytes": budget,
                            "max_model_len_tokens": tokens,
                            "max_in_flight_tokens": max_in_flight_tokens,
                            "requests_steady": _rounded(steady_requests(plan, load)),
                        }
                        | {column: round(getattr(parts, column)) for column in PARTS}
                        | {"source": COMPUTED}
                    )
    return pd.DataFrame(rows)


def frontier_table(
    lengths: Sequence[int] = LENGTHS_TOKENS,
    max_in_flight_tokens: int = 1,
    models: Sequence[str] = PRESETS,
    backends: Sequence[str] = tuple(BACKENDS),
    block_sizes: Sequence[BlockSizes] = BLOCK_SIZES,
) -> pd.DataFrame:
    """What more groups buy, and what they cost the scheduler, at the published budgets."""
    rows = []
    for model in models:
        for backend in backends:
            layers = load_layers(model, backend=backend)
            budget = published_budget_bytes(backend)
            for tokens in lengths:
                load = Load.of(tokens, max_in_flight_tokens=max_in_flight_tokens)
                overlay = steady_requests(rival_plans(layers, load, budget)["overlay"], load)
                for rule in block_sizes:
                    for point in frontier(layers, load, budget, block_sizes=rule):
                        cost = cost_of(point.plan.slab.groups, load)
                        rows.append(
                            {
                                "model": model,
                                "backend": backend,
                                "indexer": DEFAULT_INDEXER,
                                "budget_bytes": budget,
                                "max_model_len_tokens": tokens,
                                "max_in_flight_tokens": max_in_flight_tokens,
                                "block_sizes": rule,
                                "num_groups": point.num_groups,
                                "block_stride_bytes": point.plan.slab.block_stride,
                                "requests_steady": _rounded(point.requests),
                                "change_from_overlay_percent": percent(Fraction(point.requests, overlay)),
                                "table_entries": _rounded(cost.table_entries, 1),
                                "blocks_per_1000_tokens": _rounded(cost.blocks_per_1000_tokens, 1),
                                "source": COMPUTED,
                            }
                        )
    return pd.DataFrame(rows)


def tally_rows(plans: dict[str, Plan], load: Load, tallies: dict[str, Tally]) -> list[dict[str, object]]:
    """One row a planner: what `steady` says of the workload, and what a replay saw.

    `mean_running` is over the steps in which some request waited for blocks: only then
    does the pool, and not the arrivals, set the number.
    """
    rows: list[dict[str, object]] = []
    base = tallies["overlay"].num_steps if "overlay" in tallies else 0
    for name, tally in tallies.items():
        crowded = Fraction(tally.crowded_running, max(1, tally.crowded_steps))
        rows.append(
            {
                "slab": name,
                "num_groups": len(plans[name].slab.groups),
                "requests_steady": _rounded(steady_requests(plans[name], load)),
                "mean_running": _rounded(crowded) if tally.crowded_steps else None,
                "peak_running": tally.peak_running,
                "num_steps": tally.num_steps,
                "steps_change_percent": percent(Fraction(tally.num_steps, base)) if base else None,
                "crowded_steps": tally.crowded_steps,
                "mean_wait_steps": _rounded(Fraction(tally.waited_steps, max(1, tally.num_finished)), 1),
                "num_finished": tally.num_finished,
                "num_shortfalls": tally.num_shortfalls,
            }
        )
    return rows


def simulations_of(
    plans: dict[str, Plan], max_num_batched_tokens: int
) -> dict[str, Callable[[], Simulation]]:
    """What makes an empty pool of each plan."""

    def maker(plan: Plan) -> Callable[[], Simulation]:
        return lambda: Simulation(
            plan.slab.groups, plan.num_blocks, max_num_batched_tokens=max_num_batched_tokens
        )

    return {name: maker(plan) for name, plan in plans.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSource:
    """Requests that can be read again and again.

    Args:
        name: Where they come from.
        arrivals: When they arrive, in words.
        num_requests: How many.
        lengths: `(tokens, how many requests of that length)`.
        sha256: Of the file's text; of the requests themselves where there is no file.
        read: Starts reading them.
    """

    name: str
    arrivals: str
    num_requests: int
    lengths: tuple[tuple[int, int], ...]
    sha256: str
    read: Callable[[], Iterable[Request]]

    def load(self, *, max_in_flight_tokens: int) -> Load:
        """The workload that they make."""
        return Load(lengths=self.lengths, max_in_flight_tokens=max_in_flight_tokens)


def trace_requests(
    trace: Path | Sequence[Request], *, name: str = "", step_ms: int | None = None, limit: int | None = None
) -> RequestSource:
    """A trace file, or requests made up beforehand, as a source.

    Args:
        trace: A file in Mooncake's form, or the requests.
        name: Where they come from; by default a published trace's name, or the file's.
        step_ms: Milliseconds of a step; without it all requests are there at once.
        limit: The first so many requests of the file.

    Raises:
        InputError: The file is malformed.
    """
    if isinstance(trace, Path):
        path = trace
        digest, arrivals = sha256_of(path), "all at once"
        name = name or KNOWN_TRACES.get(digest, path.name)
        if step_ms is not None:
            arrivals = f"as recorded, {step_ms} ms a step"

        def read() -> Iterable[Request]:
            return read_trace(path, step_ms=step_ms, limit=limit)
    else:
        made = tuple(trace)
        digest = sha256(repr(made).encode()).hexdigest()
        arrivals = "as made"

        def read() -> Iterable[Request]:
            return made

    lengths = load_of_requests(read(), max_in_flight_tokens=1).lengths
    return RequestSource(
        name=name,
        arrivals=arrivals,
        num_requests=sum(count for _, count in lengths),
        lengths=lengths,
        sha256=digest,
        read=read,
    )


def replay_table(
    source: RequestSource,
    plans: dict[str, Plan],
    load: Load,
    setup: dict[str, object],
    *,
    checkpoint: Path | None = None,
    on_progress: Callable[[str, int], None] = lambda name, num_finished: None,
) -> pd.DataFrame:
    """Play requests against plans, one row a plan.

    Args:
        source: The requests.
        plans: By name, of one budget; `fitted` should be fitted to the source's lengths.
        load: Their workload; its tokens in flight are the tokens of one step.
        setup: Columns that say which layers these are.
        checkpoint: Where to keep what is done, so that an interrupted run continues.
        on_progress: Called with a plan's name and the requests it has finished.

    Raises:
        InputError: The trace is malformed, or a request can never be let in.
    """
    key = {
        "trace_sha256": source.sha256,
        "arrivals": source.arrivals,
        "num_requests": source.num_requests,
        "max_num_batched_tokens": load.max_in_flight_tokens,
        "plans": {
            name: [plan.slab.block_stride, plan.num_blocks, [g.block_size for g in plan.slab.groups]]
            for name, plan in plans.items()
        },
    }
    tallies = replay_all(
        simulations_of(plans, load.max_in_flight_tokens),
        source.read,
        key=key,
        checkpoint=checkpoint,
        on_progress=on_progress,
    )
    about = setup | {
        "budget_bytes": next(iter(plans.values())).budget_bytes,
        "max_in_flight_tokens": load.max_in_flight_tokens,
        "arrivals": source.arrivals,
        "num_requests": source.num_requests,
        "trace_sha256": source.sha256,
    }
    rows = tally_rows(plans, load, tallies)
    return pd.DataFrame([about | row | {"source": source.name} for row in rows])
