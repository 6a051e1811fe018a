"""A block-level simulation of one pool, which checks what `capacity` claims.

Requests arrive, their prompts are computed in chunks, they decode a token a step,
windows are freed behind them, they finish.  In every step the batch computes at most
`max_num_batched_tokens` tokens; a request needs, in each group, the blocks of the
tokens that its new tokens can see and of the new tokens themselves.

Nothing here uses the formulas of `capacity` to count blocks: a block is counted when
a token of it is live.  The formulas enter in one place only, to decide who is let in.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvslab.capacity import Load, held_blocks, peak_blocks, transient_blocks
from kvslab.errors import InputError
from kvslab.groups import CacheGroup
from kvslab.intmath import cdiv, checked_int
from kvslab.layers import FullHistory, LocalChunk, RecurrentState, SlidingWindow

Admission = Literal["block_sum", "steady"]
"""How a simulation decides who is let in, see `Simulation`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request.

    Args:
        arrival_step: The first step in which it may run.
        prompt_tokens: Tokens to compute in chunks.
        output_tokens: Tokens to decode after them.
    """

    arrival_step: int
    prompt_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        checked_int("arrival_step", self.arrival_step, minimum=0)
        checked_int("prompt_tokens", self.prompt_tokens)
        checked_int("output_tokens", self.output_tokens)

    @property
    def total_tokens(self) -> int:
        """Tokens at its end."""
        return self.prompt_tokens + self.output_tokens


def poisson_requests(
    num_requests: int,
    *,
    steps_between: int,
    prompt_tokens: Sequence[int],
    output_tokens: Sequence[int],
    seed: int,
) -> tuple[Request, ...]:
    """Requests whose gaps are exponential with this mean and whose lengths are drawn from the lists.

    The same seed gives the same requests.
    """
    rng = random.Random(seed)
    requests, step = [], 0
    for _ in range(num_requests):
        requests.append(
            Request(
                arrival_step=step,
                prompt_tokens=rng.choice(prompt_tokens),
                output_tokens=rng.choice(output_tokens),
            )
        )
        step += round(rng.expovariate(1 / steps_between))
    return tuple(requests)


@dataclass(slots=True)
class _Running:
    request: Request
    computed_tokens: int = 0
    # Per kind of group: first live block and the block after the last one.
    spans: list[tuple[int, int]] = field(default_factory=list)

    @property
    def num_prompt_left(self) -> int:
        return max(0, self.request.prompt_tokens - self.computed_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """What a simulation saw.

    Args:
        num_steps: Steps until the last request finished.
        num_finished: Requests that finished.
        peak_running: Most requests that ran at once.
        peak_blocks: Most blocks of each group in use at once.
        peak_used_blocks: Most blocks of the pool in use at once.
        used_blocks: Blocks in use in every step.
        running: Requests running in every step.
        num_shortfalls: Steps in which the pool would have run out.
    """

    num_steps: int
    num_finished: int
    peak_running: int
    peak_blocks: tuple[int, ...]
    peak_used_blocks: int
    used_blocks: tuple[int, ...]
    running: tuple[int, ...]
    num_shortfalls: int


def _live_span(group: CacheGroup, computed: int, new: int) -> tuple[int, int]:
    """Blocks that a request needs while tokens `computed` to `computed + new - 1` are computed."""
    match group.retention:
        case FullHistory():
            first = 0
        case SlidingWindow(window_tokens=window):
            first = max(0, computed - window + 1)
        case LocalChunk(chunk_tokens=chunk):
            first = computed // chunk * chunk
        case RecurrentState():
            return (0, 1)
    return (first // group.block_size, cdiv(computed + new, group.block_size))


class Simulation:
    """A pool and the requests in it; `run` plays it to the end.

    Args:
        groups: The cache groups.
        num_blocks: Blocks of the pool, the null block included.
        max_num_batched_tokens: Tokens that one step computes at most.
        admission: Who is let in: `block_sum` reserves every request's peak, tokens in
            flight included; `steady` reserves what it holds between steps, and one
            batch's tokens in flight for all.
        prefill_first: Decode only while no prompt is left to compute; otherwise decodes
            go first and prompts take the rest of the batch.

    Raises:
        InputError: A number is out of range.
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        num_blocks: int,
        *,
        max_num_batched_tokens: int,
        admission: Admission = "steady",
        prefill_first: bool = False,
    ) -> None:
        self._groups = tuple(groups)
        # Groups of one block size and retention hold blocks in step, so each kind is played once.
        kinds = {(group.block_size, group.retention): group for group in self._groups}
        self._kinds = tuple(kinds.values())
        self._kind_of = [list(kinds).index((group.block_size, group.retention)) for group in self._groups]
        self._free_blocks = checked_int("num_blocks", num_blocks, minimum=2) - 1
        self._batch_tokens = checked_int("max_num_batched_tokens", max_num_batched_tokens)
        if admission not in ("block_sum", "steady"):
            raise InputError("admission", admission, "block_sum or steady")
        self._admission = admission
        self._prefill_first = prefill_first
        self._running: list[_Running] = []
        self._reserved = 0

    def _reservation(self, request: Request) -> int:
        load = Load.of(request.total_tokens, max_in_flight_tokens=self._batch_tokens)
        count = peak_blocks if self._admission == "block_sum" else held_blocks
        blocks = [count(kind, request.total_tokens, load) for kind in self._kinds]
        return sum(blocks[i] for i in self._kind_of)

    def _transient(self) -> int:
        if self._admission == "block_sum":
            return 0
        load = Load.of(1, max_in_flight_tokens=self._batch_tokens)
        return sum(transient_blocks(group, load) for group in self._groups)

    def run(self, requests: Iterable[Request], *, max_steps: int = 10_000_000) -> SimulationResult:
        """Play requests, in order of arrival, until all have finished.

        Raises:
            InputError: A request can never be let in, or `max_steps` do not suffice.
        """
        waiting = deque(sorted(requests, key=lambda request: request.arrival_step))
        for request in waiting:
            self.check(request)
        peaks = [0 for _ in self._groups]
        used_blocks: list[int] = []
        running: list[int] = []
        shortfalls = finished = step = 0
        while waiting or self._running:
            if step >= max_steps:
                raise InputError("max_steps", max_steps, "enough steps for every request to finish")
            while waiting and waiting[0].arrival_step <= step and self.admit(waiting[0]):
                waiting.popleft()
            running.append(len(self._running))
            totals, retired = self.advance()
            peaks = [max(a, b) for a, b in zip(peaks, totals, strict=True)]
            used_blocks.append(sum(totals))
            shortfalls += sum(totals) > self._free_blocks
            finished += retired
            step += 1
        return SimulationResult(
            num_steps=step,
            num_finished=finished,
            peak_running=max(running, default=0),
            peak_blocks=tuple(peaks),
            peak_used_blocks=max(used_blocks, default=0),
            used_blocks=tuple(used_blocks),
            running=tuple(running),
            num_shortfalls=shortfalls,
        )

    @property
    def num_running(self) -> int:
        """Requests let in and not finished."""
        return len(self._running)

    @property
    def usable_blocks(self) -> int:
        """Blocks of the pool without the null block."""
        return self._free_blocks

    def check(self, request: Request) -> None:
        """Refuse a request that an empty pool could not let in.

        Raises:
            InputError: It needs more blocks than the pool has.
        """
        capacity = self._free_blocks - self._transient()
        if self._reservation(request) > capacity:
            need = (
                f"at most {capacity:,} blocks, the pool less what is reserved"
                if capacity > 0
                else f"a pool of more than the {self._transient():,} blocks reserved for tokens in flight"
            )
            raise InputError("request", f"{self._reservation(request):,} blocks", need)

    def admit(self, request: Request) -> bool:
        """Let a request in if its reservation fits; says whether it did."""
        reservation = self._reservation(request)
        if self._reserved + reservation > self._free_blocks - self._transient():
            return False
        self._reserved += reservation
        self._running.append(_Running(request, spans=[(0, 0) for _ in self._kinds]))
        return True

    def advance(self) -> tuple[list[int], int]:
        """Play one step: blocks of each group that were live in it, and requests that finished."""
        by_kind = self._step()
        return [by_kind[i] for i in self._kind_of], self._retire()

    def snapshot(self) -> list[tuple[int, int, int, int]]:
        """`(arrival_step, prompt_tokens, output_tokens, computed_tokens)` of each running request."""
        return [
            (r.request.arrival_step, r.request.prompt_tokens, r.request.output_tokens, r.computed_tokens)
            for r in self._running
        ]

    def restore(self, rows: Iterable[Sequence[int]]) -> None:
        """Continue from a snapshot, in place of whatever runs.

        Raises:
            InputError: A number is out of range.
        """
        self._running, self._reserved = [], 0
        for arrival_step, prompt_tokens, output_tokens, computed_tokens in rows:
            request = Request(
                arrival_step=arrival_step, prompt_tokens=prompt_tokens, output_tokens=output_tokens
            )
            checked_int("computed_tokens", computed_tokens, minimum=0, maximum=request.total_tokens)
            spans = [
                _live_span(kind, computed_tokens, 0) if computed_tokens else (0, 0) for kind in self._kinds
            ]
            self._running.append(_Running(request, computed_tokens=computed_tokens, spans=spans))
            self._reserved += self._reservation(request)

    def _step(self) -> list[int]:
        """Compute one batch; returns the blocks of each kind of group that were live meanwhile."""
        left = self._batch_tokens
        prefilling = [r for r in self._running if r.num_prompt_left]
        decoding = (
            [] if self._prefill_first and prefilling else [r for r in self._running if not r.num_prompt_left]
        )
        scheduled = []
        for entry in decoding[:left]:
            scheduled.append((entry, 1))
            left -= 1
        for entry in prefilling:
            new = min(left, entry.num_prompt_left)
            if new:
                scheduled.append((entry, new))
                left -= new
        for entry, new in scheduled:
            entry.spans = [_live_span(kind, entry.computed_tokens, new) for kind in self._kinds]
        totals = [
            sum(end - first for first, end in column)
            for column in zip(*(r.spans for r in self._running), strict=True)
        ]
        for entry, new in scheduled:
            entry.computed_tokens += new
            # What the next token will see; blocks behind a window are free now.
            entry.spans = [
                (_live_span(kind, entry.computed_tokens, 0)[0], end)
                for kind, (_, end) in zip(self._kinds, entry.spans, strict=True)
            ]
        return totals or [0 for _ in self._kinds]

    def _retire(self) -> int:
        done = [r for r in self._running if r.computed_tokens >= r.request.total_tokens]
        for entry in done:
            self._reserved -= self._reservation(entry.request)
            self._running.remove(entry)
        return len(done)
