"""How many requests a pool serves: blocks per request, prices, concurrency, longest request.

`formulas` counts for one pool, `workers` for pipeline stages and data-parallel ranks, and
`summary` puts what one plan serves into one value.
"""

from kvslab.capacity.formulas import (
    FORMULAS,
    PRICES,
    Load,
    admission_bytes,
    auto_fit_max_model_len,
    block_price_bytes,
    blocks_per_request,
    held_blocks,
    max_concurrency,
    mean_blocks,
    peak_blocks,
    sum_over_owners,
    transient_blocks,
)
from kvslab.capacity.summary import Summary, summarize
from kvslab.capacity.workers import StagedPlan, plan_stages

__all__ = [
    "FORMULAS",
    "PRICES",
    "Load",
    "StagedPlan",
    "Summary",
    "admission_bytes",
    "auto_fit_max_model_len",
    "block_price_bytes",
    "blocks_per_request",
    "held_blocks",
    "max_concurrency",
    "mean_blocks",
    "peak_blocks",
    "plan_stages",
    "sum_over_owners",
    "summarize",
    "transient_blocks",
]
