"""`tardigrad privacy`: plan a budget, audit a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(help="Plan what privacy costs, and check what a run gives away.", no_args_is_help=True)


@app.command(
    epilog="Example: `tardigrad privacy plan --epsilon 8 --steps 2000 --participations 4 --separation 400`"
)
def plan(
    epsilon: Annotated[float | None, typer.Option(help="The budget.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise over the clip.")] = None,
    steps: Annotated[int | None, typer.Option(help="Server steps.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="The chance that epsilon does not hold.", show_default="1e-7")
    ] = None,
    participations: Annotated[int, typer.Option(min=1, help="Contributions of one client, at most.")] = 1,
    separation: Annotated[
        int | None, typer.Option(min=1, help="Steps between them, at least. Default: steps / participations.")
    ] = None,
    noise: Annotated[str, typer.Option(help="blt, tree or independent.")] = "blt",
    sampling_rate: Annotated[
        float | None, typer.Option(help="Poisson mode: the chance that a client joins a step.")
    ] = None,
    by: Annotated[str, typer.Option(help="Poisson mode: rdp, or pld (tight, slow).")] = "rdp",
    buffer_size: Annotated[int | None, typer.Option(help="K, to see the noise in the mean.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Give two of --epsilon, --noise-multiplier and --steps; get the third, and what the noise comes to.

    Give all three, and no --delta, to get delta.
    """
    from rich.table import Table

    from tardigrad.privacy.planning import Question, answer

    question = Question(
        epsilon=epsilon, noise_multiplier=noise_multiplier, steps=steps, delta=delta,
        participations=participations, separation=separation, noise=noise, sampling_rate=sampling_rate, by=by,
    )  # fmt: skip
    console = Console(stderr=True)
    with console.status("calibrating"):
        found = answer(question)
    if as_json:
        print(json.dumps(found.summary()))
        return
    table = Table(show_header=False)
    table.add_column(style="cyan")
    table.add_column()
    for name, value in found.summary().items():
        table.add_row(name.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else str(value))
    if buffer_size:
        worst = found.prefix_noise / buffer_size
        table.add_row(f"in the mean of {buffer_size}, after all steps", f"{worst:.4g} clips a coordinate")
    Console().print(table)


@app.command(epilog="Example: `tardigrad privacy audit private.toml --canaries 500`")
def audit(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", show_default=False)],
    canaries: Annotated[int, typer.Option(min=2, help="Clients that the auditor plays.")] = 1000,
    confidence: Annotated[float, typer.Option(help="Of the bound.")] = 0.95,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting. Repeatable.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", metavar="DIR")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a config once with canaries among its clients; bound epsilon from below by what the run gave away.

    Also tests whether noise, clip and participations are those that were promised. Exits with 3 if they are
    not, or if the bound is above the accountant's epsilon: then something is broken. If so many canaries
    cannot show the accountant's epsilon, it says "no power".
    """
    from tardigrad.cli.options import look_in
    from tardigrad.experiments.audit import AuditRun
    from tardigrad.experiments.config import load_config
    from tardigrad.experiments.progress import Bar, Lines

    look_in(data_dir)
    config = load_config(file, settings or ())
    console = Console(stderr=as_json)
    run = AuditRun(config, canaries, confidence)
    display = Bar(console) if console.is_terminal else Lines(console)
    display.begin(config, [])
    try:
        for events in run.events():
            display.see(events)
    finally:
        display.end()
    found = run.result()
    console.print(
        f"accountant: epsilon {found.accountant_epsilon:.4g} at delta {found.delta:g}\n"
        f"audit: epsilon is at least {found.lower_bound:.4g} with {found.confidence:.0%} confidence; "
        f"at most {found.largest_bound:.4g} can be shown ({found.canaries} canaries, {found.steps} steps)\n"
        f"{found.verdict()}",
        highlight=False,
        markup=False,
    )
    if as_json:
        print(json.dumps(found.summary()))
    if not found.holds:
        raise typer.Exit(3)
