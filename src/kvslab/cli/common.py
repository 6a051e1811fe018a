"""What the commands share: options of a plan, printing tables and JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

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


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2))


def print_table(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows of equal keys; numbers stand right, with thousands separators.

    Nothing is cut or wrapped: a table wider than the terminal runs on, so that every
    name and number stays whole.
    """
    table = Table(
        title=Text(title),
        title_justify="left",
        title_style="bold",
        header_style="",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    names = list(rows[0])
    for name in names:
        number = all(isinstance(row[name], int | float) or row[name] is None for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_cell(name, row[name])) for name in names))
    console = Console()
    console.width = max(console.width, Console(width=100_000).measure(table).maximum)
    console.print(table, crop=False)


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
