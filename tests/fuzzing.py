"""Seeded hostile inputs for the four readers of a user's files, and what must hold for each of them.

`case(reader, seed, index)` is always the same input, so a failure is named by three words.
An input is a valid one that was spoilt: some by its structure (a field dropped, renamed,
given another type or an absurd number), some by its bytes (a bit flipped, a file cut),
some by both; a share is left valid, so that the way behind the reader is walked too.

`check` walks it as a user would: config -> layers -> every generation -> plan -> what it
serves; log -> explanation; trace -> replay.  That works, or ends in a `PlanError` of one
readable line.  Anything else, and anything slow, is a bug: an `Unclear`.
"""

import gzip
import json
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from kvslab.capacity import Load, summarize
from kvslab.errors import LayoutError, PlanError
from kvslab.fit import plan_to_json
from kvslab.fit.plan_file import plan_from_json
from kvslab.generations import GENERATIONS
from kvslab.groups import CacheGroup
from kvslab.layers import KINDS, CacheLayer, layers_from_json, layers_to_json
from kvslab.logs import explain, read_log
from kvslab.models import (
    OTHER_PRESETS,
    PRESETS,
    CacheOptions,
    default_max_model_len,
    load_layers,
    load_model,
    preset_config,
    read_model,
)
from kvslab.plan import Plan
from kvslab.simulate import Replay, Simulation
from kvslab.tables.replay import trace_requests

MOST_SECONDS = 10
HANGS_AFTER_SECONDS = 120
MOST_MESSAGE = 2_000
BUDGETS = (1, 2**20, *([28_410_134_921, 2**53] * 4))
MOST_BYTES = 4 * 2**20
MOST_REQUESTS = 36
MOST_STEPS = 60

# --- values that break things -------------------------------------------------------------

_LONG_DIGITS = "@@long digits@@"
_RAW = {
    _LONG_DIGITS: "9" * 5_000,
    "@@exponent@@": "1e999",
    "@@octal@@": "0123",
    "@@hexadecimal@@": "0x10",
    "@@minus zero@@": "-0",
}
"""JSON tokens that `json.dumps` cannot write, by what stands for them until then."""
_NESTED = re.compile(r'"@@nested ([0-9]+)@@"')


def with_raw_tokens(text: str) -> str:
    """JSON text with the tokens of `_RAW`, and lists in lists, in place of what stands for them."""
    for token, raw in _RAW.items():
        text = text.replace(json.dumps(token), raw)
    return _NESTED.sub(lambda match: "[" * int(match[1]) + "]" * int(match[1]), text)


def hostile_value(rng: random.Random) -> object:
    """A value that a field hardly expects."""
    match rng.randrange(9):
        case 0:
            return rng.choice([None, True, False, [], {}, "", 0, -1, 1])
        case 1:
            return rng.choice([2**31, 2**53, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30, 10**400])
        case 2:
            return rng.choice([0.5, 4.0, -0.0, 1e308, 1e-320, float("nan"), float("inf"), -float("inf")])
        case 3:
            return rng.choice(["4", "1e3", "fp8", "None", "true", "\x00", "a\nb", "\x1b[31m", "\u2028", "Ω"])
        case 4:
            return rng.choice(["\ud800", "\udfff\ud800", "x" * 30_000, "é" * 3_000, "\n" * 500])
        case 5:
            return rng.choice([[1], [[]], [None] * 70, {"a": 1}, {"": {}}, [{}], ["full_attention"]])
        case 6:
            # about where Python's own recursion ends
            return f"@@nested {rng.choice([2, 40, 400, rng.randrange(800, 1000)])}@@"
        case 7:
            return rng.choice(tuple(_RAW))
        case _:
            return rng.randrange(-(2 ** rng.randrange(1, 70)), 2 ** rng.randrange(1, 70))


def hostile_name(rng: random.Random, name: str) -> str:
    """A field's name with a slip in it, or another name altogether."""
    middle = rng.randrange(len(name) + 1)
    return rng.choice(
        [
            name.upper(),
            name[:middle] + name[middle + 1 :],
            name[:middle] + "_" + name[middle:],
            f"{name} ",
            f"{name}\n{name}",
            f"{name}\x00\x1b[2J",
            "",
            name * 700,
            "\ud83d",
            "__class__",
            "n\u2028m",
        ]
    )


def nudged(rng: random.Random, value: object) -> object:
    """Nearly the value that was there."""
    if isinstance(value, bool) or value is None or isinstance(value, str | list | dict):
        return rng.choice([[value], {"value": value}, json.dumps(value)[:50], not value])
    if isinstance(value, float):
        return rng.choice([-value, value / 3, value * 1e300])
    assert isinstance(value, int)
    return rng.choice(
        [
            value + 1,
            value - 1,
            -value,
            value * 2,
            value * 1000,
            value**3,
            float(value % 2**60),
            str(value),
            value // 2,
        ]
    )


# --- spoiling JSON by structure -----------------------------------------------------------


def _containers(value: object) -> Iterator[Any]:
    """Every object and list inside a JSON value, itself first."""
    todo = [value]
    while todo:
        here = todo.pop()
        if isinstance(here, dict | list):
            yield here
            todo += here.values() if isinstance(here, dict) else here[:200]


def spoil(rng: random.Random, value: Any) -> Any:
    """Change one place of a JSON value, in place where that can be done."""
    places = [here for here in _containers(value) if here]
    if not places or rng.random() < 0.03:
        return hostile_value(rng)
    # A file's own fields are as likely as all that lies deeper.
    here = places[0] if rng.random() < 0.5 else rng.choice(places)
    if isinstance(here, dict):
        _spoil_object(rng, here)
    else:
        _spoil_list(rng, here)
    return value


def _spoil_object(rng: random.Random, fields: dict[str, Any]) -> None:
    name = rng.choice(list(fields))
    match rng.randrange(7):
        case 0:
            del fields[name]
        case 1:
            fields[hostile_name(rng, name)] = fields.pop(name)
        case 2 | 3:
            fields[name] = hostile_value(rng)
        case 4 | 5:
            fields[name] = nudged(rng, fields[name])
        case _:
            other = rng.choice(list(fields))
            fields[name], fields[other] = fields[other], fields[name]


def _spoil_list(rng: random.Random, entries: list[Any]) -> None:
    at = rng.randrange(len(entries))
    match rng.randrange(9):
        case 0:
            del entries[at]
        case 1:
            entries[at:at] = [json.loads(json.dumps(entries[at]))]
        case 2 | 3:
            entries[at] = hostile_value(rng)
        case 4:
            entries[at] = nudged(rng, entries[at])
        case 5:
            rng.shuffle(entries)
        case 6:
            del entries[at:]
        case 7:
            entries += [entries[at]] * rng.choice([1, 30, 300])
        case _:
            other = rng.randrange(len(entries))
            entries[at], entries[other] = entries[other], entries[at]


def json_text(rng: random.Random, value: object) -> str:
    """JSON in one of the ways in which people and programs write it, now and then a field twice."""
    text = json.dumps(value, indent=rng.choice([None, None, 1, 4]), ensure_ascii=rng.random() < 0.9)
    if isinstance(value, dict) and value and rng.random() < 0.03:
        twice = json.dumps({rng.choice(list(value)): hostile_value(rng)})[1:-1]
        text = "{" + twice + ", " + text.lstrip()[1:]
    return with_raw_tokens(text)


# --- spoiling bytes -----------------------------------------------------------------------


def spoil_bytes(rng: random.Random, raw: bytes) -> bytes:
    """Change one place of a file without a look at what it means."""
    data = bytearray(raw)
    at = rng.randrange(len(data) + 1)
    few = rng.choice([1, 1, 2, 7, 300])
    match rng.randrange(12):
        case 0 | 1 if data:
            at = min(at, len(data) - 1)
            data[at] ^= 1 << rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3])
        case 2 if data:
            data[min(at, len(data) - 1)] = rng.randrange(32, 127)
        case 3:
            del data[at:]
        case 4:
            del data[at : at + few]
        case 5:
            data[at:at] = rng.randbytes(few) if few > 2 else rng.choice([b"0", b"9", b"-", b".", b'"', b","])
        case 6:
            data[at:at] = rng.choice([b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80"])
        case 7:
            data[at:at] = rng.choice(
                [b"\x00", b"\x00" * 40, b"\r", b"\n\n", b"\x1a", b"\x0c", b"\xe2\x80\xa8"]
            )
        case 8:
            data[:0] = rng.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b", b"#!"])
        case 9:
            data = data.replace(b"\n", rng.choice([b"\r\n", b"\r", b"\n\n"]))
        case 10:
            data[at:at] = data[at : at + 40 * few]
        case _:
            data = bytearray(bytes(data).decode("utf-8", "replace").encode(rng.choice(["utf-16", "utf-32"])))
    return bytes(data)


def _spoilt(rng: random.Random, value: Any, valid_share: float) -> bytes:
    """JSON bytes: valid, spoilt by structure, by bytes, or by both."""
    how = rng.random()
    by_structure, by_bytes = valid_share <= how < 0.75 or how >= 0.92, how >= 0.75
    if by_structure:
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            value = spoil(rng, value)
    raw = json_text(rng, value).encode("utf-8", "surrogatepass")
    if by_bytes:
        for _ in range(rng.choice([1, 1, 2, 8])):
            raw = spoil_bytes(rng, raw)
    return raw


# --- the four readers: a valid input, and the spoiling of it ------------------------------


@cache
def _config_text(name: str) -> str:
    return json.dumps(preset_config(name))


def config_case(rng: random.Random) -> bytes:
    """A preset's `config.json`, of every family in turn."""
    value = json.loads(_config_text(rng.choice((*PRESETS, *PRESETS, *OTHER_PRESETS))))
    return _spoilt(rng, value, 0.15)


@cache
def _preset_layers(name: str) -> str:
    return json.dumps(layers_to_json(load_layers(name)))


def _made_up_layers(rng: random.Random) -> dict[str, Any]:
    """Layers of random kinds; half of the time their pages divide one another."""
    latent = rng.random() < 0.4
    kinds = ("mla_attention", "sliding_window_mla") if latent else KINDS
    even = rng.random() < 0.5
    entries: list[dict[str, Any]] = []
    for i in range(rng.choice([1, 2, 5, 20, 60]) if rng.random() > 0.003 else rng.choice([700, 3_000])):
        kind = "mla_attention" if latent and not i else rng.choice(kinds)
        ratio = rng.choice([1, 1, 4]) if kind.endswith("mla") or kind == "mla_attention" else 1
        entry: dict[str, Any] = {
            "name": f"layer.{i}",
            "kind": kind,
            "block_size": 64 if even else rng.choice([1, 16, 48, 64, 256, 4096]) * ratio,
            "row_bytes": 2 ** rng.randrange(4, 13) if even else rng.randrange(1, 9_000),
        }
        if ratio > 1:
            entry["compress_ratio"] = ratio
        if kind in ("sliding_window", "sliding_window_mla"):
            entry["sliding_window"] = rng.choice([1, 8, 128, 4096, 2**40])
        elif kind == "chunked_local_attention":
            entry["attention_chunk_size"] = rng.choice([1, 8192])
        elif kind == "mamba":
            entry["page_bytes"] = 64 * 2**12
            entry.pop("row_bytes")
        if not even and rng.random() < 0.3:
            entry["alignment"] = rng.choice([1, 512, 576, 2**30])
        entries.append(entry)
    return {"layers": entries}


def layers_case(rng: random.Random) -> bytes:
    """A layer file: a preset's, or made up."""
    if rng.random() < 0.25:
        value = json.loads(_preset_layers(rng.choice(OTHER_PRESETS + PRESETS)))
    else:
        value = _made_up_layers(rng)
    return _spoilt(rng, value, 0.15)


_LOG_LINES = (
    "INFO 07-18 10:00:01 vLLM API server version 0.26.0",
    "INFO 07-18 10:00:01 non-default args: {'max_model_len': 131072, 'max_num_batched_tokens': 8192}",
    "(EngineCore pid=77) INFO 07-18 10:00:09 [kv_cache_utils.py:1087] Available KV cache memory: 26.46 GiB",
    "INFO [kv_cache_utils.py:1087] GPU KV cache size: 3,192,641 tokens",
    "INFO Maximum concurrency for 131,072 tokens per request: 3.04x",
    "Chunked prefill is enabled with max_num_batched_tokens=8192.",
    "ValueError: To serve at least one request with the models's max seq len (30000), (6.66 GiB KV cache is"
    " needed, which is larger than the available KV cache memory (5.44 GiB). Based on the available memory,"
    " the estimated maximum model length is 13528.",
    "# GPU blocks: 21709, # CPU blocks: 0",
    "Overriding num_gpu_blocks=21709 with num_gpu_blocks_override=512",
    "Asynchronous scheduling is enabled.",
    "decode_context_parallel_size=2",
    "max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (20640)",
    "max_model_len reduced from 1048576 to 524288 to fit",
    "Using max model len 40960",
    "2026-07-18 loading weights took 12.3 seconds",
    "",
)
_LOG_NUMBERS = (
    *("0", "1", "-1", "0.00", "1.5", "1e9", "nan", "inf", "١٢٣", "1,,2", "1,2,3", "0x10", "00012"),
    *("9007199254740992", "9007199254740993", "18446744073709551616", "9" * 25, "9" * 4_400, "0.000000001"),
    *("99999999.99", "1" + ",000" * 9, "3.", ".5", "1 000", "1\u00a0000", "½"),
)


def _spoil_log(rng: random.Random, lines: list[str]) -> None:
    at = rng.randrange(len(lines))
    match rng.randrange(9):
        case 0 | 1 | 2:
            words = lines[at].split(" ")
            digits = [i for i, word in enumerate(words) if any(c.isdecimal() for c in word)] or [0]
            words[rng.choice(digits)] = rng.choice(_LOG_NUMBERS)
            lines[at] = " ".join(words)
        case 3:
            lines[at] = "".join(c if not c.isdecimal() else rng.choice("0123456789,.") for c in lines[at])
        case 4:
            lines[at:at] = [lines[at]] * rng.choice([1, 3, 50])
        case 5:
            lines[at] = lines[at] * rng.choice([2, 200])
        case 6:
            lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
        case 7:
            lines[at] = lines[at].replace(" ", rng.choice(["  ", "\t", "", "\u00a0", " " * 3_000]))
        case _:
            lines[at] = rng.choice(["\x1b[32m", "\x00", "{" * 900, "#" * 9_000, "(" * 3_000]) + lines[at]


def log_case(rng: random.Random) -> bytes:
    """Lines of startup logs of several releases, mixed."""
    lines = [rng.choice(_LOG_LINES) for _ in range(rng.choice([1, 3, 8, 20]))]
    how = rng.random()
    if how > 0.15:
        for _ in range(rng.choice([1, 1, 2, 5])):
            _spoil_log(rng, lines)
            lines = [line[:100_000] for line in lines[:300]]
    raw = "\n".join(lines).encode("utf-8", "surrogatepass")
    if how > 0.75:
        for _ in range(rng.choice([1, 1, 2, 8])):
            raw = spoil_bytes(rng, raw)
    return raw


def _zipped(rng: random.Random, raw: bytes) -> bytes:
    """A gzip file, often a broken one."""
    data = gzip.compress(raw, compresslevel=rng.choice([0, 1, 9]), mtime=0)
    match rng.randrange(7):
        case 0:
            return data[: rng.randrange(len(data))]
        case 1:
            return spoil_bytes(rng, data)
        case 2:
            middle = rng.randrange(len(raw) + 1)
            return gzip.compress(raw[:middle], mtime=0) + gzip.compress(raw[middle:], mtime=0)
        case 3:
            return data + rng.choice([b"\x00" * 9, b"garbage", rng.randbytes(30)])
        case _:
            return data


def trace_case(rng: random.Random) -> bytes:
    """A Mooncake trace, plain or gzipped."""
    at, rows = 0, []
    for i in range(rng.choice([1, 4, 12, 30])):
        at += rng.choice([0, 3, 2_000, 2**40])
        rows.append(
            {
                "timestamp": at,
                "input_length": rng.choice([1, 900, 30_000]),
                "output_length": rng.choice([1, 40]),
                "hash_ids": [0, i],
            }
        )
    how = rng.random()
    if how > 0.2:
        for _ in range(rng.choice([1, 1, 3])):
            i = rng.randrange(len(rows))
            rows[i] = spoil(rng, rows[i])
    lines = [json.dumps(row, ensure_ascii=rng.random() < 0.9) for row in rows]
    if how > 0.5:
        i = rng.randrange(len(lines))
        lines[i] = rng.choice(["", "   ", "null", lines[i] + lines[i], lines[i][:-1], "{" * 900, "[" * 5_000])
    text = with_raw_tokens("\n".join(lines) + rng.choice(["", "\n", "\n\n"]))
    raw = text.encode("utf-8", "surrogatepass")
    if how > 0.8:
        raw = spoil_bytes(rng, raw)
    return _zipped(rng, raw) if rng.random() < 0.4 else raw


# --- the way behind each reader -----------------------------------------------------------


class Unclear(Exception):
    """An input that neither works nor ends in one readable line: a bug."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of an input.

    Args:
        accepted: Whether it was read and led to an answer.
        error: The class of the error that refused it, empty where none did.
        message: What the user reads.
        milliseconds: What it took of the processor, so that a busy machine changes nothing.
    """

    accepted: bool
    error: str = ""
    message: str = ""
    milliseconds: float = 0.0


def check_message(error: PlanError) -> None:
    """An error is one line that a terminal can show.

    Raises:
        Unclear: It is not.
    """
    message = str(error)
    if not message.strip() or len(message) >= MOST_MESSAGE:
        raise Unclear(f"a message of {len(message)} characters: {message[:200]!r}")
    if not message.isprintable():
        raise Unclear(f"a message of more than a line, or with control characters: {message[:300]!r}")


def _plan_all(rng: random.Random, layers: tuple[CacheLayer, ...], length: int | None) -> None:
    """Every generation's plan; that one refuses a stack says nothing about the others.

    Raises:
        PlanError: No generation has a plan.
    """
    load = Load.of(length or 8_192, max_in_flight_tokens=rng.choice([1, 8_192, 2**53]))
    budget, packed = rng.choice(BUDGETS), rng.random() < 0.3
    last: PlanError | None = None
    num_plans = 0
    for generation in GENERATIONS.values():
        try:
            plan = Plan(slab=generation.lay_out(layers, packed=packed), budget_bytes=budget)
            summarize(plan, generation, load)
            num_plans += 1
        except PlanError as error:
            check_message(error)
            last = error
            continue
        if plan.slab.padding_bytes < 0 or len(plan.slab.offset_of) != len(layers):
            raise Unclear(f"{generation.name}: a slab that lost a layer")
        if rng.random() < 0.1:
            sum(len(tensor.layers) for tensor in plan.tensors)
            try:
                file = json.loads(json.dumps(plan_to_json(plan)))
            except LayoutError:
                continue
            if plan_from_json(file) != plan:
                raise Unclear(f"{generation.name}: the plan file is another plan")
    if layers_from_json(json.loads(json.dumps(layers_to_json(layers)))) != layers:
        raise Unclear("the layer file of these layers has others")
    if not num_plans and last is not None:
        raise last


_OPTIONS = (
    CacheOptions(tensor_parallel=2),
    CacheOptions(tensor_parallel=3),
    CacheOptions(tensor_parallel=2**20),
    CacheOptions(block_size=2**20),
    CacheOptions(block_size=1),
    CacheOptions(kv_cache_dtype="fp8"),
    CacheOptions(kv_cache_dtype="nvfp4"),
    CacheOptions(hybrid=False),
    CacheOptions(num_mtp_layers=1),
    CacheOptions(backend="flashmla"),
    CacheOptions(pipeline_parallel=3),
)


def _model(rng: random.Random, path: Path, share_of_options: float = 0.25) -> None:
    options = rng.choice(_OPTIONS) if rng.random() < share_of_options else CacheOptions()
    stack = load_model(str(path), options)
    _plan_all(rng, stack.layers, default_max_model_len(read_model(str(path))))
    if options.num_stages > 1:
        stack.stages(options.pipeline_parallel)


def _layer_file(rng: random.Random, path: Path) -> None:
    _model(rng, path, share_of_options=0.03)  # a layer file takes none


@cache
def _log_stacks(name: str) -> dict[str, tuple[CacheLayer, ...]]:
    if name in PRESETS:
        return {rows: load_layers(name, indexer=rows) for rows in ("fp8", "mxfp4")}
    return {"bf16": load_layers(name)}


def _log(rng: random.Random, path: Path) -> None:
    log = read_log(path)
    name = rng.choice(("gpt-oss-20b", "gpt-oss-20b", "qwen3-next-80b", "deepseek-v4-flash"))
    length = rng.choice([None, 4_096])
    explain(log, _log_stacks(name), max_model_len=length, dcp=rng.choice([None, None, 2]))


@cache
def _groups() -> tuple[CacheGroup, ...]:
    return GENERATIONS["overlay"].lay_out(load_layers("deepseek-v4-flash")).groups


def _trace(rng: random.Random, path: Path) -> None:
    source = trace_requests(path, step_ms=rng.choice([None, 1, 50]), limit=rng.choice([MOST_REQUESTS, 3]))
    pool = Simulation(
        _groups(), rng.choice([2, 3_000, 2**31]), max_num_batched_tokens=rng.choice([64, 8_192])
    )
    replay = Replay(pool, islice(source.read(), MOST_REQUESTS))
    for _ in range(MOST_STEPS):
        if replay.is_done:
            return
        replay.advance()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A reader of a user's file.

    Args:
        make: An input, from a seeded generator.
        walk: Reads the file and goes on to its answer.
        suffix: The file's name ends so.
        command: The command line that reads it, the file's path left out as `FILE`.
    """

    make: Callable[[random.Random], bytes]
    walk: Callable[[random.Random, Path], None]
    suffix: str
    command: tuple[str, ...]


READERS = {
    "config": Reader(
        make=config_case, walk=_model, suffix=".json", command=("plan", "FILE", "--budget", "40GiB")
    ),
    "layers": Reader(
        make=layers_case, walk=_layer_file, suffix=".json", command=("compare", "FILE", "--budget", "1GiB")
    ),
    "log": Reader(
        make=log_case, walk=_log, suffix=".log", command=("explain", "FILE", "--model", "gpt-oss-20b")
    ),
    "trace": Reader(
        make=trace_case,
        walk=_trace,
        suffix=".jsonl",
        command=("simulate", "gpt-oss-20b", "--budget", "4GiB", "--quiet", "--limit", "6", "--trace", "FILE"),
    ),
}


def case(reader: str, seed: int, index: int) -> bytes:
    """The input of this number; the same seed and number give the same bytes."""
    return READERS[reader].make(random.Random(f"{reader} {seed} {index}"))[:MOST_BYTES]


@contextmanager
def _alarm() -> Iterator[None]:
    """Break off what hangs; only the main thread, where this is called, can be told."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise Unclear(f"not done after {HANGS_AFTER_SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, HANGS_AFTER_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check(reader: str, seed: int, index: int, directory: Path) -> Outcome:
    """Walk one input, as a file in this directory.

    Raises:
        Unclear: It neither works nor is refused in one readable line, or takes too long.
    """
    found = READERS[reader]
    path = directory / f"input{found.suffix}"
    path.write_bytes(case(reader, seed, index))
    start = time.process_time()
    outcome = Outcome(accepted=True)
    try:
        with _alarm():
            found.walk(random.Random(f"walk {reader} {seed} {index}"), path)
    except PlanError as error:
        check_message(error)
        outcome = Outcome(accepted=False, error=type(error).__name__, message=str(error))
    except Unclear:
        raise
    except Exception as error:
        raise Unclear(f"{type(error).__name__}: {str(error)[:300]}") from error
    elapsed = time.process_time() - start
    if elapsed > MOST_SECONDS:
        raise Unclear(f"took {elapsed:.1f} s of the processor")
    return Outcome(
        accepted=outcome.accepted, error=outcome.error, message=outcome.message, milliseconds=1e3 * elapsed
    )
