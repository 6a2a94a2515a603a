"""The `tardigrad` command: all groups of commands together, and how errors are shown."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from tardigrad.cli import (
    admin_commands,
    audit_log_commands,
    compare_commands,
    data_commands,
    demo_command,
    helper_command,
    join_command,
    listing_commands,
    privacy_commands,
    run_commands,
    service_commands,
    watch_command,
)
from tardigrad.errors import TardigradError

app = typer.Typer(
    help="Asynchronous federated learning, where late gradients count.",
    epilog="Examples: `tardigrad demo`; `tardigrad init run.toml` and then `tardigrad run run.toml`",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(run_commands.app)
app.add_typer(demo_command.app)
app.add_typer(compare_commands.app)
app.add_typer(listing_commands.app)
served = typer.Typer()
served.command(epilog="Example: `tardigrad serve run.toml --out runs/live --keys keys`")(
    service_commands.serve
)
served.command(epilog="Example: `tardigrad join HOST:7433 --app my.py:client --key keys/ann.key`")(
    join_command.join
)
served.command(epilog="Examples: `tardigrad enroll ann bob --keys keys`, `tardigrad enroll --admin root`")(
    service_commands.enroll
)
served.command(epilog="Example: `tardigrad status runs/live`")(service_commands.status)
served.command(epilog="Example: `tardigrad helper --out runs/helper --keys helper-keys --server KEY`")(
    helper_command.helper
)
served.command(epilog="Example: `tardigrad identity --keys helper-keys`")(helper_command.identity)
app.add_typer(served)
app.add_typer(watch_command.app)
app.add_typer(admin_commands.app, name="admin")
app.add_typer(audit_log_commands.app, name="audit-log")
app.add_typer(privacy_commands.app, name="privacy")
app.add_typer(data_commands.app, name="data")


def main() -> None:
    """Run the command; an error that a user can correct is printed as one sentence, without a traceback."""
    try:
        app()
    except TardigradError as error:
        _print_error(escape(str(error)))
        sys.exit(error.exit_code)
    except (Exception, RecursionError) as error:
        if os.environ.get("TARDIGRAD_DEBUG"):
            raise
        from tardigrad.core.own_code import own_line

        message = " ".join(str(error).split())[:300]
        shows = "TARDIGRAD_DEBUG=1 shows where it happened"
        _print_error(escape(f"{type(error).__name__}: {message}{own_line(error)} ({shows})"))
        sys.exit(1)


def _print_error(markup: str) -> None:
    Console(stderr=True).print(f"[bold red]error:[/] {markup}", highlight=False, soft_wrap=True, emoji=False)


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
