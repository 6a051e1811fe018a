"""Read a serving engine's startup log: which lines say something about the KV cache, and what.

Only the fixed words of a line count, so that prefixes (time, process, rank) do not
matter.  Lines that say nothing here are passed over.

Source: the forms of vLLM 0.6 to 0.32.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import IO

from kvslab.errors import InputError
from kvslab.intmath import MAX_INT

MAX_LINE_CHARACTERS = 20_000
MAX_LINES = 2_000_000
MAX_CHARACTERS = 2**30
MAX_STATEMENTS = 100_000

_INTEGER = r"([0-9][0-9,]{0,24})(?![0-9])"
_DECIMAL = r"([0-9][0-9,]{0,24}(?:\.[0-9]{1,9})?)"

# fact -> (pattern, what the line states); a later pattern of the same fact is another wording.
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("available_gib", rf"Available KV cache memory:\s*{_DECIMAL}\s*GiB"),
    ("available_gib", rf"available KV cache memory \({_DECIMAL}\s*GiB\)"),
    ("available_gib", rf"fit in available GPU memory \({_DECIMAL}\s*GiB available"),
    ("cache_tokens", rf"GPU KV cache size:\s*{_INTEGER}\s*tokens"),
    ("pool_tokens", rf"tokens that can be stored in KV cache \({_INTEGER}\)"),
    ("concurrency_length", rf"Maximum concurrency for\s*{_INTEGER}\s*tokens per request"),
    ("concurrency", rf"Maximum concurrency for\s*[0-9][0-9,]*\s*tokens per request:\s*{_DECIMAL}x"),
    ("num_blocks", rf"#\s*(?:GPU|CUDA|cuda) blocks:\s*{_INTEGER}"),
    ("num_blocks", rf"num_gpu_blocks is:?\s*{_INTEGER}"),
    ("num_blocks", rf"num_gpu_blocks['\"]?\s*[=:]\s*{_INTEGER}"),
    ("num_blocks_override", rf"num_gpu_blocks_override['\"]?\s*[=:]\s*{_INTEGER}"),
    ("max_model_len", rf"max_model_len['\"]?\s*[=:]\s*{_INTEGER}"),
    ("max_model_len", rf"max_seq_len\s*=\s*{_INTEGER}"),
    ("max_model_len", rf"Using max model len\s*{_INTEGER}"),
    ("max_model_len", rf"max seq len \({_INTEGER}\)"),
    ("max_num_batched_tokens", rf"max_num_batched_tokens['\"]?\s*[=:]\s*{_INTEGER}"),
    ("needed_gib", rf"(?<![0-9.,]){_DECIMAL}\s*GiB KV cache is needed"),
    ("needed_gib", rf"\({_DECIMAL}\s*GiB\s*KV cache is needed"),
    ("estimated_length", rf"estimated maximum model length is\s*{_INTEGER}"),
    ("fitted_length", rf"reduced from [0-9][0-9,]* to\s*{_INTEGER}\s*to fit"),
    ("dcp", rf"decode_context_parallel_size['\"]?\s*[=:]\s*{_INTEGER}"),
)
_COMPILED = tuple((fact, re.compile(pattern)) for fact, pattern in _PATTERNS)
# The engine profiles its graphs with a small pool of its own; that says nothing about the cache.
_PROFILING = re.compile(r"num_gpu_blocks=0 with num_gpu_blocks_override")
_ASYNC = re.compile(r"Asynchronous scheduling is enabled|async_scheduling['\"]?\s*[=:]\s*True")
_VERSION = re.compile(r"\bversion\s+(0\.\d+\.\d+)|\(v(0\.\d+\.\d+)")

FACTS: Mapping[str, str] = {
    "available_gib": "memory for the KV cache, rounded to 0.01 GiB",
    "cache_tokens": "concurrency times max_model_len, cut to an integer: not bytes over a rate"
    " (before about vLLM 0.20: blocks times block size)",
    "pool_tokens": "blocks times block size, in engines before vLLM 0.10",
    "concurrency_length": "the length that concurrency is counted for",
    "concurrency": "requests of max_model_len that the pool serves by the engine's formula, rounded to 0.01",
    "num_blocks": "blocks of the pool, the null block included",
    "num_blocks_override": "blocks that the user asked for",
    "max_model_len": "the longest request that is let in",
    "max_num_batched_tokens": "tokens of one batch; twice that can be in flight with async scheduling",
    "needed_gib": "the admission price of one request of max_model_len",
    "estimated_length": "the longest request whose price fits, the null block ignored",
    "fitted_length": "the longest request whose price fits, the null block ignored",
    "dcp": "decode context parallel size",
}
"""What each fact means, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One thing that a log line states.

    Args:
        fact: A key of `FACTS`.
        value: The number as printed, without thousands separators.
        line: Line number, from 1.
    """

    fact: str
    value: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLog:
    """What a log states about the KV cache.

    Args:
        statements: In order of appearance.
        async_scheduling: Whether a line says that scheduling is asynchronous.
        version: The engine's version, where a line names it.
        contradictions: Statements of one fact that cannot all hold, in words.
    """

    statements: tuple[Statement, ...]
    async_scheduling: bool
    version: str | None
    contradictions: tuple[str, ...]

    def last(self, *facts: str) -> str | None:
        """The last printed value of the first of these facts that the log states at all."""
        for fact in facts:
            values = [statement.value for statement in self.statements if statement.fact == fact]
            if values:
                return values[-1]
        return None

    def integer(self, *facts: str) -> int | None:
        """`last` as an integer."""
        value = self.last(*facts)
        return None if value is None else int(value)


def parse_log(lines: Iterable[str], source: str = "log") -> EngineLog:
    """Read a log.

    Args:
        lines: Its lines.
        source: How errors call it.

    Raises:
        InputError: No line states anything that is known here, or the log is absurdly long.

    >>> log = parse_log(["INFO GPU KV cache size: 1,200,598 tokens"])
    >>> log.integer("cache_tokens")
    1200598
    """
    statements: list[Statement] = []
    is_async, version = False, None
    for number, text in enumerate(lines, start=1):
        if number > MAX_LINES:
            raise InputError(source, f"over {MAX_LINES:,} lines", "a startup log")
        line = text[:MAX_LINE_CHARACTERS]
        is_async = is_async or _ASYNC.search(line) is not None
        found_version = _VERSION.search(line)
        if found_version:
            version = found_version[1] or found_version[2]
        if _PROFILING.search(line):
            continue
        seen: set[str] = set()
        for fact, pattern in _COMPILED:
            for match in pattern.finditer(line):
                value = match[1].replace(",", "")
                if value + fact not in seen and 0 < float(value) <= MAX_INT:
                    seen.add(value + fact)
                    statements.append(Statement(fact=fact, value=value, line=number))
        if len(statements) > MAX_STATEMENTS:
            raise InputError(source, f"over {MAX_STATEMENTS:,} statements", "a startup log")
    if not any(s.fact not in ("max_model_len", "max_num_batched_tokens", "dcp") for s in statements):
        need = "a line about KV-cache memory, tokens, blocks, concurrency or the maximum model length"
        raise InputError(source, "no such line", need)
    return EngineLog(
        statements=tuple(statements),
        async_scheduling=is_async,
        version=version,
        contradictions=_contradictions(statements),
    )


def lines_of(stream: IO[str], source: str = "log") -> Iterator[str]:
    """The lines of a stream, each cut to what counts, so that no line has to fit in memory.

    Raises:
        InputError: The log is absurdly long.
    """
    num_characters = 0
    while text := stream.readline(MAX_LINE_CHARACTERS):
        yield text
        num_characters += len(text)
        while text and not text.endswith("\n"):
            text = stream.readline(MAX_LINE_CHARACTERS)
            num_characters += len(text)
            if num_characters > MAX_CHARACTERS:
                raise InputError(source, f"over {MAX_CHARACTERS:,} characters", "a startup log")


def read_log(path: Path) -> EngineLog:
    """Read a log file; bytes that are no UTF-8 are passed over.

    Raises:
        InputError: The file cannot be read, or is no such log, see `parse_log`.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            return parse_log(lines_of(stream, str(path)), str(path))
    except InputError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "a name that no file can have"
        raise InputError(str(path), reason, "a log file, or - for standard input") from None


def _contradictions(statements: list[Statement]) -> tuple[str, ...]:
    found = []
    for fact in ("cache_tokens", "num_blocks", "concurrency", "max_model_len", "dcp"):
        values = list(dict.fromkeys(s.value for s in statements if s.fact == fact))
        if len(values) > 1:
            shown = ", ".join(values[:8]) + (f" and {len(values) - 8:,} more" if len(values) > 8 else "")
            found.append(f"{fact} is stated as {shown}: several engines or workers, or a changed setting")
    latest = {statement.fact: statement.value for statement in statements}
    if {"cache_tokens", "concurrency", "concurrency_length"} <= latest.keys():
        tokens, length = int(latest["cache_tokens"]), int(latest["concurrency_length"])
        # Printed to 0.01, so tokens must lie within half a hundredth of a request, and are cut to an integer.
        low, high = (
            (Fraction(latest["concurrency"]) + half) * length
            for half in (Fraction(-1, 200), Fraction(1, 200))
        )
        if not low <= tokens + 1 or not tokens <= high:
            found.append(
                f"cache_tokens {tokens:,} is not concurrency {latest['concurrency']} times {length:,} tokens:"
                " an engine before the two were tied together, or lines of two engines"
            )
    if {"num_blocks", "num_blocks_override"} <= latest.keys() and latest["num_blocks"] != latest[
        "num_blocks_override"
    ]:
        found.append(f"num_blocks {latest['num_blocks']} is not the override {latest['num_blocks_override']}")
    return tuple(found)
