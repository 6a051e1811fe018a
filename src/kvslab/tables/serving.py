"""Tables of what a pool serves: capacity by formula, and what admission charges."""

from fractions import Fraction

import pandas as pd

from kvslab.capacity import Load, auto_fit_max_model_len, block_price_bytes, blocks_per_request, summarize
from kvslab.formats import BACKENDS, INDEXER_FORMATS
from kvslab.generations import GENERATIONS
from kvslab.models import PRESETS
from kvslab.plan import Plan
from kvslab.published import BUDGETS, Setup, budget_interval, slab_of
from kvslab.tables.change import IN_FLIGHT_TOKENS, MILLION_TOKENS
from kvslab.tables.layout import COMPUTED, percent, setup_columns

LENGTHS_TOKENS = (8_192, 131_072, MILLION_TOKENS)


def published_budget_bytes(backend: str) -> int:
    """The published budget of a backend; BF16 rows are planned at FlashInfer's."""
    return budget_interval(backend if backend in BUDGETS else "flashinfer").low_bytes


def _setups(slabs: tuple[str, ...]) -> list[Setup]:
    return [
        Setup(model=model, backend=backend, indexer=indexer, slab=slab)
        for model in PRESETS
        for backend in BACKENDS
        for indexer in INDEXER_FORMATS
        for slab in slabs
    ]


def capacity_table(max_in_flight_tokens: int = IN_FLIGHT_TOKENS) -> pd.DataFrame:
    """Requests by three formulas, at the published budgets, for three request lengths."""
    rows = []
    for setup in _setups(tuple(GENERATIONS)):
        plan = Plan(slab=slab_of(setup), budget_bytes=published_budget_bytes(setup.backend))
        for length in LENGTHS_TOKENS:
            load = Load.of(length, max_in_flight_tokens=max_in_flight_tokens)
            summary = summarize(plan, GENERATIONS[setup.slab], load)
            rows.append(
                setup_columns(setup)
                | {
                    "budget_bytes": plan.budget_bytes,
                    "num_blocks": plan.num_blocks,
                    "max_model_len_tokens": length,
                    "max_in_flight_tokens": max_in_flight_tokens,
                    "blocks_per_request": sum(summary.blocks_per_request),
                    "requests_legacy": _rounded(summary.max_concurrency["legacy"]),
                    "requests_block_sum": _rounded(summary.max_concurrency["block_sum"]),
                    "requests_steady": _rounded(summary.max_concurrency["steady"]),
                    "auto_fit_engine_tokens": summary.auto_fit_engine,
                    "auto_fit_exact_tokens": summary.auto_fit_exact,
                    "source": COMPUTED,
                }
            )
    return pd.DataFrame(rows)


def admission_table(
    max_model_len: int = MILLION_TOKENS, max_in_flight_tokens: int = IN_FLIGHT_TOKENS
) -> pd.DataFrame:
    """The price that vLLM 0.27 charges for a block of the overlaid slab, beside what the block costs.

    The budget of each row is the least that the tuple price admits `max_model_len`
    at.  `longest_exact_tokens` is what really fits there, null block kept: fewer, and
    the difference is wrongly admitted.  Where the price is above the stride, the
    budget is the least that really holds `max_model_len`, and the difference is
    wrongly refused.
    """
    load = Load.of(max_model_len, max_in_flight_tokens=max_in_flight_tokens)
    rows = []
    for setup in _setups(("overlay",)):
        slab = slab_of(setup)
        groups, stride = slab.groups, slab.block_stride
        price = block_price_bytes(groups, stride, "tuple")
        blocks = sum(blocks_per_request(groups, load))
        budget = price * blocks if price < stride else stride * (blocks + 1)
        engine = auto_fit_max_model_len(groups, stride, budget, load, "tuple", keep_null_block=False)
        exact = auto_fit_max_model_len(groups, stride, budget, load, "stride", keep_null_block=True)
        rows.append(
            setup_columns(setup)
            | {
                "price_tuple_bytes": price,
                "block_stride_bytes": stride,
                "price_change_percent": percent(Fraction(price, stride)),
                "max_model_len_tokens": max_model_len,
                "max_in_flight_tokens": max_in_flight_tokens,
                "blocks_per_request": blocks,
                "admission_tuple_bytes": price * blocks,
                "admission_stride_bytes": stride * blocks,
                "budget_bytes": budget,
                "longest_engine_tokens": engine,
                "longest_exact_tokens": exact,
                "wrong_tokens": engine - exact,
                "source": COMPUTED,
            }
        )
    return pd.DataFrame(rows)


def _rounded(value: Fraction) -> float:
    return float(round(value, 3))
