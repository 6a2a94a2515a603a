"""The command demo: the comparison that the README shows, from the package's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tardigrad.cli.options import AsJson, Quiet, Verbose, choose_verbosity, interruptible, print_json

app = typer.Typer()


@app.command(epilog="Example: `tardigrad demo`, then open runs/demo/report.html")
def demo(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the runs, the table and the report.")
    ] = Path("runs/demo"),
    short: Annotated[
        bool, typer.Option("--short", help="Only one seed and 200 trips: a look at it in some seconds.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Does asynchronous beat synchronous? Compare four algorithms on real data and write a report."""
    from tardigrad.experiments.compare.compare import load_comparison, run_comparison
    from tardigrad.experiments.compare.tables import show
    from tardigrad.experiments.library import packaged
    from tardigrad.experiments.report.write import report

    verbosity = choose_verbosity(quiet, verbose)
    console = Console(stderr=as_json)
    file = packaged("demo")
    comparison = load_comparison(file)
    if short:
        base = comparison.base | {"stop": {"trips": 200}}
        comparison = comparison.model_copy(update={"seeds": (0,), "targets": (0.5,), "base": base})
    with interruptible("the same command goes on"):
        table = run_comparison(comparison, file, out, console, verbosity)
    show(table, console)
    page = report(out).page
    console.print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)
    if as_json:
        print_json(table | {"report": str(page)})
    if any(row["failed"] for row in table["rows"]):
        raise typer.Exit(3)
