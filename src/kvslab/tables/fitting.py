"""Tables of the fitted planner: its gain, its bounds, its peers and its price."""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

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
from kvslab.layers import CacheLayer
from kvslab.models import DEFAULT_INDEXER, PRESETS, load_layers
from kvslab.tables.change import IN_FLIGHT_TOKENS
from kvslab.tables.layout import COMPUTED, percent
from kvslab.tables.serving import LENGTHS_TOKENS, published_budget_bytes

PEER_LENGTHS_TOKENS = (8_192, 32_768, 131_072, 524_288, 1_048_576)

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


def rounded(value: Fraction, digits: int = 3) -> float:
    """A number of requests or entries as printed."""
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
        "overlay_requests": None if overlay_requests is None else rounded(overlay_requests),
        "fitted_stride_bytes": plan.slab.block_stride,
        "fitted_groups": len(plan.slab.groups),
        "fitted_splits": splits_of(fitted),
        "fitted_requests": rounded(fitted.requests),
        "gain_percent": None if fitted.gain_over_overlay is None else percent(fitted.gain_over_overlay + 1),
        "zero_waste_requests": rounded(fitted.zero_waste_bound),
        "below_zero_waste_percent": below(fitted.zero_waste_bound),
        "whole_page_requests": rounded(fitted.whole_page_bound),
        "below_whole_page_percent": below(fitted.whole_page_bound),
        "overlay_table_entries": None if overlay_cost is None else rounded(overlay_cost.table_entries, 1),
        "fitted_table_entries": rounded(cost.table_entries, 1),
        "overlay_blocks_per_1000_tokens": None
        if overlay_cost is None
        else rounded(overlay_cost.blocks_per_1000_tokens, 1),
        "fitted_blocks_per_1000_tokens": rounded(cost.blocks_per_1000_tokens, 1),
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


def _setups(
    models: Iterable[str], backends: Iterable[str]
) -> Iterator[tuple[str, str, tuple[CacheLayer, ...], int]]:
    """Model, backend, its layers with the default rows, and the published budget."""
    for model in models:
        for backend in backends:
            yield model, backend, load_layers(model, backend=backend), published_budget_bytes(backend)


def peers_table(
    lengths: Sequence[int] = PEER_LENGTHS_TOKENS,
    max_in_flight_tokens: int = 1,
    models: Sequence[str] = PRESETS,
    backends: Sequence[str] = tuple(BACKENDS),
) -> pd.DataFrame:
    """Every way of dividing the bytes on the same inputs: MXFP4 rows, the published budgets."""
    rows: list[dict[str, object]] = []
    for model, backend, layers, budget in _setups(models, backends):
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
                        "requests_steady": None if peer.requests is None else rounded(peer.requests),
                        "change_from_overlay_percent": change,
                        "zero_waste_requests": rounded(bound),
                        "num_tables": None if peer.cost is None else peer.cost.num_tables,
                        "table_entries": None if peer.cost is None else rounded(peer.cost.table_entries, 1),
                        "blocks_per_1000_tokens": None
                        if peer.cost is None
                        else rounded(peer.cost.blocks_per_1000_tokens, 1),
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
    for model, backend, layers, budget in _setups(models, backends):
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
                        "requests_steady": rounded(steady_requests(plan, load)),
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
    for model, backend, layers, budget in _setups(models, backends):
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
                            "requests_steady": rounded(point.requests),
                            "change_from_overlay_percent": percent(Fraction(point.requests, overlay)),
                            "table_entries": rounded(cost.table_entries, 1),
                            "blocks_per_1000_tokens": rounded(cost.blocks_per_1000_tokens, 1),
                            "source": COMPUTED,
                        }
                    )
    return pd.DataFrame(rows)


def transfer_table(
    lengths: Sequence[int] = LENGTHS_TOKENS,
    max_in_flight_tokens: int = 1,
    models: Sequence[str] = PRESETS,
    backends: Sequence[str] = tuple(BACKENDS),
) -> pd.DataFrame:
    """What a plan that was fitted to one request length serves at another: the price of a wrong guess."""
    rows = []
    for model, backend, layers, budget in _setups(models, backends):
        loads = {n: Load.of(n, max_in_flight_tokens=max_in_flight_tokens) for n in lengths}
        plans = {n: rival_plans(layers, load, budget) for n, load in loads.items()}
        for fitted_to in lengths:
            for tokens, load in loads.items():
                served = steady_requests(plans[fitted_to]["fitted"], load)
                overlay = steady_requests(plans[fitted_to]["overlay"], load)
                rows.append(
                    {
                        "model": model,
                        "backend": backend,
                        "indexer": DEFAULT_INDEXER,
                        "fitted_to_tokens": fitted_to,
                        "max_model_len_tokens": tokens,
                        "max_in_flight_tokens": max_in_flight_tokens,
                        "requests_steady": rounded(served),
                        "change_from_overlay_percent": percent(Fraction(served, overlay)),
                        "source": COMPUTED,
                    }
                )
    return pd.DataFrame(rows)
