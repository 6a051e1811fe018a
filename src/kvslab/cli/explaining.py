"""`kvslab explain`: what a serving engine's startup log says about the KV cache."""

import io
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kvslab.cli.common import AsJson, MaxModelLen, print_json, print_table
from kvslab.cli.serving import (
    Backend,
    BlockSize,
    Draft,
    KvCacheDtype,
    Mtp,
    NoHybrid,
    TensorParallel,
    options_of,
    stacks_of,
)
from kvslab.errors import InputError
from kvslab.logs import FACTS, EngineLog, Explanation, Fit, explain, lines_of, parse_log, read_log


def register(app: typer.Typer) -> None:
    """Add this file's command."""
    app.command(name="explain")(explain_command)


def _read(log: str) -> EngineLog:
    if log != "-":
        return read_log(Path(log))
    if sys.stdin is None:
        raise InputError("standard input", None, "a log")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    return parse_log(lines_of(sys.stdin, "standard input"), "standard input")


def _fit_row(fit: Fit) -> dict[str, Any]:
    return {
        "reading": fit.label,
        "block_stride": fit.block_stride,
        "num_blocks": fit.num_blocks,
        "most_blocks": fit.most_blocks,
        "formula": fit.formula,
        "engine_requests": float(fit.engine),
        "steady_requests": float(fit.steady),
        "longest_by_engine": fit.longest_engine,
        "longest_exact": fit.longest_exact,
    }


def _as_json(log: EngineLog, answer: Explanation) -> dict[str, Any]:
    return {
        "version": log.version,
        "async_scheduling": log.async_scheduling,
        "lines": [
            {
                "line": item.statement.line,
                "fact": item.statement.fact,
                "value": item.statement.value,
                "meaning": FACTS[item.statement.fact],
                "derived_by": list(item.derived_by),
            }
            for item in answer.explained
        ],
        "contradictions": list(answer.contradictions),
        "fits": [_fit_row(fit) for fit in answer.fits],
    }


def explain_command(
    log: Annotated[str, typer.Argument(help="The log file, or - for standard input.", metavar="LOG")],
    model: Annotated[str, typer.Option(help="A preset, a config.json or a layer file.")] = "deepseek-v4-pro",
    backend: Backend = None,
    indexer: Annotated[
        str | None, typer.Option(help="Indexer rows: fp8 or mxfp4. Default: try both.")
    ] = None,
    mtp: Mtp = None,
    tensor_parallel: TensorParallel = 1,
    kv_cache_dtype: KvCacheDtype = "auto",
    block_size: BlockSize = None,
    draft: Draft = None,
    no_hybrid: NoHybrid = False,
    max_model_len: MaxModelLen = None,
    max_in_flight_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens in flight. Default: from the log's batch size, or the usual ones."),
    ] = None,
    dcp: Annotated[
        int | None, typer.Option("--dcp", help="Decode context parallel size. Default: from the log.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say which planner and formula give each line of a startup log, and what would fit."""
    parsed = _read(log)
    options = options_of(
        backend=backend,
        indexer=indexer,
        mtp=mtp,
        tensor_parallel=tensor_parallel,
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size,
        no_hybrid=no_hybrid,
    )
    answer = explain(
        parsed,
        stacks_of(model, options, draft),
        max_model_len=max_model_len,
        max_in_flight_tokens=max_in_flight_tokens,
        dcp=dcp,
    )
    if as_json:
        print_json(_as_json(parsed, answer))
        return
    if parsed.version:
        print(f"engine version {parsed.version}")
    for item in answer.explained:
        statement = item.statement
        print(f"line {statement.line}: {statement.fact} = {statement.value}")
        print(f"  means: {FACTS[statement.fact]}")
        for label in item.derived_by or ("nothing here gives it",):
            print(f"  from:  {label}")
    for text in answer.contradictions:
        print(f"contradiction: {text}")
    if answer.fits:
        print_table("what fits", [_fit_row(fit) for fit in answer.fits])
    else:
        known = parsed.last("available_gib", "num_blocks", "num_blocks_override") is not None
        print(
            "what fits: "
            + ("no planner gives these lines" if known else "the log states no memory and no blocks")
        )
