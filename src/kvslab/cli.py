"""The command line: parses, calls the library, prints. It decides nothing.

Every error is one line on stderr that starts with `kvslab:`, with exit code 2.
`reproduce` and `results verify` exit with 1 where numbers do not come out.
"""

import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kvslab.errors import InputError, PlanError
from kvslab.formats import INDEXER_FORMATS
from kvslab.generations import generation_named
from kvslab.intmath import parse_bytes
from kvslab.layers import CacheLayer, layers_from_json, layers_to_json
from kvslab.models import DEFAULT_BACKEND, DEFAULT_INDEXER, is_layer_file, layers_from_config, read_model
from kvslab.outputs import write_atomically
from kvslab.plan import Plan
from kvslab.published import after, before
from kvslab.reproduce import reproduce, slab_of
from kvslab.results import stale_results, write_results
from kvslab.slab import SlabLayout
from kvslab.tables import compare_table, groups_table, layers_table

app = typer.Typer(
    help="Plan, draw and check what one KV-cache block of a hybrid-attention model costs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
results_app = typer.Typer(help="Write or check the tables under results/.", no_args_is_help=True)
app.add_typer(results_app, name="results")

Model = Annotated[
    str, typer.Argument(help="A preset, a Hugging Face config.json, or a layer file.", metavar="MODEL")
]
Backend = Annotated[
    str | None, typer.Option(help=f"flashinfer, flashinfer-bf16 or flashmla. Default {DEFAULT_BACKEND}.")
]
Indexer = Annotated[str | None, typer.Option(help=f"Indexer rows: fp8 or mxfp4. Default {DEFAULT_INDEXER}.")]
Mtp = Annotated[int | None, typer.Option(help="Multi-token-prediction layers in use. Default 0.")]
Slab = Annotated[str, typer.Option(help="Generation of the slab planner: padded, bucketed or overlay.")]
Budget = Annotated[str, typer.Option(help="KV-cache memory: bytes, or text such as 26.46GiB or 80GB.")]
Packed = Annotated[
    bool, typer.Option("--packed", help="Pack other hybrids too (enable_cross_layers_blocks).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="File to write: .svg, .pdf or .png.")]
Directory = Annotated[Path, typer.Option("--dir", help="Directory of the tables.")]


def _load(model: str, backend: str | None, indexer: str | None, mtp: int | None) -> tuple[CacheLayer, ...]:
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


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def _print_table(title: str, rows: Sequence[dict[str, Any]]) -> None:
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


def _records(frame: Any) -> list[dict[str, Any]]:
    """Rows of a data frame as plain Python values, None where a number is missing."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [dict(zip(plain.columns, row, strict=True)) for row in plain.itertuples(index=False, name=None)]


def _groups_json(slab: SlabLayout) -> list[dict[str, Any]]:
    return [
        {
            "layers": [layer.name for layer in group.layers],
            "bytes": group.group_bytes,
            "payload_bytes": group.payload_bytes,
            "padding_bytes": slab.group_padding_bytes(group_id),
            "block_size": group.block_size,
        }
        for group_id, group in enumerate(slab.groups)
    ]


@app.command()
def plan(
    model: Model,
    budget: Budget,
    backend: Backend = None,
    indexer: Indexer = None,
    slab: Slab = "overlay",
    mtp: Mtp = None,
    num_blocks_override: Annotated[
        int | None, typer.Option(help="Take this many blocks, whatever the budget.")
    ] = None,
    packed: Packed = False,
    as_json: AsJson = False,
) -> None:
    """Plan one slab: block stride, groups, and the blocks that a budget holds."""
    layers = _load(model, backend, indexer, mtp)
    layout = generation_named(slab).lay_out(layers, packed=packed)
    planned = Plan(slab=layout, budget_bytes=parse_bytes(budget), num_blocks_override=num_blocks_override)
    if as_json:
        _print_json(
            {
                "model": model,
                "slab": slab,
                "budget_bytes": planned.budget_bytes,
                "block_stride": layout.block_stride,
                "num_blocks": planned.num_blocks,
                "remaining_bytes": planned.remaining_bytes,
                "groups": _groups_json(layout),
                "offsets": layout.offset_of,
                "padding_bytes": layout.padding_bytes,
                "tensors": [
                    {
                        "layers": list(tensor.layers),
                        "group": tensor.group_id,
                        "offset": tensor.offset,
                        "layer_stride": tensor.layer_stride,
                        "block_stride": tensor.block_stride,
                        "payload_bytes": tensor.payload_bytes,
                    }
                    for tensor in planned.tensors
                ],
            }
        )
        return
    _print_table(f"{model}, {slab} slab", _records(groups_table(layout)))
    print(f"block stride   {layout.block_stride:,} bytes")
    print(f"blocks         {planned.num_blocks:,} in {planned.budget_bytes:,} bytes (one is the null block)")
    print(f"left over      {planned.remaining_bytes:,} bytes")


@app.command()
def compare(
    model: Model,
    budget: Budget,
    backend: Backend = None,
    mtp: Mtp = None,
    packed: Packed = False,
    as_json: AsJson = False,
) -> None:
    """Plan every generation with every indexer row format, side by side."""
    budget_bytes = parse_bytes(budget)
    if is_layer_file(read_model(model)):
        stacks = [("as given", _load(model, backend, None, mtp))]
    else:
        stacks = [(indexer, _load(model, backend, indexer, mtp)) for indexer in INDEXER_FORMATS]
    rows = _records(compare_table(stacks, budget_bytes, packed=packed))
    if as_json:
        renamed = [{"block_stride": row.pop("block_stride_bytes"), **row} for row in rows]
        _print_json({"model": model, "budget_bytes": budget_bytes, "plans": renamed})
        return
    refused = [row for row in rows if row["refused"]]
    _print_table(
        f"{model}, {budget_bytes:,} bytes", [{k: v for k, v in row.items() if k != "refused"} for row in rows]
    )
    for row in refused:
        print(f"{row['slab']} refuses {row['rows']}: {row['refused']}")


@app.command()
def layers(
    model: Model,
    backend: Backend = None,
    indexer: Indexer = None,
    mtp: Mtp = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the layer file here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print a model's cache layers, or export them as a layer file."""
    stack = _load(model, backend, indexer, mtp)
    if output is not None:
        write_atomically(output, json.dumps(layers_to_json(stack), indent=1) + "\n")
        print(f"{len(stack)} layers written to {output}")
    elif as_json:
        _print_json(layers_to_json(stack))
    else:
        _print_table(f"{model}: {len(stack)} cache layers", _records(layers_table(stack)))


@app.command()
def draw(
    model: Model,
    output: Output,
    backend: Backend = None,
    indexer: Indexer = None,
    slab: Annotated[
        list[str] | None, typer.Option(help="Generation; repeat it to draw several on one scale.")
    ] = None,
    mtp: Mtp = None,
    packed: Packed = False,
) -> None:
    """Draw a slab to scale."""
    from kvslab.plots import save_figure, slab_figure  # matplotlib loads slowly

    stack = _load(model, backend, indexer, mtp)
    names = slab or ["overlay"]
    slabs = [(name, generation_named(name).lay_out(stack, packed=packed)) for name in names]
    save_figure(slab_figure(slabs), output)
    print(f"{', '.join(names)} drawn to {output}")


@app.command(name="reproduce")
def reproduce_command(as_json: AsJson = False) -> None:
    """Derive every published number again; exit 1 if one does not come out."""
    items = reproduce()
    rows = [
        {
            "id": item.number.id,
            "published": item.number.value,
            "derived": item.derived,
            "difference": str(item.difference),
            "unit": item.number.unit,
            "verdict": "matches" if item.matches else "differs",
            "source": item.number.source,
        }
        for item in items
    ]
    failed = [item for item in items if not item.matches]
    if as_json:
        _print_json({"numbers": rows, "matches": len(items) - len(failed), "differs": len(failed)})
    else:
        _print_table("published numbers, derived again", rows)
        print(f"{len(items) - len(failed)} of {len(items)} match")
    raise typer.Exit(code=1 if failed else 0)


@results_app.command(name="write")
def results_write(directory: Directory = Path("results")) -> None:
    """Compute every table and write it, and draw the slab before and after PR 48993."""
    from kvslab.plots import save_figure, slab_figure  # matplotlib loads slowly

    paths = write_results(directory)
    slabs = [("before", slab_of(before("flashinfer"))), ("after", slab_of(after("flashinfer")))]
    picture = directory / "slab_before_after.svg"
    save_figure(slab_figure(slabs), picture)
    for path in (*paths, picture):
        print(path)


@results_app.command(name="verify")
def results_verify(directory: Directory = Path("results")) -> None:
    """Compute every table and compare; exit 1 if a file differs."""
    stale = stale_results(directory)
    for name in stale:
        print(f"{directory / name}: differs from what the library computes")
    if not stale:
        print("every table holds")
    raise typer.Exit(code=1 if stale else 0)


@app.callback(invoke_without_command=True)
def _top(show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show_version:
        print(f"kvslab {version('kvslab')}")
        raise typer.Exit


# typer carries its own click, so its exception for bad usage is reached through a public subclass.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: Instead of `sys.argv[1:]`.
    """
    command = typer.main.get_command(app)
    try:
        code = command.main(args=arguments, prog_name="kvslab", standalone_mode=False)
    except PlanError as error:
        message = str(error)
    except _UsageError as error:
        message = getattr(error, "format_message", error.__str__)()
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    else:
        return code if isinstance(code, int) else 0
    print(f"kvslab: {' '.join(message.split())}", file=sys.stderr)
    return 2
