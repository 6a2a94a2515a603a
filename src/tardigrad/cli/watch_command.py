"""The command watch: a live page of runs."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tardigrad.cli.service_options import CA, authority_of, fault_of, say
from tardigrad.core.extras import pip_install
from tardigrad.errors import ConfigError

if TYPE_CHECKING:
    from tardigrad.watch.server_reader import ServerReader

app = typer.Typer()


@app.command(epilog="Example: `tardigrad watch runs/demo`, then open the address that it prints")
def watch(
    where: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR... | HOST:PORT",
            help="Folders of runs and comparisons, or a server.",
            show_default=False,
        ),
    ],
    host: Annotated[
        str, typer.Option(help="The address of the page; on any but this machine's own it has a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port of the page; 0: any free one.")
    ] = 7480,
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="For HOST:PORT: an operator's key sees everything, a client's the progress."
        ),
    ] = None,
    run: Annotated[
        str, typer.Option("--run", metavar="NAME", help="The run, if the server has several.")
    ] = "",
    ca: CA = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS to HOST:PORT; for tests.")] = False,
    token: Annotated[
        bool, typer.Option("--token", help="A token on this machine, too: other users of it see nothing.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another name by which the page is reached. Repeatable."),
    ] = None,
) -> None:
    """Show runs, comparisons and served runs in a browser while they go on."""
    try:
        from tardigrad.watch.web_app import WatchPage
        from tardigrad.watch.web_server import serve_page
    except ModuleNotFoundError as error:
        raise ConfigError(f"watch: {error.name} is not installed: {pip_install('dashboard')}") from None
    from tardigrad.watch.run_readers import WatchedFolders

    folders = [Path(one) for one in where if Path(one).is_dir()]
    servers = [_server(one, key, ca, insecure, run) for one in where if not Path(one).is_dir()]
    page = WatchPage(WatchedFolders(folders) if folders else None, servers)

    async def until_stopped() -> None:
        stop = asyncio.ensure_future(serve_page(page, host, port, allow_host or (), token, say))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.cancel)  # as service managers do
        await stop

    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(until_stopped())


def _server(where: str, key: Path | None, ca: Path | None, insecure: bool, run: str) -> ServerReader:
    """Return the reader of what a server tells."""
    if ":" not in where:
        raise ConfigError(
            f"{where}: is neither a folder nor HOST:PORT; if its run has not begun yet, watch the one above"
        )
    if fault := fault_of(where):
        raise ConfigError(f"neither a folder nor HOST:PORT was given, because {fault}")
    if key is None:
        raise ConfigError(
            "--key: a server answers only enrolled clients; give a client's key, or the run's folder"
        )
    from tardigrad.service.access.enrolment import check_name, read_key
    from tardigrad.service.access.signed_requests import Signer
    from tardigrad.service.monitor.operator_following import all_that_is_told
    from tardigrad.watch.server_reader import ServerReader

    signer = Signer(check_name(key.stem), read_key(key))
    authority = None if insecure else authority_of(ca, key)
    return ServerReader(where, lambda offset: all_that_is_told(where, signer, authority, run, offset))
