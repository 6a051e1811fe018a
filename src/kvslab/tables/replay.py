"""Requests played against several plans: what each of them really serves, as a table."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from pathlib import Path

import pandas as pd

from kvslab.capacity import Load
from kvslab.fit import steady_requests
from kvslab.plan import Plan
from kvslab.simulate import Request, Simulation, Tally, load_of_requests, read_trace, replay_all, sha256_of
from kvslab.tables.fitting import rounded
from kvslab.tables.layout import percent

KNOWN_TRACES = {
    "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df": (
        "kvcache-ai/Mooncake, FAST25-release, conversation_trace.jsonl"
    )
}
"""Published traces by the SHA-256 of their text."""


def tally_rows(plans: dict[str, Plan], load: Load, tallies: dict[str, Tally]) -> list[dict[str, object]]:
    """One row a planner: what `steady` says of the workload, and what a replay saw.

    `mean_running` is over the steps in which some request waited for blocks: only then
    does the pool, and not the arrivals, set the number.
    """
    rows: list[dict[str, object]] = []
    base = tallies["overlay"].num_steps if "overlay" in tallies else 0
    for name, tally in tallies.items():
        crowded = Fraction(tally.crowded_running, max(1, tally.crowded_steps))
        rows.append(
            {
                "slab": name,
                "num_groups": len(plans[name].slab.groups),
                "requests_steady": rounded(steady_requests(plans[name], load)),
                "mean_running": rounded(crowded) if tally.crowded_steps else None,
                "peak_running": tally.peak_running,
                "num_steps": tally.num_steps,
                "steps_change_percent": percent(Fraction(tally.num_steps, base)) if base else None,
                "crowded_steps": tally.crowded_steps,
                "mean_wait_steps": rounded(Fraction(tally.waited_steps, max(1, tally.num_finished)), 1),
                "num_finished": tally.num_finished,
                "num_shortfalls": tally.num_shortfalls,
            }
        )
    return rows


def simulations_of(
    plans: dict[str, Plan], max_num_batched_tokens: int
) -> dict[str, Callable[[], Simulation]]:
    """What makes an empty pool of each plan."""

    def maker(plan: Plan) -> Callable[[], Simulation]:
        return lambda: Simulation(
            plan.slab.groups, plan.num_blocks, max_num_batched_tokens=max_num_batched_tokens
        )

    return {name: maker(plan) for name, plan in plans.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSource:
    """Requests that can be read again and again.

    Args:
        name: Where they come from.
        arrivals: When they arrive, in words.
        num_requests: How many.
        lengths: `(tokens, how many requests of that length)`.
        sha256: Of the file's text; of the requests themselves where there is no file.
        read: Starts reading them.
    """

    name: str
    arrivals: str
    num_requests: int
    lengths: tuple[tuple[int, int], ...]
    sha256: str
    read: Callable[[], Iterable[Request]]

    def load(self, *, max_in_flight_tokens: int) -> Load:
        """The workload that they make."""
        return Load(lengths=self.lengths, max_in_flight_tokens=max_in_flight_tokens)


def trace_requests(
    trace: Path | Sequence[Request], *, name: str = "", step_ms: int | None = None, limit: int | None = None
) -> RequestSource:
    """A trace file, or requests made up beforehand, as a source.

    Args:
        trace: A file in Mooncake's form, or the requests.
        name: Where they come from; by default a published trace's name, or the file's.
        step_ms: Milliseconds of a step; without it all requests are there at once.
        limit: The first so many requests of the file.

    Raises:
        InputError: The file is malformed.
    """
    if isinstance(trace, Path):
        path = trace
        digest, arrivals = sha256_of(path), "all at once"
        name = name or KNOWN_TRACES.get(digest, path.name)
        if step_ms is not None:
            arrivals = f"as recorded, {step_ms} ms a step"

        def read() -> Iterable[Request]:
            return read_trace(path, step_ms=step_ms, limit=limit)
    else:
        made = tuple(trace)
        digest = sha256(repr(made).encode()).hexdigest()
        arrivals = "as made"

        def read() -> Iterable[Request]:
            return made

    lengths = load_of_requests(read(), max_in_flight_tokens=1).lengths
    return RequestSource(
        name=name,
        arrivals=arrivals,
        num_requests=sum(count for _, count in lengths),
        lengths=lengths,
        sha256=digest,
        read=read,
    )


def replay_table(
    source: RequestSource,
    plans: dict[str, Plan],
    load: Load,
    setup: dict[str, object],
    *,
    checkpoint: Path | None = None,
    on_progress: Callable[[str, int], None] = lambda name, num_finished: None,
) -> pd.DataFrame:
    """Play requests against plans, one row a plan.

    Args:
        source: The requests.
        plans: By name, of one budget; `fitted` should be fitted to the source's lengths.
        load: Their workload; its tokens in flight are the tokens of one step.
        setup: Columns that say which layers these are.
        checkpoint: Where to keep what is done, so that an interrupted run continues.
        on_progress: Called with a plan's name and the requests it has finished.

    Raises:
        InputError: The trace is malformed, or a request can never be let in.
    """
    key = {
        "trace_sha256": source.sha256,
        "arrivals": source.arrivals,
        "num_requests": source.num_requests,
        "max_num_batched_tokens": load.max_in_flight_tokens,
        "plans": {
            name: [plan.slab.block_stride, plan.num_blocks, [g.block_size for g in plan.slab.groups]]
            for name, plan in plans.items()
        },
    }
    tallies = replay_all(
        simulations_of(plans, load.max_in_flight_tokens),
        source.read,
        key=key,
        checkpoint=checkpoint,
        on_progress=on_progress,
    )
    about = setup | {
        "budget_bytes": next(iter(plans.values())).budget_bytes,
        "max_in_flight_tokens": load.max_in_flight_tokens,
        "arrivals": source.arrivals,
        "num_requests": source.num_requests,
        "trace_sha256": source.sha256,
    }
    rows = tally_rows(plans, load, tallies)
    return pd.DataFrame([about | row | {"source": source.name} for row in rows])
