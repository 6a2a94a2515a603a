"""Commands about one run: run, init, show, plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tardigrad.cli.options import (
    AsJson,
    DataDir,
    File,
    Guard,
    Moved,
    Quiet,
    Settings,
    Verbose,
    choose_verbosity,
    interruptible,
    look_in,
    print_json,
    say_written,
)
from tardigrad.errors import ConfigError

app = typer.Typer()


@app.command(epilog="Example: `tardigrad run fedbuff.toml --out runs/first --set local.lr=0.05`")
def run(
    file: File,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for the record of the run.")] = None,
    settings: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in DIR.")] = False,
    as_json: AsJson = False,
    workers: Annotated[
        str,
        typer.Option(
            metavar="N", help="Who trains: a number of processes, auto, or ray. The result is the same."
        ),
    ] = "auto",
    profile: Annotated[bool, typer.Option("--profile", help="Also show where the time went.")] = False,
    data_dir: DataDir = None,
    snapshot_seconds: Annotated[
        float,
        typer.Option(
            "--snapshot-seconds", min=0, help="Seconds between snapshots, from which a run resumes."
        ),
    ] = 30.0,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also log to tensorboard, mlflow or wandb. Repeatable."),
    ] = None,
    guard: Guard = None,
    moved: Moved = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Simulate one federated run in virtual time."""
    from tardigrad.experiments.compare.verbosity import EvaluationLines
    from tardigrad.experiments.config.reading import load_config
    from tardigrad.experiments.runs.drive import Observer
    from tardigrad.experiments.runs.progress import Bar, Lines
    from tardigrad.experiments.runs.run import run as simulate
    from tardigrad.experiments.runs.run_tables import show_profile, show_run, show_summary
    from tardigrad.experiments.runs.trackers import make_tracker

    verbosity = choose_verbosity(quiet, verbose)
    if resume and out is None:
        raise ConfigError("--resume needs --out DIR: the folder of the run to continue")
    processes = workers.isascii() and workers.isdigit()
    look_in(data_dir)
    config = load_config(file, settings or ())
    trackers = [make_tracker(name, out) for name in dict.fromkeys(track or ())]
    console = Console(stderr=as_json)
    displays: dict[str, tuple[Observer, ...]] = {
        "quiet": (),
        "normal": (Bar(console) if console.is_terminal else Lines(console),),
        "verbose": (EvaluationLines(console),),
    }
    with interruptible(f"go on with the same command{'' if resume else ' and --resume'}" if out else ""):
        result = simulate(
            config,
            out=out,
            resume=resume,
            workers=int(workers) if processes else workers,
            snapshot_seconds=snapshot_seconds,
            guard=guard,
            moved=moved,
            profile=profile,
            progress=False,
            observers=(*displays[verbosity], *trackers),
        )
    summary = result.summary()
    if out is not None:
        show_run(out, console)
    else:
        show_summary(summary, console)
    if profile and result.profile:
        show_profile(result.profile, console)
    if as_json:
        print_json(summary)


@app.command(epilog="Example: `tardigrad init fedbuff.toml`, then `tardigrad run fedbuff.toml`")
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The config to write.")] = Path(
        "tardigrad.toml"
    ),
    example: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Write an experiment of the package: demo, fedbuff/table1, ..."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a commented config to start from."""
    from importlib.resources import files

    from tardigrad.experiments.library import packaged

    if file.exists():
        raise ConfigError(f"{file}: exists already; give another name")
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.parent}")
    template = files("tardigrad.experiments.config").joinpath("template.toml")
    text = (template if example is None else packaged(example)).read_text()
    file.write_text(text)
    said = f"tardigrad {'compare' if '[entries' in text else 'run'} {file} --out runs/first"
    if "[scales." in text:
        said = f"tardigrad reproduce {example} --from DIR, where {file} is DIR/{example}.toml"
    Console(stderr=as_json).print(f"wrote {file}; run it with: {said}", highlight=False, markup=False)
    if as_json:
        print_json({"config": str(file)})


@app.command(epilog="Example: `tardigrad show runs/first --plot first.png`")
def show(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of the run.", show_default=False)
    ],
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Also draw the curves.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the result of a run, or its progress so far."""
    from tardigrad.core.event_log import read_events, to_record
    from tardigrad.core.events import ModelEvaluated
    from tardigrad.experiments.runs.run_folder import RunFolder
    from tardigrad.experiments.runs.run_tables import plot_run, show_run

    console = Console(stderr=as_json)
    show_run(directory, console)
    if plot is not None:
        plot_run(directory, plot)
        say_written(plot, console)
    if as_json:
        events = read_events(directory / "events.jsonl")
        found = [to_record(event) for event in events if isinstance(event, ModelEvaluated)]
        print_json({"summary": RunFolder(directory).summary, "evaluations": found})


@app.command(
    epilog="Example: `tardigrad plan run.toml --grid buffer.size=1,10,100 --grid pace.concurrency=100,1000`"
)
def plan(
    file: File,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="KEY=A,B,C", help="Try all of these values. Repeatable.")
    ] = None,
    trips: Annotated[
        int | None,
        typer.Option(min=1, help="Client trips to plan for each. Default: as `stop` says, at most 100,000."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Also draw it.")] = None,
    settings: Settings = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show what a setting would mean, without training: staleness, speed, bytes, participation, privacy."""
    from rich.progress import track

    from tardigrad.experiments.forecast.forecast import forecasts
    from tardigrad.experiments.forecast.forecast_tables import draw_forecasts, show_forecasts
    from tardigrad.experiments.runs.run_tables import check_picture

    look_in(data_dir)
    if plot is not None:
        check_picture(plot)
    console = Console(stderr=as_json)
    found = list(
        track(forecasts(file, grid or (), trips, settings or ()), "planning", console=console, transient=True)
    )
    show_forecasts(found, console)
    if plot is not None:
        draw_forecasts(found, plot)
        say_written(plot, console)
    if as_json:
        print_json([one.summary() for one in found])
