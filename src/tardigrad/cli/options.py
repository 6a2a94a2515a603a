"""Options and helpers that several commands share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tardigrad.core.plain_json import plain_json
from tardigrad.errors import ConfigError

if TYPE_CHECKING:
    from tardigrad.experiments.compare.verbosity import Verbosity

File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The config.", show_default=False)]
ComparisonFile = Annotated[
    Path, typer.Argument(metavar="FILE.toml", help="The comparison.", show_default=False)
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Folder of the data sets (else TARDIGRAD_DATA, else ~/.cache/tardigrad).",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as local.lr=0.05. Repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only the result.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print a line for each run or evaluation.")]
Guard = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="For private runs: a file outside DIR, used to detect that DIR was restored from a backup.",
    ),
]
Moved = Annotated[
    bool, typer.Option("--moved", help="Of a private run: DIR was moved here, and the original is not used.")
]


def look_in(data_dir: Path | None) -> None:
    """Set the folder in which data sets are searched, if one is given."""
    from tardigrad.data.folder import VARIABLE

    if data_dir is not None:
        os.environ[VARIABLE] = str(data_dir)


def choose_verbosity(quiet: bool, verbose: bool) -> Verbosity:
    """Return how much progress to show; a ConfigError if both options are given."""
    if quiet and verbose:
        raise ConfigError("--quiet and --verbose: give one of them, not both")
    return "quiet" if quiet else "verbose" if verbose else "normal"


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """End the command with exit code 130 on Ctrl-C, and print how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print("; ".join(["stopped", *filter(None, [advice])]), highlight=False)
        raise typer.Exit(130) from None


def print_json(result: object) -> None:
    """Print one JSON document on one line of standard output."""
    print(plain_json(result))


def say_written(file: Path, console: Console) -> None:
    """Print that a file was written."""
    console.print(f"wrote {file}", highlight=False, markup=False)
