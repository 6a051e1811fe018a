"""Explain a serving engine's startup log: which planner and formula give each line, and what would fit.

A printed memory figure is rounded to 0.01 GiB, so it stands for an interval of
budgets and a handful of block counts.  A line is *reproduced* by a generation and a
formula where one of those counts gives exactly the printed number.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvslab.capacity import (
    Load,
    admission_bytes,
    auto_fit_max_model_len,
    max_concurrency,
)
from kvslab.errors import InputError, RefusedError
from kvslab.generations import GENERATIONS, Formula, Generation
from kvslab.intmath import UNIT_BYTES
from kvslab.layers import CacheLayer
from kvslab.logs.lines import EngineLog, Statement
from kvslab.printed import BudgetInterval, printed_interval, printed_like
from kvslab.slab import SlabLayout

LOGGED_FORMULAS: tuple[Formula, ...] = ("legacy", "block_sum")
CHECKED = (
    "cache_tokens",
    "pool_tokens",
    "concurrency",
    "num_blocks",
    "needed_gib",
    "estimated_length",
    "fitted_length",
)
MOST_STATEMENTS = 500
"""Different statements about the cache in one log; each is held against every reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One way to read the log: a planner, a row format, the tokens in flight.

    Args:
        rows: Label of the stack of layers.
        generation: The planner.
        slab: Its slab.
        load: Length and tokens in flight.
        formula: How concurrency is counted.
        counts: Block counts that the log allows.
        one: Requests that one block serves by the formula.
        budgets: Budgets that the log allows; None where it states no memory.
        lengths: Longest requests that the engine would estimate for them; empty where the
            log states none.
    """

    rows: str
    generation: Generation
    slab: SlabLayout
    load: Load
    formula: Formula
    counts: range
    one: Fraction
    budgets: BudgetInterval | None
    lengths: range

    @property
    def label(self) -> str:
        """The reading in one line."""
        return f"{self.generation.name}, {self.rows}, {self.load.max_in_flight_tokens:,} in flight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A statement of the log and the readings that give it.

    Args:
        statement: What the log says.
        derived_by: The readings that give it exactly, in words.
    """

    statement: Statement
    derived_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What one pool serves, as a reader of the log should know it.

    Args:
        label: The reading.
        block_stride: Bytes of one block.
        num_blocks: Blocks of the pool, the fewest that the log allows; what follows is for these.
        most_blocks: The most that the log allows.
        formula: The engine's formula and what it gives.
        engine: Requests by the engine's formula.
        steady: Requests by `steady`.
        longest_engine: Longest request by the engine's price, null block ignored; None without memory.
        longest_exact: Longest request by the stride, null block kept.
    """

    label: str
    block_stride: int
    num_blocks: int
    most_blocks: int
    formula: Formula
    engine: Fraction
    steady: Fraction
    longest_engine: int | None
    longest_exact: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The whole answer.

    Args:
        explained: Every checked statement.
        fits: What the pool serves, one entry for each reading that gives most statements;
            for every reading where the log states nothing to tell them apart.
        contradictions: What cannot hold together, in words.
    """

    explained: tuple[Explained, ...]
    fits: tuple[Fit, ...]
    contradictions: tuple[str, ...]


def _in_flight(log: EngineLog, given: int | None) -> tuple[int, ...]:
    if given is not None:
        return (given,)
    batched = log.integer("max_num_batched_tokens")
    if batched is not None:
        return (2 * batched,) if log.async_scheduling else (batched, 2 * batched)
    return (2048, 4096, 8192, 16384)


def _counts(stated: int | None, interval: BudgetInterval | None, stride: int) -> range:
    if stated is not None:
        return range(stated, stated + 1)
    if interval is None:
        return range(0)
    low = interval.low_bytes // stride
    high = (interval.high_bytes - 1) // stride + 1
    return range(low, high)


def _budget(log: EngineLog) -> BudgetInterval | None:
    values = [s.value for s in log.statements if s.fact == "available_gib"]
    # Several workers print their own; the pool is the smallest's.
    return printed_interval(min(values, key=Fraction)) if values else None


def _readings(
    log: EngineLog, stacks: Mapping[str, Sequence[CacheLayer]], in_flight: int | None, dcp: int, length: int
) -> Iterator[Reading]:
    stated, budgets = log.integer("num_blocks_override", "num_blocks"), _budget(log)
    for generation in GENERATIONS.values():
        for rows, layers in stacks.items():
            try:
                slab = generation.lay_out(layers)
            except RefusedError:
                continue
            for tokens in _in_flight(log, in_flight):
                load = Load.of(length, max_in_flight_tokens=tokens, dcp=dcp)
                lengths = range(0)
                if budgets is not None and log.last("estimated_length", "fitted_length") is not None:
                    shortest, longest = (
                        _longest(slab, generation, load, size)
                        for size in (budgets.low_bytes, budgets.high_bytes - 1)
                    )
                    lengths = range(shortest, longest + 1)
                for formula in LOGGED_FORMULAS:
                    yield Reading(
                        rows=rows,
                        generation=generation,
                        slab=slab,
                        load=load,
                        formula=formula,
                        counts=_counts(stated, budgets, slab.block_stride),
                        one=max_concurrency(slab.groups, 1, load, formula),
                        budgets=budgets,
                        lengths=lengths,
                    )


def _given_by(reading: Reading, statement: Statement, *, is_overridden: bool) -> str | None:
    """How a reading gives exactly what the statement prints, in words; None where it does not."""
    groups, stride, load = reading.slab.groups, reading.slab.block_stride, reading.load
    interval = reading.budgets
    match statement.fact:
        case "num_blocks" if interval is not None and not is_overridden:
            count = int(statement.value)
            fits = interval.low_bytes < (count + 1) * stride and count * stride < interval.high_bytes
            return "budget // block stride" if fits else None
        case "cache_tokens" | "concurrency":
            if _matching_counts(reading, statement):
                return f"formula {reading.formula}"
            return _old_tokens(reading, statement)
        case "pool_tokens":
            return _old_tokens(reading, statement)
        case "needed_gib":
            needed = Fraction(
                admission_bytes(groups, stride, load, reading.generation.price), UNIT_BYTES["GiB"]
            )
            same = Fraction(printed_like(needed, "0.00")) == Fraction(statement.value)
            return f"price {reading.generation.price}" if same else None
        case "estimated_length" | "fitted_length" if int(statement.value) in reading.lengths:
            return f"price {reading.generation.price}"
        case _:
            return None


def _old_tokens(reading: Reading, statement: Statement) -> str | None:
    """What older engines logged as tokens: blocks times block size, per group from 0.10 to about 0.19."""
    if statement.fact == "concurrency":
        return None
    num_groups, tokens = len(reading.slab.groups), int(statement.value)
    per_group, rest = divmod(tokens, min(group.block_size for group in reading.slab.groups))
    if rest:
        return None
    if per_group in reading.counts:
        return "blocks * block size"
    least, counts = per_group * num_groups, reading.counts
    split = counts and least < counts.stop and counts.start < least + num_groups
    return "blocks // groups * block size" if split else None


def _matching_counts(reading: Reading, statement: Statement) -> range:
    """The block counts at which a reading prints what the statement says; both grow together."""
    length = reading.load.longest

    def printed(count: int) -> Fraction:
        if statement.fact == "cache_tokens":
            return Fraction(int(reading.one * count * length))
        return Fraction(printed_like(reading.one * count, statement.value))

    stated = Fraction(statement.value)
    low = bisect_left(reading.counts, stated, key=printed)
    return reading.counts[low : bisect_right(reading.counts, stated, key=printed)]


def _longest(slab: SlabLayout, generation: Generation, load: Load, budget_bytes: int) -> int:
    return auto_fit_max_model_len(
        slab.groups, slab.block_stride, budget_bytes, load, generation.price, keep_null_block=False
    )


def _fit(reading: Reading, statements: Iterable[Statement]) -> Fit | None:
    counts = reading.counts
    for statement in statements:
        if statement.fact in ("cache_tokens", "concurrency"):
            found = _matching_counts(reading, statement)
            both = range(max(counts.start, found.start), min(counts.stop, found.stop))
            counts = both or counts
    if not counts:
        return None
    groups, stride, count = reading.slab.groups, reading.slab.block_stride, counts[0]
    interval = reading.budgets
    return Fit(
        label=reading.label,
        block_stride=stride,
        num_blocks=count,
        most_blocks=counts[-1],
        formula=reading.formula,
        engine=max_concurrency(groups, count, reading.load, reading.formula),
        steady=max_concurrency(groups, count, reading.load, "steady"),
        longest_engine=None
        if interval is None
        else _longest(reading.slab, reading.generation, reading.load, interval.low_bytes),
        longest_exact=auto_fit_max_model_len(
            groups, stride, count * stride, reading.load, "stride", keep_null_block=True
        ),
    )


def explain(
    log: EngineLog,
    stacks: Mapping[str, Sequence[CacheLayer]],
    *,
    max_model_len: int | None = None,
    max_in_flight_tokens: int | None = None,
    dcp: int | None = None,
) -> Explanation:
    """Explain a log for a model.

    Args:
        log: The parsed log.
        stacks: The model's layers, by a label for the row format.
        max_model_len: Instead of what the log states, tokens.
        max_in_flight_tokens: Instead of what the log's batch size implies. Without
            either, the engine's usual batch sizes are tried.
        dcp: Decode context parallel size, instead of what the log states.

    Raises:
        InputError: Neither the log nor the caller says how long requests are, or the log
            holds the statements of very many engines.
    """
    length = max_model_len
    if length is None:
        length = log.integer("concurrency_length", "max_model_len")
    if length is None:
        raise InputError("max_model_len", "no line that states it", "--max-model-len")
    shards = dcp if dcp is not None else log.integer("dcp") or 1
    readings = list(_readings(log, stacks, max_in_flight_tokens, shards, length))
    checked = [s for s in log.statements if s.fact in CHECKED]
    distinct = {(s.fact, s.value): s for s in checked}
    if len(distinct) > MOST_STATEMENTS:
        need = f"at most {MOST_STATEMENTS:,}: the startup of one engine"
        raise InputError("log", f"{len(distinct):,} different statements about the cache", need)
    is_overridden = log.last("num_blocks_override") is not None
    given: dict[tuple[str, str], list[str | None]] = {
        key: [_given_by(reading, statement, is_overridden=is_overridden) for reading in readings]
        for key, statement in distinct.items()
    }
    scores = [0 for _ in readings]
    explained = []
    for statement in checked:
        labels: dict[str, None] = {}
        for index, by in enumerate(given[statement.fact, statement.value]):
            if by is not None:
                scores[index] += 1
                labels[f"{readings[index].label}, {by}"] = None
        explained.append(Explained(statement=statement, derived_by=tuple(labels)))
    best = max(scores, default=0)
    fits = [
        fit
        for reading, score in zip(readings, scores, strict=True)
        if score == best and (best or not checked) and (fit := _fit(reading, distinct.values())) is not None
    ]
    contradictions = list(log.contradictions)
    states_memory = log.last("available_gib") is not None
    for item in explained:
        if not item.derived_by and item.statement.fact in ("cache_tokens", "concurrency") and states_memory:
            contradictions.append(
                f"{item.statement.fact} {item.statement.value} follows from the stated memory by no planner:"
                " another model, row format, length, or number of tokens in flight"
            )
    if not checked:  # nothing tells the formulas apart: keep each generation's own
        own = {(generation.name, generation.formula) for generation in GENERATIONS.values()}
        fits = [fit for fit in fits if (fit.label.partition(",")[0], fit.formula) in own]
    return Explanation(
        explained=tuple(explained), fits=tuple(fits), contradictions=tuple(dict.fromkeys(contradictions))
    )
