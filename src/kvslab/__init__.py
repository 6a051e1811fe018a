"""kvslab: what one KV-cache block costs, exactly.

A model's config becomes cache layers; layers that share a block table become groups;
a generation of the engine's planner lays the groups out in a slab, all the bytes of one
block; a slab and a budget are a plan; and a plan serves so many requests::

    config -> layers -> groups -> slab -> plan -> capacity | fit | memory

The packages stand in that order, and imports point backward along it only:
`formats`, `layers`, `models`; `groups`, `slab`, `generations`, `layouts`; `plan`;
`capacity`, `fit`, `simulate`; `memory`, `mxfp4`; `published`, `logs`; and on top of them
`tables`, `results`, `plots` and `cli`.  This page is the short way in.

>>> import kvslab
>>> layers = kvslab.load_layers("deepseek-v4-pro", backend="flashinfer", indexer="mxfp4")
>>> overlay = kvslab.generation_named("overlay")
>>> plan = kvslab.Plan(slab=overlay.lay_out(layers), budget_bytes=28_410_134_921)
>>> plan.slab.block_stride, plan.num_blocks
(1228800, 23120)
>>> load = kvslab.Load.of(1_048_576, max_in_flight_tokens=8192)
>>> round(float(kvslab.max_concurrency(plan.slab.groups, plan.num_blocks, load, "steady")), 2)
4.8
"""

from kvslab.capacity import Load, Summary, max_concurrency, summarize
from kvslab.errors import BudgetError, InputError, LayoutError, PlanError, RefusedError
from kvslab.fit import FittedPlan
from kvslab.generations import GENERATIONS, Generation, generation_named
from kvslab.groups import CacheGroup
from kvslab.layers import CacheLayer, LayerSpec
from kvslab.models import load_layers
from kvslab.plan import Plan
from kvslab.slab import SlabLayout

__version__ = "0.1.0"

__all__ = [
    "GENERATIONS",
    "BudgetError",
    "CacheGroup",
    "CacheLayer",
    "FittedPlan",
    "Generation",
    "InputError",
    "LayerSpec",
    "LayoutError",
    "Load",
    "Plan",
    "PlanError",
    "RefusedError",
    "SlabLayout",
    "Summary",
    "__version__",
    "generation_named",
    "load_layers",
    "max_concurrency",
    "summarize",
]
