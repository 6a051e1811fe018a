"""`kvslab sweep`: the fitted planner over a grid, on this machine or a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from kvslab.cli.fitting import progress_bar
from kvslab.sweep import RUNNERS, check_runner, read_grid, run_sweep


def register(app: typer.Typer) -> None:
    """Add this file's command."""
    app.command()(sweep)


def sweep(
    grid: Annotated[Path, typer.Argument(help="A YAML file, see kvslab.sweep.", metavar="GRID")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Parquet file; rows in it are kept.")],
    runner: Annotated[str, typer.Option(help=f"joblib backend: {', '.join(RUNNERS)}.")] = "loky",
    jobs: Annotated[int, typer.Option(help="Processes on this machine; -1 for all.")] = -1,
    address: Annotated[
        str | None, typer.Option(help="Scheduler of a Dask cluster. Default: workers on this machine.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Fit every point of a grid; started again, it computes what is missing."""
    check_runner(runner, jobs, address)
    points = read_grid(grid)
    with progress_bar(len(points), shown=not quiet) as report:
        frame = run_sweep(
            points,
            output,
            runner=runner,
            num_jobs=jobs,
            address=address,
            on_progress=lambda num_done: report("points", num_done),
        )
    refused = int((frame["refused"] != "").sum())
    points_text = "1 point" if len(frame) == 1 else f"{len(frame):,} points"
    print(f"{points_text} in {output}" + (f", {refused:,} without a plan" if refused else ""))
