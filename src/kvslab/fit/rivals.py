"""Other ways to divide the same bytes among kinds of layers, planned on the same inputs.

Besides the engine's generations, whose plans are ordinary plans:

* `fixed_pools`: one pool for full histories and one for windows, their tokens in a
  fixed ratio, states in step with the windows (SGLang's `swa_full_tokens_ratio`).
* `lcm_pages`: one pool of large pages, as long as the least common multiple of the
  layers' pages, each of them given to one spec of layer and cut into its pages.
* `layer_pools`: one pool a layer, its size right for this workload and for no other.

All three are counted in their own favour: no fragmentation between requests, sizes
that are no whole number of pages allowed.

Source: SGLang's DeepSeek-V4 launch arguments (`swa_full_tokens_ratio=0.1`, windows and
compressor states sized from one count of window tokens, issue 23602 and PR 40337);
Jenga (SOSP 2025), section on two-level allocation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvslab.capacity import Load, held_blocks, mean_blocks, transient_blocks
from kvslab.errors import BudgetError, RefusedError
from kvslab.fit.classes import BlockSizes, LayerClass, layer_classes
from kvslab.fit.planner import fit, steady_requests
from kvslab.generations import GENERATIONS
from kvslab.groups import CacheGroup
from kvslab.intmath import cdiv
from kvslab.layers import CacheLayer, FullHistory, RecurrentState
from kvslab.plan import Plan

WINDOW_TOKENS_RATIO = Fraction(1, 10)
"""Tokens of the window pool for each token of the full-history pool (SGLang's setting for DeepSeek-V4)."""

PEERS = (*GENERATIONS, "fixed_pools", "lcm_pages", "layer_pools", "fitted")
"""The ways to divide memory that are compared, see `peers`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a scheduler pays for a way of dividing the bytes.

    Args:
        num_tables: Block tables of one request.
        table_entries: Their entries: one for every block of every token so far, live
            or freed, as engines index tables by position.
        blocks_per_1000_tokens: Blocks that the scheduler hands out while one request
            grows by 1,000 tokens; in the long run it takes as many back from windows.
    """

    num_tables: int
    table_entries: Fraction
    blocks_per_1000_tokens: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One way of dividing the bytes, and what it serves.

    Args:
        name: One of `PEERS`.
        requests: Requests at once, by `steady` or its like; None where it refuses.
        cost: What it costs the scheduler; None where it refuses.
        note: Why it refuses, or what sets it.
    """

    name: str
    requests: Fraction | None
    cost: Cost | None
    note: str


def cost_of(groups: Sequence[CacheGroup], load: Load) -> Cost:
    """Tables, entries and blocks handed out, each group having one table."""
    return _cost([(group, 1) for group in groups], load)


def _cost(tables: Sequence[tuple[CacheGroup, int]], load: Load) -> Cost:
    entries, handed_out = Fraction(0), Fraction(0)
    for group, count in tables:
        if isinstance(group.retention, RecurrentState):
            entries += count * (1 + load.num_speculative_tokens)
            continue
        entries += count * mean_blocks([group], load, _entries)
        handed_out += Fraction(count * 1000, group.block_size)
    return Cost(
        num_tables=sum(count for _, count in tables), table_entries=entries, blocks_per_1000_tokens=handed_out
    )


def _entries(group: CacheGroup, tokens: int, load: Load) -> int:
    seen = cdiv(tokens, load.dcp) if isinstance(group.retention, FullHistory) else tokens
    return cdiv(seen, group.block_size)


def peers(
    layers: Sequence[CacheLayer],
    load: Load,
    budget_bytes: int,
    *,
    block_sizes: BlockSizes = "kernel-legal",
) -> tuple[Peer, ...]:
    """Every peer on the same layers, budget and workload, in the order of `PEERS`.

    Args:
        layers: The model's cache layers.
        load: Request lengths and tokens in flight.
        budget_bytes: Bytes of the pool.
        block_sizes: What `fitted` may choose; all others keep the declared ones.
    """
    found = [_released(name, layers, load, budget_bytes) for name in GENERATIONS]
    found += [
        fixed_pools(layers, load, budget_bytes),
        lcm_pages(layers, load, budget_bytes),
        layer_pools(layers, load, budget_bytes),
    ]
    try:
        plan = fit(layers, load, budget_bytes, block_sizes=block_sizes).plan
    except BudgetError as error:
        found.append(Peer(name="fitted", requests=None, cost=None, note=str(error)))
    else:
        found.append(_planned("fitted", plan, load))
    return tuple(found)


def rival_plans(
    layers: Sequence[CacheLayer],
    load: Load,
    budget_bytes: int,
    *,
    block_sizes: BlockSizes = "kernel-legal",
) -> dict[str, Plan]:
    """The plans of the generations that take the stack and of `fitted`, by name.

    Raises:
        BudgetError: The budget holds no block of the fitted plan.
    """
    plans = {}
    for name, generation in GENERATIONS.items():
        try:
            plans[name] = Plan(slab=generation.lay_out(layers), budget_bytes=budget_bytes)
        except (RefusedError, BudgetError):
            continue
    return plans | {"fitted": fit(layers, load, budget_bytes, block_sizes=block_sizes).plan}


def _released(name: str, layers: Sequence[CacheLayer], load: Load, budget_bytes: int) -> Peer:
    try:
        plan = Plan(slab=GENERATIONS[name].lay_out(layers), budget_bytes=budget_bytes)
    except (RefusedError, BudgetError) as error:
        return Peer(name=name, requests=None, cost=None, note=str(error))
    return _planned(name, plan, load)


def _planned(name: str, plan: Plan, load: Load) -> Peer:
    groups = plan.slab.groups
    note = f"stride {plan.slab.block_stride:,} bytes, {len(groups)} groups"
    return Peer(name=name, requests=steady_requests(plan, load), cost=cost_of(groups, load), note=note)


def _class_bytes(members: LayerClass) -> int:
    """Bytes of one block of all layers of a class."""
    return sum(page * count for page, count in members.columns(members.declared_block_size).items())


def _tables(classes: Sequence[LayerClass]) -> list[tuple[CacheGroup, int]]:
    return [(members.probe(members.declared_block_size), 1) for members in classes]


def fixed_pools(
    layers: Sequence[CacheLayer],
    load: Load,
    budget_bytes: int,
    window_tokens_ratio: Fraction = WINDOW_TOKENS_RATIO,
) -> Peer:
    """Two pools whose sizes no workload changes.

    The full-history pool holds `T` tokens, the window pool `ratio * T`, and every
    other class as many requests as the window pool; `T` is what the budget allows.
    The scarcer pool sets the number of requests.
    """
    classes = layer_classes(layers)
    full = [c for c in classes if isinstance(c.specs[0][0].retention, FullHistory)]
    rest = [c for c in classes if not isinstance(c.specs[0][0].retention, FullHistory)]
    held = {id(c): mean_blocks([c.probe(c.declared_block_size)], load, held_blocks) for c in classes}
    reserve = sum(
        (1 + transient_blocks(c.probe(c.declared_block_size), load)) * _class_bytes(c) for c in classes
    )
    free = max(0, budget_bytes - reserve)
    full_bytes_per_token = sum(
        (Fraction(_class_bytes(c), c.declared_block_size) for c in full), start=Fraction(0)
    )
    request_tokens = max((held[id(c)] * c.declared_block_size for c in full), default=Fraction(0))
    window = max(rest, key=_class_bytes, default=None)
    rest_bytes = sum((held[id(c)] * _class_bytes(c) for c in rest), start=Fraction(0))
    cost = _cost(_tables(classes), load)
    if window is None or not full:
        each = rest_bytes + request_tokens * full_bytes_per_token
        return Peer(name="fixed_pools", requests=Fraction(free, each), cost=cost, note="one pool")
    window_tokens = held[id(window)] * window.declared_block_size
    windows_per_token = Fraction(window_tokens_ratio, window_tokens)
    tokens = Fraction(free, full_bytes_per_token + windows_per_token * rest_bytes)
    by_history, by_window = Fraction(tokens, request_tokens), tokens * windows_per_token
    scarcer = "histories" if by_history <= by_window else "windows"
    note = f"{window_tokens_ratio} window tokens a token; {scarcer} run out first"
    return Peer(name="fixed_pools", requests=min(by_history, by_window), cost=cost, note=note)


def lcm_pages(layers: Sequence[CacheLayer], load: Load, budget_bytes: int) -> Peer:
    """One pool of large pages that every layer's page divides.

    The small page is one layer's page, the kindest reading: pages of whole groups have
    a least common multiple far beyond any pool.  A large page belongs to one spec of
    layer; each spec leaves one large page partly filled.  Every layer has a table.
    """
    classes = layer_classes(layers)
    pages = {spec.page_bytes for c in classes for spec, _ in c.specs}
    large = math.lcm(*pages)
    by_group = math.lcm(*(_class_bytes(c) for c in classes))
    tables, held, kept = [], Fraction(0), 1
    for members in classes:
        probe = members.probe(members.declared_block_size)
        blocks = mean_blocks([probe], load, held_blocks)
        for spec, count in members.specs:
            small_pages = large // spec.page_bytes
            held += blocks * count * Fraction(1, small_pages)
            kept += cdiv(transient_blocks(probe, load) * count, small_pages) + 1
            tables.append((probe, count))
    requests = max(Fraction(0), Fraction(budget_bytes // large - kept) * Fraction(1, held))
    note = f"large page {large:,} bytes; {by_group:,} for pages of whole groups"
    return Peer(name="lcm_pages", requests=requests, cost=_cost(tables, load), note=note)


def layer_pools(layers: Sequence[CacheLayer], load: Load, budget_bytes: int) -> Peer:
    """One pool a layer, with a null page each, sized for this workload."""
    held, reserve, tables = Fraction(0), 0, []
    for members in layer_classes(layers):
        probe = members.probe(members.declared_block_size)
        held += mean_blocks([probe], load, held_blocks) * _class_bytes(members)
        reserve += (1 + transient_blocks(probe, load)) * _class_bytes(members)
        tables.append((probe, len(members.layers)))
    requests = max(Fraction(0), Fraction(Fraction(budget_bytes - reserve), held))
    note = f"{sum(count for _, count in tables)} pools, right for this workload only"
    return Peer(name="layer_pools", requests=requests, cost=_cost(tables, load), note=note)
