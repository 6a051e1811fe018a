"""Pandas tables of what the planner computes: one function per table.

Columns carry their units (`_bytes`, `_tokens`, `num_`, `_percent`).  A table that
`kvslab.results` writes has a `source` column, so that a row cut out of it still
says where it comes from.
"""

from kvslab.tables.cases import public_cases_table
from kvslab.tables.change import ablation_table, gb200_table, published_table
from kvslab.tables.devices import devices_table
from kvslab.tables.fitting import (
    breakdown_table,
    fit_table,
    frontier_table,
    peers_table,
    transfer_table,
)
from kvslab.tables.layout import (
    ROLES,
    compare_table,
    groups_table,
    layers_table,
    pages_table,
    role_of,
    slab_pages_table,
    strides_table,
    tensors_table,
)
from kvslab.tables.models import models_table
from kvslab.tables.replay import replay_table, trace_requests
from kvslab.tables.rules import rules_table
from kvslab.tables.serving import admission_table, capacity_table

__all__ = [
    "ROLES",
    "ablation_table",
    "admission_table",
    "breakdown_table",
    "capacity_table",
    "compare_table",
    "devices_table",
    "fit_table",
    "frontier_table",
    "gb200_table",
    "groups_table",
    "layers_table",
    "models_table",
    "pages_table",
    "peers_table",
    "public_cases_table",
    "published_table",
    "replay_table",
    "role_of",
    "rules_table",
    "slab_pages_table",
    "strides_table",
    "tensors_table",
    "trace_requests",
    "transfer_table",
]
