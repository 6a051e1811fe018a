"""How close to the limit? The fitted planner, bounds, peers and what they cost.

Importing this package registers generation `fitted`: `kvslab.generations` cannot, for
the search needs `kvslab.capacity`, which stands above it.
"""

from kvslab.fit.bounds import Breakdown, breakdown, live_bytes, whole_page_bound, zero_waste_bound
from kvslab.fit.classes import BLOCK_SIZES, BlockSizes
from kvslab.fit.generation import FITTED, generation_for
from kvslab.fit.mix import load_from_json
from kvslab.fit.plan_file import plan_from_json, plan_to_json
from kvslab.fit.planner import (
    NOTICEABLE,
    OBJECTIVES,
    ClassChoice,
    FittedPlan,
    Objective,
    fit,
    steady_requests,
)
from kvslab.fit.rivals import PEERS, Cost, Peer, cost_of, peers, rival_plans
from kvslab.fit.tradeoff import Point, frontier

__all__ = [
    "BLOCK_SIZES",
    "FITTED",
    "NOTICEABLE",
    "OBJECTIVES",
    "PEERS",
    "BlockSizes",
    "Breakdown",
    "ClassChoice",
    "Cost",
    "FittedPlan",
    "Objective",
    "Peer",
    "Point",
    "breakdown",
    "cost_of",
    "fit",
    "frontier",
    "generation_for",
    "live_bytes",
    "load_from_json",
    "peers",
    "plan_from_json",
    "plan_to_json",
    "rival_plans",
    "steady_requests",
    "whole_page_bound",
    "zero_waste_bound",
]
