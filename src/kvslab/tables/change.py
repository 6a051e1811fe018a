"""Tables of the published change: every number again, the headline, each half alone."""

from fractions import Fraction

import pandas as pd

from kvslab.capacity import Load, blocks_per_request
from kvslab.formats import INDEXER_FORMATS
from kvslab.published import BUDGETS, Setup, after, before, budget_interval, reproduce, slab_of
from kvslab.tables.layout import COMPUTED, percent, setup_columns

MILLION_TOKENS = 1_048_576
IN_FLIGHT_TOKENS = 8_192


def published_table() -> pd.DataFrame:
    """Every published number beside the one derived here."""
    rows = []
    for item in reproduce():
        number = item.number
        rows.append(
            {
                "id": number.id,
                "quantity": number.quantity,
                **setup_columns(number.setup),
                "published": number.value,
                "derived": item.derived,
                "difference": str(item.difference),
                "unit": number.unit,
                "verdict": "matches" if item.matches else "differs",
                "source": number.source,
                "url": number.url,
            }
        )
    return pd.DataFrame(rows)


def gb200_table() -> pd.DataFrame:
    """The headline: blocks of DeepSeek-V4-Pro on GB200 before and after PR 48993."""
    rows = []
    for backend, budget in BUDGETS.items():
        old, new = slab_of(before(backend)), slab_of(after(backend))
        interval = budget_interval(backend)
        num_old, num_new = (interval.low_bytes // slab.block_stride for slab in (old, new))
        rows.append(
            {
                "model": before(backend).model,
                "backend": backend,
                "budget_printed_gib": budget.printed_gib,
                "budget_low_bytes": interval.low_bytes,
                "budget_high_bytes": interval.high_bytes,
                "stride_before_bytes": old.block_stride,
                "stride_after_bytes": new.block_stride,
                "stride_change_percent": percent(Fraction(new.block_stride, old.block_stride)),
                "num_blocks_before": num_old,
                "num_blocks_after": num_new,
                "num_blocks_change_percent": percent(Fraction(num_new, num_old)),
                "source": f"{budget.source} (budgets); {COMPUTED}",
            }
        )
    return pd.DataFrame(rows)


def ablation_table(
    max_model_len: int = MILLION_TOKENS, max_in_flight_tokens: int = IN_FLIGHT_TOKENS
) -> pd.DataFrame:
    """Planner x row format: what each half of PR 48993 does alone.

    `max_concurrency` is blocks over blocks per request (the `block_sum` formula)
    for a request of `max_model_len` tokens with `max_in_flight_tokens` in flight.
    """
    load = Load.of(max_model_len, max_in_flight_tokens=max_in_flight_tokens)
    rows = []
    for backend in BUDGETS:
        budget = budget_interval(backend).low_bytes
        baseline = budget // slab_of(before(backend)).block_stride
        for slab_name in ("bucketed", "overlay"):
            for indexer in INDEXER_FORMATS:
                setup = Setup(model="deepseek-v4-pro", backend=backend, indexer=indexer, slab=slab_name)
                slab = slab_of(setup)
                num_blocks = budget // slab.block_stride
                needed = sum(blocks_per_request(slab.groups, load))
                rows.append(
                    setup_columns(setup)
                    | {
                        "num_groups": len(slab.groups),
                        "block_stride_bytes": slab.block_stride,
                        "num_blocks": num_blocks,
                        "num_blocks_change_percent": percent(Fraction(num_blocks, baseline)),
                        "max_model_len_tokens": max_model_len,
                        "max_in_flight_tokens": max_in_flight_tokens,
                        "blocks_per_request": needed,
                        "max_concurrency": float(round(Fraction(num_blocks, needed), 3)),
                        "source": COMPUTED,
                    }
                )
    return pd.DataFrame(rows)
