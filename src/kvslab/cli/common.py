"""What the commands share: options, loading a model, printing tables and JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kvslab.errors import InputError
from kvslab.formats import INDEXER_FORMATS
from kvslab.generations import GENERATIONS
from kvslab.layers import CacheLayer, layers_from_json
from kvslab.models import DEFAULT_BACKEND, DEFAULT_INDEXER, is_layer_file, layers_from_config, read_model

Model = Annotated[
    str, typer.Argument(help="A preset, a Hugging Face config.json, or a layer file.", metavar="MODEL")
]
Backend = Annotated[
    str | None, typer.Option(help=f"flashinfer, flashinfer-bf16 or flashmla. Default {DEFAULT_BACKEND}.")
]
Indexer = Annotated[str | None, typer.Option(help=f"Indexer rows: fp8 or mxfp4. Default {DEFAULT_INDEXER}.")]
Mtp = Annotated[int | None, typer.Option(help="Multi-token-prediction layers in use. Default 0.")]
Slab = Annotated[
    str, typer.Option(help=f"Generation of the slab planner: {', '.join(GENERATIONS)} or fitted.")
]
Budget = Annotated[str, typer.Option(help="KV-cache memory: bytes, or text such as 26.46GiB or 80GB.")]
Packed = Annotated[
    bool, typer.Option("--packed", help="Pack other hybrids too (enable_cross_layers_blocks).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="File to write: .svg, .pdf or .png.")]
MaxModelLen = Annotated[
    int | None, typer.Option(help="Request length in tokens. Default: max_position_embeddings of the config.")
]
InFlight = Annotated[
    int,
    typer.Option(
        "--max-in-flight-tokens",
        help="Tokens scheduled but not settled: max_num_batched_tokens, twice that with async scheduling.",
    ),
]
Dcp = Annotated[int, typer.Option("--dcp", help="Decode context parallel size.")]

DEFAULT_IN_FLIGHT = 8192


def load(model: str, backend: str | None, indexer: str | None, mtp: int | None) -> tuple[CacheLayer, ...]:
    """The layers of a model; options that a layer file settles itself are refused with it."""
    value = read_model(model)
    if is_layer_file(value):
        for name, given in (("backend", backend), ("indexer", indexer), ("mtp", mtp)):
            if given is not None:
                raise InputError(name, given, "no such option for a layer file, which states its own rows")
        return layers_from_json(value, model)
    return layers_from_config(
        value,
        backend=backend or DEFAULT_BACKEND,
        indexer=indexer or DEFAULT_INDEXER,
        num_mtp_layers=mtp or 0,
        where=model,
    )


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2))


def print_table(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows of equal keys; numbers stand right, whole, with thousands separators."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    names = list(rows[0])
    for name in names:
        number = all(isinstance(row[name], int | float) or row[name] is None for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if number else "left", no_wrap=number)
    for row in rows:
        table.add_row(*(_cell(name, row[name]) for name in names))
    console = Console()
    if not console.is_terminal:
        console.width = 200
    console.print(table)


def _cell(name: str, value: object) -> str:
    if value is None or value != value:  # a missing number
        return "-"
    if isinstance(value, float):
        return f"{value:+.2f} %" if name.endswith("percent") else f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def records(frame: Any) -> list[dict[str, Any]]:
    """Rows of a data frame as plain Python values, None where a number is missing."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [dict(zip(plain.columns, row, strict=True)) for row in plain.itertuples(index=False, name=None)]


def stacks_of(
    model: str, backend: str | None, indexer: str | None, mtp: int | None
) -> dict[str, tuple[CacheLayer, ...]]:
    """A model's layers for each row format that the user left open, by label."""
    if is_layer_file(read_model(model)):
        return {"as given": load(model, backend, indexer, mtp)}
    chosen = (indexer,) if indexer is not None else INDEXER_FORMATS
    return {name: load(model, backend, name, mtp) for name in chosen}
