"""Requests of a real service, one JSON object a line, and playing them against several planners.

The form is that of the Mooncake traces::

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}

`timestamp` is in milliseconds and never falls; lengths are in tokens.  `hash_ids` names
prefix blocks that requests share; this simulation shares no prefixes and skips it.

A file is read line by line and never held.  A replay can be stopped at any step and
continued from its checkpoint with the same result.

Source: kvcache-ai/Mooncake, FAST25-release.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

from kvslab.capacity import Load
from kvslab.errors import InputError
from kvslab.files import Fields, is_there, parse_json, read_json, write_atomically
from kvslab.intmath import checked_int
from kvslab.simulate.simulation import Request, Simulation

FORMAT = "kvslab-replay-1"
MOST_TOKENS = 2**31
MOST_LINE_BYTES = 16 * 1024 * 1024
MOST_BLANK_LINES = 100_000
# A damaged gzip file ends in any of the three.
_UNREADABLE = (OSError, EOFError, zlib.error)


def _unreadable(path: Path, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or str(error) or "an error"
    return InputError(str(path), reason, "a readable trace file")


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    if is_there(path) and not path.is_file():
        raise InputError(str(path), "no ordinary file", "a readable trace file: it is read more than once")
    stream = path.open("rb")
    if stream.read(2) == b"\x1f\x8b":
        stream.close()
        return gzip.open(path, "rb")
    stream.seek(0)
    return stream


def read_trace(path: Path, *, step_ms: int | None = None, limit: int | None = None) -> Iterator[Request]:
    """The requests of a trace file, plain or gzipped, read as they are asked for.

    Args:
        path: The file.
        step_ms: Milliseconds that one step of the engine takes; without it all
            requests are there from the first step on.
        limit: Read so many requests at most.

    Raises:
        InputError: The file cannot be read or has no request, or a line is malformed;
            the line is named.
    """
    if step_ms is not None:
        checked_int("step_ms", step_ms)
    if limit is not None:
        checked_int("limit", limit)
    num_read, latest, num_blank = 0, 0, 0
    try:
        with _open(path) as stream:
            lines = iter(lambda: stream.readline(MOST_LINE_BYTES + 1), b"")
            for number, line in enumerate(lines, start=1):
                if limit is not None and num_read >= limit:
                    return
                where = f"{path}, line {number}"
                if not line.strip():
                    num_blank += 1
                    if num_blank > MOST_BLANK_LINES:
                        raise InputError(where, "another blank line", f"at most {MOST_BLANK_LINES:,}")
                    continue
                timestamp, request = _request(line, where, step_ms)
                if timestamp < latest:
                    raise InputError(f"{where}: timestamp", timestamp, f"at least {latest}, as before")
                latest = timestamp
                num_read += 1
                yield request
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None
    if not num_read:
        raise InputError(str(path), "no request", "at least one line")


def _request(line: bytes, where: str, step_ms: int | None) -> tuple[int, Request]:
    if len(line) > MOST_LINE_BYTES:
        raise InputError(where, "a longer line", f"at most {MOST_LINE_BYTES:,} bytes a line")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(where, "no UTF-8 text", "a JSON object") from None
    fields = Fields(parse_json(text, where), where)
    timestamp = fields.integer("timestamp", minimum=0)
    return timestamp, Request(
        arrival_step=0 if step_ms is None else timestamp // step_ms,
        prompt_tokens=fields.integer("input_length", maximum=MOST_TOKENS),
        output_tokens=fields.integer("output_length", maximum=MOST_TOKENS),
    )


def sha256_of(path: Path) -> str:
    """The SHA-256 of a trace file's text, in hex: the same whether the file is gzipped or not.

    Raises:
        InputError: It cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with _open(path) as stream:
            for chunk in iter(lambda: stream.read(2**20), b""):
                digest.update(chunk)
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None
    return digest.hexdigest()


def load_of_requests(requests: Iterable[Request], *, max_in_flight_tokens: int) -> Load:
    """The workload that requests make: their total lengths, each counted as often as it occurs.

    Raises:
        InputError: There is no request.
    """
    return Load.of((r.total_tokens for r in requests), max_in_flight_tokens=max_in_flight_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What a replay saw so far.

    Args:
        num_steps: Steps played.
        num_read: Requests taken from the trace.
        num_finished: Requests that finished.
        crowded_steps: Steps in which a request waited for blocks.
        crowded_running: Requests running, summed over those steps.
        peak_running: Most requests that ran at once.
        peak_used_blocks: Most blocks in use at once.
        waited_steps: Steps that requests waited, summed over requests let in.
        num_shortfalls: Steps in which the pool would have run out.
    """

    num_steps: int = 0
    num_read: int = 0
    num_finished: int = 0
    crowded_steps: int = 0
    crowded_running: int = 0
    peak_running: int = 0
    peak_used_blocks: int = 0
    waited_steps: int = 0
    num_shortfalls: int = 0


class Replay:
    """Requests played against one pool, step by step.

    Args:
        simulation: The pool, empty.
        requests: By arrival.
        state: Continue from here: the `state` of another replay of the same requests.

    Raises:
        InputError: The state is malformed.
    """

    def __init__(
        self, simulation: Simulation, requests: Iterable[Request], state: object | None = None
    ) -> None:
        self._simulation = simulation
        self._requests = iter(requests)
        self._next: Request | None = None
        self.tally = Tally()
        if state is None:
            self._take()
            return
        fields = Fields(state, "checkpoint")
        counts = Fields(fields.get("tally"), "checkpoint.tally")
        self.tally = Tally(**{name: counts.integer(name, minimum=0) for name in Tally.__slots__})
        rows = fields.sequence("running")
        if not all(isinstance(row, list) and len(row) == 4 for row in rows):
            raise InputError(fields.path("running"), rows, "rows of four integers")
        simulation.restore(rows)  # type: ignore[arg-type]  # restore checks the numbers
        # The request that waits was read already; all before it are running or done.
        self._requests = islice(self._requests, max(0, self.tally.num_read - 1), None)
        if self.tally.num_read:
            self.tally = replace(self.tally, num_read=self.tally.num_read - 1)
            self._take()
        if fields.get("is_read") is True:
            self._next = None

    def _take(self) -> None:
        self._next = next(self._requests, None)
        if self._next is not None:
            self._simulation.check(self._next)
            self.tally = replace(self.tally, num_read=self.tally.num_read + 1)

    @property
    def is_done(self) -> bool:
        """Whether every request has finished."""
        return self._next is None and not self._simulation.num_running

    @property
    def state(self) -> dict[str, Any]:
        """All that is needed to continue, ready for `json.dump`."""
        return {
            "tally": asdict(self.tally),
            "running": [list(row) for row in self._simulation.snapshot()],
            "is_read": self._next is None,
        }

    def advance(self) -> None:
        """Play one step; steps in which nothing runs and nothing arrives are skipped.

        Raises:
            InputError: A request can never be let in.
        """
        simulation, step, waited = self._simulation, self.tally.num_steps, 0
        if self._next is not None and not simulation.num_running:
            step = max(step, self._next.arrival_step)
        is_crowded = False
        while self._next is not None and self._next.arrival_step <= step:
            if not simulation.admit(self._next):
                is_crowded = True
                break
            waited += step - self._next.arrival_step
            self._take()
        running = simulation.num_running
        blocks, finished = simulation.advance()
        tally, used = self.tally, sum(blocks)
        self.tally = Tally(
            num_steps=step + 1,
            num_read=tally.num_read,
            num_finished=tally.num_finished + finished,
            crowded_steps=tally.crowded_steps + is_crowded,
            crowded_running=tally.crowded_running + (running if is_crowded else 0),
            peak_running=max(tally.peak_running, running),
            peak_used_blocks=max(tally.peak_used_blocks, used),
            waited_steps=tally.waited_steps + waited,
            num_shortfalls=tally.num_shortfalls + (used > simulation.usable_blocks),
        )


def replay_all(
    simulations: dict[str, Callable[[], Simulation]],
    requests: Callable[[], Iterable[Request]],
    *,
    key: dict[str, Any],
    checkpoint: Path | None = None,
    steps_between_checkpoints: int = 2000,
    on_progress: Callable[[str, int], None] = lambda name, num_finished: None,
) -> dict[str, Tally]:
    """Play the same requests against several pools, one after the other.

    Args:
        simulations: By name, what makes each empty pool.
        requests: Starts reading the requests anew.
        key: What the result depends on; a checkpoint of another key is refused.
        checkpoint: Where to keep what is done; it is read first if it is there.
        steps_between_checkpoints: Steps played between two writes.
        on_progress: Called with the pool's name and the requests it has finished.

    Raises:
        InputError: A request can never be let in, or the checkpoint belongs to another run.
    """
    checked_int("steps_between_checkpoints", steps_between_checkpoints)
    done: dict[str, Any] = {}
    current: dict[str, Any] = {}
    if checkpoint is not None and is_there(checkpoint):
        saved = Fields(read_json(checkpoint), str(checkpoint))
        saved.text("format", choices=(FORMAT,))
        if saved.get("key") != json.loads(json.dumps(key)):
            raise InputError(str(checkpoint), "a checkpoint of another run", "the same trace and options")
        done, current = (_object(saved, name) for name in ("done", "current"))

    def save() -> None:
        if checkpoint is not None:
            content = {"format": FORMAT, "key": key, "done": done, "current": current}
            write_atomically(checkpoint, json.dumps(content) + "\n")

    for name, make in simulations.items():
        if name in done:
            continue
        replay = Replay(make(), requests(), current.get(name))
        while not replay.is_done:
            replay.advance()
            if replay.tally.num_steps % steps_between_checkpoints == 0:
                current = {name: replay.state}
                save()
            if replay.tally.num_steps % 50 == 0:
                on_progress(name, replay.tally.num_finished)
        done[name], current = asdict(replay.tally), {}
        on_progress(name, replay.tally.num_finished)
        save()
    return {name: _tally(done[name], name) for name in simulations}


def _object(fields: Fields, name: str) -> dict[str, Any]:
    value = fields.get(name)
    if not isinstance(value, dict):
        raise InputError(fields.path(name), value, "a JSON object")
    return value


def _tally(value: object, where: str) -> Tally:
    fields = Fields(value, where)
    return Tally(**{name: fields.integer(name, minimum=0) for name in Tally.__slots__})
