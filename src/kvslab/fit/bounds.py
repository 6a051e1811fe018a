"""How many requests any planner can serve, and where the bytes of a plan go.

*Live* bytes are the rows that the next token can see::

    zero_waste_bound = (budget - live bytes of a batch in flight) / live bytes of a request

A block of a kind of layer that holds any of them holds whole pages, so a planner with
pages and no other waste serves at most::

    whole_page_bound = (budget - pages of a batch in flight) / pages of a request

Both count in-flight tokens as `steady` does: once, for the batch.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvslab.capacity import Load, held_blocks, mean_blocks, transient_blocks
from kvslab.fit.classes import BlockSizes, allowed_block_sizes, layer_classes
from kvslab.intmath import cdiv
from kvslab.layers import CacheLayer, FullHistory, LayerSpec, LocalChunk, RecurrentState, SlidingWindow
from kvslab.plan import Plan


def live_bytes(spec: LayerSpec, tokens: int, load: Load) -> int:
    """Bytes of one layer's rows that the next token of a request of this length can see."""
    match spec.retention:
        case FullHistory():
            seen = cdiv(tokens, load.dcp)
        case SlidingWindow(window_tokens=window):
            seen = min(tokens, window - 1)
        case LocalChunk(chunk_tokens=chunk):
            seen = min(tokens, chunk)
        case RecurrentState():
            return (1 + load.num_speculative_tokens) * spec.row_bytes
    return seen // spec.compress_ratio * spec.row_bytes


def mean_live_bytes(specs: Iterable[tuple[LayerSpec, int]], load: Load) -> Fraction:
    """`live_bytes` of one request over `(spec, number of layers)`, averaged over the load's lengths."""
    pairs = tuple(specs)
    return load.mean(lambda tokens: sum(count * live_bytes(spec, tokens, load) for spec, count in pairs))


def _in_flight_bytes(spec: LayerSpec, load: Load) -> int:
    if isinstance(spec.retention, SlidingWindow | LocalChunk):
        return load.max_in_flight_tokens // spec.compress_ratio * spec.row_bytes
    return 0


def zero_waste_bound(layers: Sequence[CacheLayer], load: Load, budget_bytes: int) -> Fraction:
    """Requests that would fit if every byte of the pool were a live row.

    Args:
        layers: The model's cache layers.
        load: Request lengths and tokens in flight.
        budget_bytes: Bytes of the pool.
    """
    specs = [pair for members in layer_classes(layers) for pair in members.specs]
    in_flight = sum(count * _in_flight_bytes(spec, load) for spec, count in specs)
    return _bound(budget_bytes - in_flight, mean_live_bytes(specs, load))


def whole_page_bound(
    layers: Sequence[CacheLayer], load: Load, budget_bytes: int, block_sizes: BlockSizes = "keep"
) -> Fraction:
    """Requests that would fit if pages were whole and nothing else were lost.

    Every spec takes the allowed block size that suits it best, on its own.

    Args:
        layers: The model's cache layers.
        load: Request lengths and tokens in flight.
        budget_bytes: Bytes of the pool.
        block_sizes: Which block sizes are allowed.
    """
    held, transient = Fraction(0), 0
    for members in layer_classes(layers):
        blocks = []
        for size in allowed_block_sizes(members, load, block_sizes):
            probe = members.probe(size)
            blocks.append((size, mean_blocks([probe], load, held_blocks), transient_blocks(probe, load)))
        for spec, count in members.specs:
            pages = [
                (spec if size == spec.block_size else spec.with_block_size(size)).page_bytes
                for size, _, _ in blocks
            ]
            held += count * min(mean * page for (_, mean, _), page in zip(blocks, pages, strict=True))
            transient += count * min(n * page for (_, _, n), page in zip(blocks, pages, strict=True))
    return _bound(budget_bytes - transient, held)


def _bound(free_bytes: int, bytes_per_request: Fraction) -> Fraction:
    if not bytes_per_request:  # too short for a single row
        return Fraction(0)
    return max(Fraction(0), Fraction(Fraction(free_bytes), bytes_per_request))


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Where the bytes of a pool go when it serves as many requests as `steady` says; they add up.

    Args:
        live_bytes: Rows that the next token can see.
        inside_pages_bytes: Rows of held pages that no token needs: a last page not yet
            full, a window that begins inside a page.
        padding_bytes: Alignment of pages, and what the planner raised them by.
        inside_blocks_bytes: Bytes of held blocks that no page of their group covers.
        null_block_bytes: The block that is never handed out.
        transient_bytes: Blocks kept for tokens in flight.
        left_over_bytes: The budget past the last block.
    """

    live_bytes: Fraction
    inside_pages_bytes: Fraction
    padding_bytes: Fraction
    inside_blocks_bytes: Fraction
    null_block_bytes: Fraction
    transient_bytes: Fraction
    left_over_bytes: Fraction

    @property
    def budget_bytes(self) -> Fraction:
        """All of them."""
        return (
            self.live_bytes
            + self.inside_pages_bytes
            + self.padding_bytes
            + self.inside_blocks_bytes
            + self.null_block_bytes
            + self.transient_bytes
            + self.left_over_bytes
        )


def breakdown(plan: Plan, load: Load) -> Breakdown:
    """Say where the bytes of a plan go.

    Args:
        plan: The plan, without lockstep sets.
        load: Request lengths and tokens in flight.
    """
    slab, stride = plan.slab, plan.slab.block_stride
    held = live = inside = padding = uncovered = Fraction(0)
    transient = 0
    for group in slab.groups:
        blocks = mean_blocks([group], load, held_blocks)
        rows = mean_live_bytes(Counter(layer.spec for layer in group.layers).items(), load)
        held += blocks
        live += rows
        inside += blocks * group.payload_bytes - rows
        padding += blocks * (group.group_bytes - group.payload_bytes)
        uncovered += blocks * (stride - group.group_bytes)
        transient += transient_blocks(group, load)
    usable = plan.num_blocks - 1
    transient = min(transient, usable)
    requests = Fraction(Fraction(usable - transient), held)
    return Breakdown(
        live_bytes=requests * live,
        inside_pages_bytes=requests * inside,
        padding_bytes=requests * padding,
        inside_blocks_bytes=requests * uncovered,
        null_block_bytes=Fraction(stride),
        transient_bytes=Fraction(transient * stride),
        left_over_bytes=Fraction(plan.remaining_bytes),
    )
