"""The commands of a server: serve, enroll, status."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tardigrad.cli.options import Guard, Moved, look_in
from tardigrad.cli.service_options import (
    CA,
    LogFormat,
    LogFormatOption,
    LogLevel,
    LogLevelOption,
    authority_of,
    fault_of,
    say,
)
from tardigrad.core.plain_json import plain_json
from tardigrad.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from tardigrad.service.monitor.status import Status

os.environ.setdefault(
    "GRPC_VERBOSITY", "NONE"
)  # gRPC's own lines would fill the log, and strangers can cause them


Keys = Annotated[
    Path, typer.Option(metavar="DIR", help="The folder of keys, certificates and the list of clients.")
]


def serve(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE.toml...|DIR",
            help="A config; or several, or a folder of configs and runs, to serve all on one port.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder of the run, or of several runs, each in the folder of its name; a run that it "
            "holds is continued.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0: any free one.")
    ] = 7433,
    keys: Keys = Path("keys"),
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting. Repeatable.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder of the data sets.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="Your torch module, or a function that returns it; with --flower MODULE:NAME of the app.",
        ),
    ] = None,
    flower: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A Flower app, whose ClientApp trains at the clients (`join --flower`)."
        ),
    ] = None,
    run_config: Annotated[
        str | None,
        typer.Option(
            metavar="'KEY=VALUE ...'", help="Changes of the Flower app's own config, as in `flwr run`."
        ),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS; on this machine only.")] = False,
    durability: Annotated[
        bool,
        typer.Option("--durability/--no-durability", help="Whether uploads are on disk when acknowledged."),
    ] = True,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port of the metrics for Prometheus (plain HTTP); 0: any free one."
        ),
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="The address on which metrics are served.")] = "127.0.0.1",
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Continue although acknowledged uploads or events are lost."),
    ] = False,
    guard: Guard = None,
    moved: Moved = False,
    log_format: LogFormatOption = LogFormat.text,
    log_level: LogLevelOption = LogLevel.info,
) -> None:
    """Serve a run, or several, to real clients, with the config and the algorithms of a simulation."""
    from tardigrad.experiments.config.reading import load_config
    from tardigrad.experiments.runs.serve import serve as serve_run
    from tardigrad.experiments.runs.serve_all import serve_all
    from tardigrad.experiments.runs.several_configs import configs_of_runs
    from tardigrad.service.monitor.logs import log_to_stderr
    from tardigrad.service.server.endpoint import Endpoint

    log_to_stderr(log_format.value, log_level.value)
    signal.signal(
        signal.SIGHUP, signal.SIG_IGN
    )  # until the server listens; then it reads the list of clients again
    look_in(data_dir)
    endpoint = Endpoint(host, port, keys, insecure, durability, metrics_port, metrics_host)
    if len(files) > 1 or files[0].is_dir():
        one_only = {"--model": model, "--flower": flower, "--run-config": run_config}
        for option, given in one_only.items():
            if given is not None:
                raise ConfigError(
                    f"{option}: is for one run; with several, name the model in each config, "
                    'such as [model] kind = "FILE.py:NAME"'
                )
        found = configs_of_runs(files, out, say)
        configs = {name: load_config(file, settings or ()) for name, file in found.files.items()}
        results = serve_all(
            configs, out=found.out, endpoint=endpoint, say=say, accept_loss=accept_loss, guard=guard,
            moved=moved, where={name: str(file) for name, file in found.files.items()},
        )  # fmt: skip
        if None in results.values():
            say("stopped; the same command goes on" if durability else "stopped")
        return
    if out is None:
        raise ConfigError("--out: give the folder of the run")
    config = load_config(files[0], settings or ())
    module: nn.Module | str | None = model
    declaration = ""
    if flower is not None:
        from tardigrad.flower import ServedApp

        app = ServedApp(config, flower, model, run_config)
        module, declaration = app.module, app.declaration
    elif run_config is not None:
        raise ConfigError("--run-config: changes the config of a Flower app; give --flower DIR")
    result = serve_run(
        config, out=out, endpoint=endpoint, model=module, say=say, accept_loss=accept_loss, guard=guard,
        moved=moved, declaration=declaration,
    )  # fmt: skip
    if result is not None:
        say(f"the run is over ({result.stopped_by}): tardigrad show {out}")
    else:
        say("stopped; the same command goes on" if durability else "stopped")


def enroll(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Names of clients or operators.", show_default=False),
    ],
    keys: Keys = Path("keys"),
    public: Annotated[
        str | None, typer.Option(metavar="KEY", help="The public key of a client that made its own.")
    ] = None,
    admin: Annotated[
        bool,
        typer.Option("--admin", help="Make keys of operators, who steer runs (`tardigrad admin`)."),
    ] = False,
    key_only: Annotated[
        bool,
        typer.Option("--key-only", help="On a client's machine: make only its key, nothing of a server."),
    ] = False,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name or address of the server, for its first certificate, besides localhost. Repeatable."
        ),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A run that the clients are for (default: all). Repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON.")] = False,
) -> None:
    """Make keys for clients (with --admin for operators) and add them to the server's list; the first time,
    make certificates too."""
    from tardigrad.service.access.certificates import AUTHORITY
    from tardigrad.service.access.enrolment import ADMINS, LIST
    from tardigrad.service.access.new_clients import enroll_clients, make_client_keys

    if key_only and (public is not None or host or run):
        raise ConfigError(
            "--key-only: makes a key on a client's machine; leave --public, --host and --run out"
        )
    if key_only:
        new = make_client_keys(keys, names)
    else:
        if admin and run:
            raise ConfigError("--run: an operator steers all runs of a server; leave it out with --admin")
        new = enroll_clients(keys, names, host or (), public, run or (), ADMINS if admin else LIST)
    if as_json:
        print(plain_json({"clients": new.public_keys, "files": [str(file) for file in new.files]}))
        return
    for name, text in new.public_keys.items():
        say(f"{name} {text}")
        if key_only:
            option = " --admin" if admin else ""
            say(f"the server's operator lets {name} in with: tardigrad enroll{option} {name} --public {text}")
    if new.certificates:
        say(f"wrote {keys / AUTHORITY} for the clients, and the server's certificate")


def status(
    where: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT|DIR", help="The server, or the folder of the run or runs.", show_default=False
        ),
    ],
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="For HOST:PORT: an operator's key sees everything, a client's no names."
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option(metavar="NAME", help="The run, of a folder or a server with several.")
    ] = None,
    ca: CA = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS; for tests.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Show the present state and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print lines of JSON.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why nothing happens, since when, and what to do; then end.")
    ] = False,
) -> None:
    """Show the progress of a served run, from its folder or, with a client's key, from the server; or of all
    runs in a folder."""
    from tardigrad.service.monitor.status_of_runs import watch_folders, watch_one

    source: AsyncIterator[dict[str, Status]]
    if Path(where).is_dir():
        source = watch_folders(Path(where), run)
    elif ":" not in where:
        raise ConfigError(f"{where}: is neither the folder of a served run nor HOST:PORT")
    elif fault := fault_of(where):
        raise ConfigError(f"neither the folder of a served run nor HOST:PORT was given, because {fault}")
    elif key is None:
        raise ConfigError(
            "--key: a server answers only enrolled clients; give a client's key, or the run's folder"
        )
    else:
        from tardigrad.service.access.enrolment import check_name, read_key
        from tardigrad.service.access.signed_requests import Signer
        from tardigrad.service.monitor.operator_following import told_status

        signer = Signer(check_name(key.stem), read_key(key))
        authority = None if insecure else authority_of(ca, key)
        source = watch_one(told_status(where, signer, authority, run or ""), run or "")
    with suppress(KeyboardInterrupt):
        asyncio.run(_explain(source, as_json) if explain else _watch(source, once, as_json))


async def _explain(source: AsyncIterator[dict[str, Status]], as_json: bool) -> None:
    from tardigrad.service.monitor.status_table import explanation_lines

    runs = {name: status.explained() for name, status in (await anext(source)).items()}
    if as_json:
        each = {name: [asdict(one) for one in found] for name, found in runs.items()}
        print(plain_json(each if len(each) > 1 else next(iter(each.values()))))
        return
    for name, found in runs.items():
        for line in ([f"{name}:"] if len(runs) > 1 else []) + explanation_lines(found):
            print(line)


async def _watch(source: AsyncIterator[dict[str, Status]], once: bool, as_json: bool) -> None:
    from rich.console import Group
    from rich.live import Live

    from tardigrad.service.monitor.status_table import status_table

    before: dict[str, Status] = {}
    console = Console()
    in_place = console.is_terminal and not once and not as_json
    with Live(console=console, auto_refresh=False) if in_place else nullcontext() as live:
        async for found in source:
            tables = [status_table(status, before.get(name), name) for name, status in found.items()]
            if as_json:
                for name, status in found.items():
                    print(plain_json(({"run": name} if name else {}) | asdict(status)), flush=True)
            elif live is not None:
                live.update(Group(*tables), refresh=True)
            else:
                console.print(*tables, sep="\n")
            before = found
            if once:
                return
