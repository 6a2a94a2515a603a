"""The `tardigrad` command. Thin: what it does is in the packages, and they are imported when needed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from tardigrad.cli import privacy_commands, service_commands
from tardigrad.cli.options import Guard, Moved, look_in
from tardigrad.errors import TardigradError

app = typer.Typer(
    help="Asynchronous federated learning, where late gradients count.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[Path, typer.Argument(metavar="FILE.toml", show_default=False)]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Where data sets lie (else TARDIGRAD_DATA, else ~/.cache/tardigrad).",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as local.lr=0.05. Repeatable."),
]


def main() -> None:
    """Run the command; an error that a user can put right is one sentence, not a traceback."""
    try:
        app()
    except TardigradError as error:
        Console(stderr=True).print(
            f"[bold red]error:[/] {_plain(str(error))}", highlight=False, soft_wrap=True, emoji=False
        )
        sys.exit(error.exit_code)
    except (Exception, RecursionError) as error:
        if os.environ.get("TARDIGRAD_DEBUG"):
            raise
        said = " ".join(str(error).split())[:300]
        Console(stderr=True).print(
            f"[bold red]error:[/] {_plain(type(error).__name__)}: {_plain(said)} "
            "(TARDIGRAD_DEBUG=1 shows where it happened)",
            highlight=False,
            soft_wrap=True,
            emoji=False,
        )
        sys.exit(1)


@contextmanager
def _interruptible(advice: str) -> Iterator[None]:
    """Ctrl-C ends the command with a word about how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print("; ".join(["stopped", *filter(None, [advice])]), highlight=False)
        raise typer.Exit(130) from None


def _plain(text: str) -> str:
    return escape(text)


@app.command(epilog="Example: `tardigrad run fedbuff.toml --out runs/first --set local.lr=0.05`")
def run(
    file: File,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for the record of the run.")] = None,
    settings: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in DIR.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    workers: Annotated[
        str,
        typer.Option(
            metavar="N", help="Who trains: a number of processes, auto, or ray. The result is the same."
        ),
    ] = "auto",
    profile: Annotated[bool, typer.Option("--profile", help="Also say where the time went.")] = False,
    data_dir: DataDir = None,
    snapshot_seconds: Annotated[
        float,
        typer.Option("--snapshot-seconds", min=0, help="How often the run is made safe against a crash."),
    ] = 30.0,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also tell tensorboard, mlflow or wandb. Repeatable."),
    ] = None,
    guard: Guard = None,
    moved: Moved = False,
) -> None:
    """Simulate one federated run in virtual time."""
    from tardigrad.errors import ConfigError
    from tardigrad.experiments.config.reading import load_config
    from tardigrad.experiments.runs.progress import Bar, Lines
    from tardigrad.experiments.runs.run import run as simulate
    from tardigrad.experiments.runs.run_tables import show_profile, show_run, show_summary
    from tardigrad.experiments.runs.trackers import make_tracker

    if resume and out is None:
        raise ConfigError("--resume needs --out DIR: the folder of the run to go on with")
    processes = workers.isascii() and workers.isdigit()
    look_in(data_dir)
    config = load_config(file, settings or ())
    trackers = [make_tracker(name, out) for name in dict.fromkeys(track or ())]
    console = Console(stderr=as_json)
    display = Bar(console) if console.is_terminal else Lines(console)
    with _interruptible(f"go on with the same command{'' if resume else ' and --resume'}" if out else ""):
        result = simulate(
            config,
            out=out,
            resume=resume,
            workers=int(workers) if processes else workers,
            snapshot_seconds=snapshot_seconds,
            guard=guard,
            moved=moved,
            profile=profile,
            observers=(display, *trackers),
        )
    summary = result.summary()
    if out is not None:
        show_run(out, console)
    else:
        show_summary(summary, console)
    if profile and result.profile:
        show_profile(result.profile, console)
    if as_json:
        print(json.dumps(summary))


@app.command(epilog="Example: `tardigrad init fedbuff.toml`, then `tardigrad run fedbuff.toml`")
def init(file: File = Path("tardigrad.toml")) -> None:
    """Write a commented config to start from."""
    from importlib.resources import files

    from tardigrad.errors import ConfigError

    if file.exists():
        raise ConfigError(f"{file}: exists already; give another name")
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.parent}")
    file.write_text(files("tardigrad.experiments.config").joinpath("template.toml").read_text())
    Console().print(
        f"wrote {file}; run it with: tardigrad run {file} --out runs/first", highlight=False, markup=False
    )


@app.command(epilog="Example: `tardigrad show runs/first --plot first.png`")
def show(
    directory: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)],
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Also draw the curves.")] = None,
) -> None:
    """Show what a run came to (or how far it has come)."""
    from tardigrad.experiments.runs.run_tables import plot_run, show_run

    show_run(directory, Console())
    if plot is not None:
        plot_run(directory, plot)
        Console().print(f"wrote {plot}", highlight=False, markup=False)


@app.command("list", epilog="Example: `tardigrad list delays`")
def list_kinds(
    what: Annotated[
        str, typer.Argument(metavar="WHAT", help="algorithms, delays, paces, datasets, ...")
    ] = "",
) -> None:
    """List what a config can name, with its settings and defaults."""
    from rich.table import Table

    from tardigrad.errors import ConfigError
    from tardigrad.experiments.config.listing import LISTS, entries

    console = Console()
    if not what:
        console.print("tardigrad list " + " | ".join(LISTS), highlight=False)
        return
    if what not in LISTS:
        raise ConfigError(f"list {what}: there is no such list; give one of {', '.join(LISTS)}")
    for entry in entries(what):
        console.print(f"[bold]{entry.kind}[/]  {_plain(entry.about)}", highlight=False)
        settings = Table.grid(padding=(0, 2))
        settings.add_column(style="cyan", no_wrap=True)
        settings.add_column(max_width=34)
        settings.add_column(style="dim")
        for name, default, meaning in entry.settings:
            settings.add_row(f"  {name}", _plain(default), _plain(meaning))
        console.print(settings)


@app.command(epilog="Example: `tardigrad schema > schema.json` (editors check TOML files against it)")
def schema(
    what: Annotated[str, typer.Argument(help="config, or events: a line of events.jsonl.")] = "config",
) -> None:
    """Print the JSON Schema of a config file or of a run's events."""
    from tardigrad.errors import ConfigError

    if what == "config":
        from tardigrad.experiments.config.schema import Config

        document = Config.model_json_schema()
    elif what == "events":
        from tardigrad.core.event_log import events_schema

        document = events_schema()
    else:
        raise ConfigError(f"schema {what}: there is no such schema; give config or events")
    print(json.dumps(document, indent=2))


@app.command(
    epilog="Example: `tardigrad plan run.toml --grid buffer.size=1,10,100 --grid pace.concurrency=100,1000`"
)
def plan(
    file: File,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="KEY=A,B,C", help="Try all of these values. Repeatable.")
    ] = None,
    trips: Annotated[int, typer.Option(min=1, help="Client trips to plan for each.")] = 100_000,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Also draw it.")] = None,
    settings: Settings = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Say what a setting would mean, without training: staleness, speed, bytes, who takes part, privacy."""
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
        console.print(f"wrote {plot}", highlight=False, markup=False)
    if as_json:
        print(json.dumps([one.summary() for one in found]))


@app.command(epilog="Example: `tardigrad compare experiments/demo.toml --out runs/demo`")
def compare(
    file: File,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the runs, the table and the plot.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as one JSON object.")] = False,
) -> None:
    """Compare algorithms on the same data and delays, over several seeds."""
    from tardigrad.experiments.compare.compare import compare as run_comparison

    console = Console(stderr=as_json)
    with _interruptible("the same command goes on"):
        table = run_comparison(file, out, console)
    if as_json:
        print(json.dumps(table))
    if any(row["failed"] for row in table["rows"]):
        raise typer.Exit(3)


@app.command(epilog="Example: `tardigrad tune experiments/demo.toml --out runs/tuned`")
def tune(
    file: File,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the trials and tuned.toml.")],
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as one JSON object.")] = False,
) -> None:
    """Tune every entry of a comparison, with as many trials as the others."""
    from tardigrad.experiments.tune.tune import tune as run_tuning

    look_in(data_dir)
    console = Console(stderr=as_json)
    with _interruptible("the same command goes on"):
        told = run_tuning(file, out, console)
    if as_json:
        print(json.dumps(told))
    if any(one["failed"] == one["trials"] for one in told["per_entry"].values()):
        raise typer.Exit(3)


@app.command(epilog="Example: `tardigrad reproduce fedbuff/table1 --scale small`")
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME...]", help="Tables, a paper's name for all of its, or all."),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="smoke (seconds), small (minutes to an hour) or paper (its own setting).")
    ] = "small",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for runs and tables.", show_default="runs/SCALE"),
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Where the files of the tables are.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Reproduce the papers' tables and figures; without a name, list them."""
    from tardigrad.errors import ConfigError
    from tardigrad.experiments.reproduce.reproduce import SIZES, library, load
    from tardigrad.experiments.reproduce.reproduce import reproduce as run_reproductions
    from tardigrad.experiments.reproduce.reproduction_tables import show_library

    look_in(data_dir)
    console = Console(stderr=as_json)
    size = next((size for size in SIZES if size == scale), None)
    if size is None:
        raise ConfigError(f"--scale {scale}: must be one of {', '.join(SIZES)}")
    folder = out if out is not None else Path("runs") / size
    if not names:
        show_library({name: load(file) for name, file in library(source).items()}, folder, console)
        return
    with _interruptible("the same command goes on"):
        results = run_reproductions(names, size, folder, console, source)
    if as_json:
        print(json.dumps(results))
    if any(result["failed"] for result in results.values()):
        raise typer.Exit(3)


@app.command(epilog="Example: `tardigrad report runs/demo`; `tardigrad report runs/a runs/b --out both.html`")
def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="The page (else report.html in the first DIR).")
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for each chart as PNG and SVG (else beside the page)."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Write one HTML page about runs and comparisons, with every chart as a picture too."""
    from tardigrad.experiments.report.write import report as write_report

    look_in(data_dir)
    page, folder = write_report(directories, out, pictures)
    Console().print(f"report: {page}\npictures: {folder}", highlight=False, markup=False, soft_wrap=True)


app.command(epilog="Example: `tardigrad serve run.toml --out runs/live --keys keys`")(service_commands.serve)
app.command(epilog="Example: `tardigrad join HOST:7433 --app my.py:client --key keys/ann.key`")(
    service_commands.join
)
app.command(epilog="Example: `tardigrad enroll ann bob --keys keys`")(service_commands.enroll)
app.command(epilog="Example: `tardigrad status runs/live`")(service_commands.status)
app.add_typer(privacy_commands.app, name="privacy")
data_app = typer.Typer(help="Look at data sets, and fetch them.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command("show", epilog="Example: `tardigrad data show run.toml --plot partition.png`")
def data_show(
    file: File,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Also draw who holds what.")] = None,
    settings: Settings = None,
    data_dir: DataDir = None,
) -> None:
    """Show who holds what under a config: clients, examples, labels."""
    from tardigrad.core.draws import key
    from tardigrad.data.partition_pictures import draw_partition, holdings
    from tardigrad.errors import ConfigError
    from tardigrad.experiments.config.reading import load_config

    look_in(data_dir)
    config = load_config(file, settings or ())
    if config.data is None:
        raise ConfigError(f"{file}: names no data set; `tardigrad list datasets`")
    held = holdings(config.data.federation(key(config.seed, "data")))
    Console().print(held.table(), highlight=False)
    if plot is not None:
        draw_partition(held, plot, title=config.data.kind)
        Console().print(f"wrote {plot}", highlight=False, markup=False)


@data_app.command("get", epilog="Example: `tardigrad data get fashion_mnist --data-dir data`")
def data_get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="cifar10, mnist, fashion_mnist, emnist")],
    data_dir: DataDir = None,
) -> None:
    """Fetch a data set from its publisher, and check it."""
    from tardigrad.data.get import get

    look_in(data_dir)
    Console().print(f"{name} is in {get(name)}", highlight=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        from tardigrad import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _global(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass
