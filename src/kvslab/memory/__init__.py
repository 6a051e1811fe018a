"""The plan as bytes: which belong to whom, who may touch them, and what goes wrong otherwise.

`spans` names byte ranges and `pool` their owners, in plain integers; `views` and `hazards`
are real memory and need torch, so they are imported by name and not from here.
"""

from kvslab.memory.pool import NULL_BLOCK, BlockPool
from kvslab.memory.spans import PageAddress, Span, merge_ranges, page_addresses, page_spans

__all__ = [
    "NULL_BLOCK",
    "BlockPool",
    "PageAddress",
    "Span",
    "merge_ranges",
    "page_addresses",
    "page_spans",
]
