"""The fitted planner: split every class of layers, and size its blocks, for one workload.

Since PR 48993 groups need not agree in page sizes, so nothing ties the layers of one
group to those of another.  The stride is the largest group; a class cut into more
groups lowers it and takes more blocks a request.  `fit` finds the plan that serves
most requests by the `steady` formula, exactly, and never fewer than `overlay`, whose
own groups are among the candidates.

Optimal among *even* splits: a class is cut by every k-th layer tuple, never by kind of
layer inside it, and classes are never merged.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from kvslab.capacity import Load, held_blocks, max_concurrency, transient_blocks
from kvslab.errors import InputError, RefusedError
from kvslab.fit.bounds import whole_page_bound, zero_waste_bound
from kvslab.fit.classes import BlockSizes, LayerClass, layer_classes, options_of
from kvslab.fit.search import best_options, frontier_options
from kvslab.generations.overlay import OVERLAY
from kvslab.generations.standard import pack
from kvslab.groups import CacheGroup
from kvslab.intmath import checked_int
from kvslab.layers import CacheLayer, checked_stack
from kvslab.plan import Plan
from kvslab.slab import SlabLayout

Objective = Literal["requests", "tokens"]
"""One of `OBJECTIVES`."""
NOTICEABLE = Fraction(1, 1000)
"""A gain below a tenth of a per cent is not worth more block tables: `min_gain` of the comparisons."""
OBJECTIVES: tuple[Objective, ...] = ("requests", "tokens")
"""What a search can maximise, see `fit`."""
MOST_TOKEN_LENGTHS = 1000
"""Shares of tokens need a common multiple of all lengths, which grows with their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassChoice:
    """How one class of layers is held.

    Args:
        first_layer: Name of its first layer.
        num_layers: Its layers.
        num_groups: Groups that it is cut into.
        block_size: Tokens of one block.
        declared_block_size: Tokens of one block as the model states it.
        largest_bytes: Bytes of the largest of the groups.
    """

    first_layer: str
    num_layers: int
    num_groups: int
    block_size: int
    declared_block_size: int
    largest_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPlan:
    """A plan, the workload it was fitted to, and what it is held against.

    Args:
        plan: Groups, slab and blocks, like any other.
        layers: The stack as declared.
        load: The requests.
        objective: What was maximised.
        block_sizes: Which block sizes were allowed.
        choices: Split and block size of each class.
        overlay: The merged change on the same budget; None where it refuses the stack
            or the budget holds no block of it.

    Source: this project's search; no engine plans so.

    >>> from kvslab import Load, load_layers
    >>> load = Load.of(1_048_576, max_in_flight_tokens=1)
    >>> found = fit(load_layers("deepseek-v4-pro"), load, 28_410_134_921)
    >>> found.plan.num_blocks, found.overlay.num_blocks
    (24639, 23120)
    """

    plan: Plan
    layers: tuple[CacheLayer, ...]
    load: Load
    objective: Objective
    block_sizes: BlockSizes
    choices: tuple[ClassChoice, ...]
    overlay: Plan | None

    @property
    def requests(self) -> Fraction:
        """Requests served at once, by `steady`."""
        return steady_requests(self.plan, self.load)

    @property
    def tokens(self) -> Fraction:
        """Tokens that those requests hold at their full lengths."""
        return self.requests * self.load.mean(lambda tokens: tokens)

    @property
    def overlay_requests(self) -> Fraction | None:
        """Requests of the merged change; None where it has no plan."""
        return None if self.overlay is None else steady_requests(self.overlay, self.load)

    @property
    def gain_over_overlay(self) -> Fraction | None:
        """`requests / overlay_requests - 1`; None where the merged change serves none."""
        before = self.overlay_requests
        return None if not before else Fraction(self.requests, before) - 1

    @property
    def zero_waste_bound(self) -> Fraction:
        """Requests that no planner exceeds, see `kvslab.fit.bounds`."""
        return zero_waste_bound(self.layers, self.load, self.plan.budget_bytes)

    @property
    def whole_page_bound(self) -> Fraction:
        """Requests that no planner exceeds whose pages are whole and whose block sizes are allowed."""
        return whole_page_bound(self.layers, self.load, self.plan.budget_bytes, self.block_sizes)


def steady_requests(plan: Plan, load: Load) -> Fraction:
    """Requests that a plan serves at once, by `steady`."""
    slab = plan.slab
    return max_concurrency(slab.groups, plan.num_blocks, load, "steady", owners=slab.owners)


def fit(
    layers: Sequence[CacheLayer],
    load: Load,
    budget_bytes: int,
    *,
    objective: Objective = "requests",
    block_sizes: BlockSizes = "kernel-legal",
    max_groups: int | None = None,
    min_gain: Fraction | int = 0,
) -> FittedPlan:
    """Find the groups and block sizes that serve a workload best.

    Ties go to `overlay`'s own groups, then to fewer groups, then to declared block sizes.

    Args:
        layers: The model's cache layers.
        load: Request lengths and tokens in flight.
        budget_bytes: Bytes for the pool.
        objective: `requests`: weights count requests.  `tokens`: weights are each
            length's share of the tokens held, and tokens held are maximised.  For one
            length the two are the same.
        block_sizes: Which block sizes are allowed, see `allowed_block_sizes`.
        max_groups: Block tables that a request may have; below overlay's own number the
            plan may serve fewer.
        min_gain: Share of more requests below which `overlay`'s own groups stay; more block
            tables for a gain that nobody notices are a poor trade.

    Raises:
        InputError: The stack is empty, two layers share a name, an option is unknown,
            `min_gain` is negative, or there are more classes of layers than groups allowed.
        BudgetError: The budget does not hold one block.

    >>> from kvslab.models import load_layers
    >>> fitted = fit(
    ...     load_layers("deepseek-v4-pro"), Load.of(1_048_576, max_in_flight_tokens=1), 28_410_134_921
    ... )
    >>> fitted.plan.slab.block_stride, fitted.plan.num_blocks, round(float(fitted.gain_over_overlay), 3)
    (1153024, 24639, 0.065)
    """
    stack = checked_stack(layers)
    checked_int("budget", budget_bytes)
    if min_gain < 0:
        raise InputError("min_gain", min_gain, "zero or more")
    weights = objective_weights(load, objective)
    seeds = _overlay_slabs(stack)
    slab = _searched(stack, load, weights, budget_bytes, block_sizes, max_groups)
    candidates = [*seeds] if slab is None else [*seeds, slab]
    if max_groups is not None:
        candidates = [candidate for candidate in candidates if len(candidate.groups) <= max_groups]
    if not candidates:
        candidates = [_uncut(stack)]

    def rank(candidate: SlabLayout) -> tuple[Fraction, bool, int, bool]:
        requests, fits = _score(candidate, load, weights, budget_bytes)
        stated = candidate.block_outermost and not candidate.lockstep  # as a plan file can state it
        return requests * (1 if candidate is slab else 1 + min_gain), fits, -len(candidate.groups), stated

    best = max(candidates, key=rank)
    overlay = next((seed for seed in seeds if seed.block_stride <= budget_bytes), None)
    return FittedPlan(
        plan=Plan(slab=best, budget_bytes=budget_bytes),
        layers=stack,
        load=load,
        objective=objective,
        block_sizes=block_sizes,
        choices=_choices(stack, best),
        overlay=None if overlay is None else Plan(slab=overlay, budget_bytes=budget_bytes),
    )


def objective_weights(load: Load, objective: Objective) -> tuple[tuple[int, int], ...]:
    """`(tokens, weight)` of each length, the weights counting requests.

    A share `w` of the tokens held by requests of `L` tokens is `w / L` requests.

    Raises:
        InputError: There is no such objective, or there are too many lengths for exact shares.

    >>> objective_weights(Load.of([100, 300], max_in_flight_tokens=1), "tokens")
    ((100, 3), (300, 1))
    """
    match objective:
        case "requests":
            return load.lengths
        case "tokens":
            if len(load.lengths) > MOST_TOKEN_LENGTHS:
                need = f"at most {MOST_TOKEN_LENGTHS:,} different lengths for objective tokens"
                raise InputError("lengths", len(load.lengths), need)
            common = math.lcm(*(tokens for tokens, _ in load.lengths))
            scaled = [(tokens, weight * (common // tokens)) for tokens, weight in load.lengths]
            divisor = math.gcd(*(weight for _, weight in scaled))
            return tuple((tokens, weight // divisor) for tokens, weight in scaled)
        case _:
            raise InputError("objective", objective, f"one of {', '.join(OBJECTIVES)}")


def fitted_groups(
    layers: Sequence[CacheLayer],
    load: Load,
    budget_bytes: int,
    *,
    objective: Objective = "requests",
    block_sizes: BlockSizes = "kernel-legal",
) -> tuple[CacheGroup, ...]:
    """The searched groups alone, whether or not `overlay` does as well; uncut where no plan serves any."""
    stack = checked_stack(layers)
    weights = objective_weights(load, objective)
    slab = _searched(stack, load, weights, budget_bytes, block_sizes)
    return (slab or _uncut(stack)).groups


def _searched(
    stack: Sequence[CacheLayer],
    load: Load,
    weights: Sequence[tuple[int, int]],
    budget_bytes: int,
    block_sizes: BlockSizes,
    max_groups: int | None = None,
) -> SlabLayout | None:
    classes = layer_classes(stack)
    options = [options_of(members, load, weights, block_sizes) for members in classes]
    if max_groups is None:
        chosen = best_options(options, budget_bytes)
    else:
        checked_int("max_groups", max_groups)
        if max_groups < len(classes):
            raise InputError(
                "max_groups", max_groups, f"at least one group for each of {len(classes)} classes"
            )
        points = [choice for choice, _ in frontier_options(options, budget_bytes)]
        fitting = [choice for choice in points if sum(o.num_groups for o in choice) <= max_groups]
        chosen = fitting[-1] if fitting else None
    if chosen is None:
        return None
    cut = [c.cut(option.block_size, option.num_groups) for c, option in zip(classes, chosen, strict=True)]
    return pack([group for groups in cut for group in groups])


def _uncut(stack: Sequence[CacheLayer]) -> SlabLayout:
    classes = layer_classes(stack)
    return pack([group for c in classes for group in c.cut(c.declared_block_size, 1)])


def _overlay_slabs(stack: Sequence[CacheLayer]) -> list[SlabLayout]:
    """What the merged change makes of the stack: as it comes, and with packing opted in."""
    slabs = []
    for packed in (False, True):
        try:
            slab = OVERLAY.lay_out(stack, packed=packed)
        except RefusedError:
            continue
        if slab not in slabs:
            slabs.append(slab)
    return slabs


def _score(
    slab: SlabLayout, load: Load, weights: Sequence[tuple[int, int]], budget_bytes: int
) -> tuple[Fraction, bool]:
    """Requests served, by the objective's weights; a plan that holds a block beats one that holds none."""
    num_blocks = budget_bytes // slab.block_stride
    free = num_blocks - 1 - sum(transient_blocks(group, load) for group in slab.groups)
    probes = {(group.block_size, group.retention): group for group in slab.groups}
    counts = {
        key: sum(weight * held_blocks(group, tokens, load) for tokens, weight in weights)
        for key, group in probes.items()
    }
    held = sum(counts[group.block_size, group.retention] for group in slab.groups)
    return (max(Fraction(0), Fraction(free, held)), num_blocks > 0)


def _choices(stack: Sequence[CacheLayer], slab: SlabLayout) -> tuple[ClassChoice, ...]:
    group_of = {page.layer.name: page.group_id for page in slab.pages}
    choices = []
    for members in layer_classes(stack):
        choices.append(_choice(members, group_of, slab))
    return tuple(choices)


def _choice(members: LayerClass, group_of: dict[str, int], slab: SlabLayout) -> ClassChoice:
    ids = dict.fromkeys(group_of[layer.name] for layer in members.layers)
    return ClassChoice(
        first_layer=members.layers[0].name,
        num_layers=len(members.layers),
        num_groups=len(ids),
        block_size=max(slab.groups[i].block_size for i in ids),
        declared_block_size=members.declared_block_size,
        largest_bytes=max(slab.groups[i].group_bytes for i in ids),
    )
