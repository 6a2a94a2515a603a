"""The commands of the real thing: serve, join, enroll, status."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tardigrad.cli.options import Guard, Moved, look_in
from tardigrad.core.plain_json import plain_json
from tardigrad.errors import ConfigError

if TYPE_CHECKING:
    from tardigrad.service.monitor.status import Status

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its own lines fill the log, and strangers can cause them


class LogFormat(Enum):
    """How the log is written."""

    text = "text"
    json = "json"


class LogLevel(Enum):
    """From here on."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


LogFormatOption = Annotated[LogFormat, typer.Option(help="How the log on stderr is written.")]
LogLevelOption = Annotated[LogLevel, typer.Option(help="What is written to the log.")]
CA = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The authority of the server (default: beside the key)."),
]
Keys = Annotated[
    Path, typer.Option(metavar="DIR", help="Where keys, certificates and the list of clients are.")
]


def serve(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the run; goes on if it holds one.")],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 7433,
    keys: Keys = Path("keys"),
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting. Repeatable.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Where data sets lie.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME", help="A torch module of one's own, or a function that makes it."
        ),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS; on this machine only.")] = False,
    durability: Annotated[
        bool,
        typer.Option("--durability/--no-durability", help="Whether uploads are on disk when acknowledged."),
    ] = True,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Metrics for Prometheus, plain HTTP. 0: any port.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Where metrics can be had.")] = "127.0.0.1",
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Go on although acknowledged uploads or events are lost."),
    ] = False,
    guard: Guard = None,
    moved: Moved = False,
    log_format: LogFormatOption = LogFormat.text,
    log_level: LogLevelOption = LogLevel.info,
) -> None:
    """Serve a run to real clients: the same config, the same algorithm."""
    from tardigrad.experiments.config.reading import load_config
    from tardigrad.experiments.runs.serve import serve as serve_run
    from tardigrad.service.monitor.logs import log_to_stderr
    from tardigrad.service.server.lifecycle import Endpoint

    log_to_stderr(log_format.value, log_level.value)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a server that listens reads its list of clients again
    look_in(data_dir)
    endpoint = Endpoint(host, port, keys, insecure, durability, metrics_port, metrics_host)
    result = serve_run(
        load_config(file, settings or ()), out=out, endpoint=endpoint, model=model, say=_say,
        accept_loss=accept_loss, guard=guard, moved=moved,
    )  # fmt: skip
    if result is not None:
        _say(f"the run is over ({result.stopped_by}): tardigrad show {out}")
    else:
        _say("stopped; the same command goes on" if durability else "stopped")


def join(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", show_default=False)],
    app: Annotated[str, typer.Option(metavar="FILE.py:NAME", help="The client's own model and examples.")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="The client's key, from `tardigrad enroll`.")],
    name: Annotated[str | None, typer.Option(help="The client's name (default: that of the key).")] = None,
    ca: CA = None,
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What the client remembers (default: beside the key).")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS; for tests.")] = False,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to try for when nobody answers.")] = 600.0,
    log_format: LogFormatOption = LogFormat.text,
    log_level: LogLevelOption = LogLevel.info,
) -> None:
    """Take part in a run that is served, until it is over."""
    import torch

    from tardigrad.service.access.enrolment import check_name, read_key
    from tardigrad.service.access.signed_requests import Signer
    from tardigrad.service.client.app import load_app
    from tardigrad.service.client.client_trainer import ClientTrainer
    from tardigrad.service.client.participant import Participant
    from tardigrad.service.monitor.logs import log_to_stderr

    if fault := _fault(address):
        raise ConfigError(f"the server's address must be HOST:PORT, but {fault}")
    authority = None if insecure else _authority(ca, key)
    log_to_stderr(log_format.value, log_level.value)
    torch.set_num_threads(1)
    client = check_name(name or key.stem)
    signer = Signer(client, read_key(key))
    trainee = ClientTrainer(client, load_app(app, client))
    folder = state or key.parent / f"{client}.state"
    participant = Participant(address, signer, authority, trainee, folder, patience, _say)

    async def take_part() -> str:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # as Ctrl-C does
        return await participant.take_part()

    try:
        reason = asyncio.run(take_part())
    except (KeyboardInterrupt, asyncio.CancelledError):
        _say("stopped; the same command goes on")
        raise typer.Exit(130) from None
    _say(f"the run is over ({reason})")


def enroll(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", show_default=False)],
    keys: Keys = Path("keys"),
    public: Annotated[
        str | None, typer.Option(metavar="KEY", help="The public key of a client that made its own.")
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Names of the server, for a first certificate. Repeatable.")
    ] = None,
) -> None:
    """Make keys for clients and enter them in the server's list; the first time, certificates too."""
    from tardigrad.service.access.certificates import (
        AUTHORITY,
        FILES,
        check_hosts,
        make_certificates,
        wants_certificates,
    )
    from tardigrad.service.access.enrolment import (
        LIST,
        all_or_nothing,
        check_new,
        enter_all,
        make_key,
        public_text,
    )

    if public is not None and len(names) != 1:
        raise ConfigError("--public: is the key of one client; give one name")
    hosts = host or ["localhost", "127.0.0.1"]
    check_hosts(hosts)
    check_new(keys, names, public)
    first = wants_certificates(keys)
    clients: dict[str, str] = {}
    with all_or_nothing() as made:
        for name in names:
            if public is None:
                clients[name] = public_text(make_key(keys / f"{name}.key"))
                made.append(keys / f"{name}.key")
            else:
                clients[name] = public
        if first:
            make_certificates(keys, hosts)
            made += [keys / file for file in FILES]
        enter_all(keys / LIST, clients)
    for name, text in clients.items():
        _say(f"{name} {text}")
    if first:
        _say(f"wrote {keys / AUTHORITY} for the clients, and the server's certificate")


def status(
    where: Annotated[str, typer.Argument(metavar="HOST:PORT|DIR", show_default=False)],
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An enrolled key, to ask a server over the network.")
    ] = None,
    ca: CA = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS; for tests.")] = False,
    once: Annotated[bool, typer.Option("--once", help="As it is now, and no more.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Lines of JSON.")] = False,
) -> None:
    """How a served run is getting on: from its folder, or from the server with a client's key."""
    from tardigrad.service.monitor.status import watch_folder

    if Path(where).is_dir():
        source = watch_folder(Path(where))
    elif ":" not in where:
        raise ConfigError(f"{where}: is neither the folder of a served run nor HOST:PORT")
    elif fault := _fault(where):
        raise ConfigError(f"neither the folder of a served run nor HOST:PORT was given, for {fault}")
    elif key is None:
        raise ConfigError("--key: a server answers only who is enrolled; give a key, or the run's folder")
    else:
        from tardigrad.service.access.enrolment import check_name, read_key
        from tardigrad.service.access.signed_requests import Signer
        from tardigrad.service.monitor.watching import watch_server

        signer = Signer(check_name(key.stem), read_key(key))
        source = watch_server(where, signer, None if insecure else _authority(ca, key))
    with suppress(KeyboardInterrupt):
        asyncio.run(_watch(source, once, as_json))


def _fault(address: str) -> str:
    """What is wrong with HOST:PORT, if anything; never the whole of it, which a terminal could take for the
    name of a picture (localhost:100: and such)."""
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
        return f"{port[:20]!r} is not a port from 1 to 65535"
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return "an IPv6 address must be in brackets, such as [::1]:7433"
    return "" if host and not any(c.isspace() for c in host) else f"{host!r} is not a host"


async def _watch(source: AsyncIterator[Status], once: bool, as_json: bool) -> None:
    from rich.live import Live

    from tardigrad.service.monitor.status_table import status_table

    before, console = None, Console()
    in_place = console.is_terminal and not once and not as_json
    with Live(console=console, auto_refresh=False) if in_place else nullcontext() as live:
        async for found in source:
            if as_json:
                print(plain_json(asdict(found)), flush=True)
            elif live is not None:
                live.update(status_table(found, before), refresh=True)
            else:
                console.print(status_table(found, before))
            before = found
            if once:
                return


def _say(line: str) -> None:
    Console().print(line, highlight=False, markup=False, soft_wrap=True)


def _authority(ca: Path | None, key: Path) -> bytes:
    from cryptography import x509

    from tardigrad.service.access.certificates import AUTHORITY

    file = ca or key.parent / AUTHORITY
    try:
        content = file.read_bytes()
        x509.load_pem_x509_certificates(content)
    except OSError as error:
        raise ConfigError(f"--ca {file}: cannot be read ({error}); give the server's ca.pem") from None
    except ValueError:
        raise ConfigError(f"--ca {file}: is not a certificate in PEM; give the server's ca.pem") from None
    return content
