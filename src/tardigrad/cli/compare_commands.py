"""Commands about several runs: compare, tune, reproduce, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tardigrad.cli.options import (
    AsJson,
    ComparisonFile,
    DataDir,
    Quiet,
    Verbose,
    choose_verbosity,
    interruptible,
    look_in,
    print_json,
)
from tardigrad.errors import ConfigError

app = typer.Typer()


@app.command(epilog="Example: `tardigrad compare experiments/demo.toml --out runs/demo`")
def compare(
    file: ComparisonFile,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the runs, the table and the plot.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compare algorithms on the same data and delays, over several seeds."""
    from tardigrad.experiments.compare.compare import compare as compare_file

    verbosity = choose_verbosity(quiet, verbose)
    look_in(data_dir)
    console = Console(stderr=as_json)
    with interruptible("the same command goes on"):
        table = compare_file(file, out, console, verbosity)
    if as_json:
        print_json(table)
    if any(row["failed"] for row in table["rows"]):
        raise typer.Exit(3)


@app.command(epilog="Example: `tardigrad tune experiments/demo.toml --out runs/tuned`")
def tune(
    file: ComparisonFile,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the trials and tuned.toml.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Tune every entry of a comparison, with the same number of trials for each."""
    from tardigrad.experiments.tune.tune import tune as tune_file

    verbosity = choose_verbosity(quiet, verbose)
    look_in(data_dir)
    console = Console(stderr=as_json)
    with interruptible("the same command goes on"):
        found = tune_file(file, out, console, verbosity)
    if as_json:
        print_json(found)
    if any(one["failed"] == one["trials"] for one in found["per_entry"].values()):
        raise typer.Exit(3)


@app.command(epilog="Example: `tardigrad reproduce fedbuff/table1 --scale small`")
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME...]", help="Tables, a paper's name for all of its, or all."),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="smoke (seconds), small (minutes to an hour), protocol (hours: the paper's clients, trips "
            "and rates on small data and models; some tables only) or paper (its own setting)."
        ),
    ] = "small",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for runs and tables.", show_default="runs/SCALE"),
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Folder of the files of the tables.")
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Only describe the named ones: source, claims, scales.")
    ] = False,
    tuning: Annotated[
        bool, typer.Option("--tune", help="Run the grid of the named ones instead, and choose settings.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Reproduce the papers' tables and figures; without a name, list them."""
    from tardigrad.experiments.reproduce.grid_search import search_grid
    from tardigrad.experiments.reproduce.reproduce import reproduce as run_reproductions
    from tardigrad.experiments.reproduce.reproduction import SIZES, chosen, library, load
    from tardigrad.experiments.reproduce.reproduction_list import details_of, list_of, show_details, show_list

    verbosity = choose_verbosity(quiet, verbose)
    look_in(data_dir)
    console = Console(stderr=as_json)
    size = next((size for size in SIZES if size == scale), None)
    if size is None:
        raise ConfigError(f"--scale {scale}: must be one of {', '.join(SIZES)}")
    folder = out if out is not None else Path("runs") / size
    if details or not names:
        files = chosen(names or ["all"], library(source))
        reproductions = {name: load(file) for name, file in files.items()}
        if details:
            show_details(reproductions, folder, console)
        else:
            show_list(reproductions, folder, console)
        if as_json:
            print_json((details_of if details else list_of)(reproductions, folder))
        return
    if tuning:
        with interruptible("the same command goes on"):
            grids = search_grid(names, size, folder, console, source, verbosity)
        if as_json:
            print_json(grids)
        return
    with interruptible("the same command goes on"):
        results = run_reproductions(names, size, folder, console, source, verbosity)
    if as_json:
        print_json(results)
    if any(result["failed"] for result in results.values()):
        raise typer.Exit(3)


@app.command(epilog="Example: `tardigrad report runs/demo`; `tardigrad report runs/a runs/b --out both.html`")
def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Folders of runs or comparisons.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="The page (else report.html in the first DIR).")
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for each chart as PNG and SVG (else beside the page)."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page about runs and comparisons, with every chart as a picture too."""
    from tardigrad.experiments.report.write import report as write_report

    look_in(data_dir)
    page, folder = write_report(directories, out, pictures)
    Console(stderr=as_json).print(
        f"report: {page}\npictures: {folder}", highlight=False, markup=False, soft_wrap=True
    )
    if as_json:
        print_json({"report": str(page), "pictures": str(folder)})
