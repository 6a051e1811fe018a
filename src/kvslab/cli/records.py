"""`kvslab reproduce` and `kvslab results`."""

from pathlib import Path
from typing import Annotated

import typer

from kvslab.cli.common import AsJson, print_json, print_table
from kvslab.published import after, before, reproduce, slab_of
from kvslab.results import export_results, verify_results, write_results

Directory = Annotated[Path, typer.Option("--dir", help="Directory of the tables.")]

results_app = typer.Typer(help="Write or check the tables under results/.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    app.command(name="reproduce")(reproduce_command)
    app.add_typer(results_app, name="results")


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
        print_json({"numbers": rows, "matches": len(items) - len(failed), "differs": len(failed)})
    else:
        print_table("published numbers, derived again", rows)
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
    """Compute every table again and compare, check measured ones by checksum; exit 1 if a file differs."""
    faults = verify_results(directory)
    for name, fault in faults.items():
        print(f"{directory / name}: {fault}")
    if not faults:
        print("every table holds")
    raise typer.Exit(code=1 if faults else 0)


@results_app.command(name="export")
def results_export(
    target: Annotated[Path, typer.Argument(help="Where the files go.")],
    directory: Directory = Path("results"),
) -> None:
    """Write every table as CSV, Parquet, LaTeX and BibTeX, from the files that are there."""
    print(f"{target}: {len(export_results(directory, target))} files")
