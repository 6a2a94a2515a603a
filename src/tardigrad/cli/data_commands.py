"""`tardigrad data`: show how examples are distributed over clients, and fetch data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tardigrad.cli.options import AsJson, DataDir, File, Settings, look_in, print_json, say_written
from tardigrad.errors import ConfigError

app = typer.Typer(help="Look at data sets, and fetch them.", no_args_is_help=True)


@app.command("show", epilog="Example: `tardigrad data show run.toml --plot partition.png`")
def data_show(
    file: File,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Also draw who holds what.")] = None,
    settings: Settings = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show who holds what under a config: clients, examples, labels."""
    from tardigrad.core.draws import key
    from tardigrad.data.partition_pictures import draw_partition, holdings
    from tardigrad.experiments.config.reading import load_config

    look_in(data_dir)
    config = load_config(file, settings or ())
    if config.data is None:
        raise ConfigError(f"{file}: names no data set; `tardigrad list datasets`")
    held = holdings(config.data.federation(key(config.seed, "data")))
    console = Console(stderr=as_json)
    console.print(held.table(), highlight=False)
    if plot is not None:
        draw_partition(held, plot, title=config.data.kind)
        say_written(plot, console)
    if as_json:
        print_json(
            {
                "clients": len(held.sizes),
                "examples": held.sizes.tolist(),
                "labels": None if held.counts is None else held.counts.sum(axis=0).tolist(),
                "test_examples": held.test,
            }
        )


@app.command("get", epilog="Example: `tardigrad data get fashion_mnist --data-dir data`")
def data_get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="cifar10, mnist, fashion_mnist, emnist")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a data set from its publisher, and check it."""
    from tardigrad.data.get import get

    look_in(data_dir)
    folder = get(name)
    Console(stderr=as_json).print(f"{name} is in {folder}", highlight=False)
    if as_json:
        print_json({"name": name, "folder": str(folder)})
