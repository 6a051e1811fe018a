"""How groups lie in memory beside the generations' own packing.

`axes` are the six standard layouts as orders of five axes, `choice` says which of them can
hold a model's groups, and `lockstep` keeps groups apart that share their block ids.
"""

from kvslab.layouts.axes import AXES, LAYOUTS, AxisLayout, AxisStrides, CacheShape, layout_named, stride_axes
from kvslab.layouts.choice import (
    BLOCK_OUTERMOST,
    DEFAULT_LAYOUT,
    LayoutPreference,
    check_expressible,
    choose_layout,
    lay_out_axes,
)
from kvslab.layouts.lockstep import blocks_per_owner, keep_apart

__all__ = [
    "AXES",
    "BLOCK_OUTERMOST",
    "DEFAULT_LAYOUT",
    "LAYOUTS",
    "AxisLayout",
    "AxisStrides",
    "CacheShape",
    "LayoutPreference",
    "blocks_per_owner",
    "check_expressible",
    "choose_layout",
    "keep_apart",
    "lay_out_axes",
    "layout_named",
    "stride_axes",
]
