"""The command of a client: join."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console

from tardigrad.cli.options import AsJson, print_json
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
from tardigrad.cli.table_report import fit_table
from tardigrad.errors import ConfigError, RunError

if TYPE_CHECKING:
    from tardigrad.data.tables.preparation import Preparation
    from tardigrad.service.client.client_trainer import TripTrainer
    from tardigrad.service.client.guardrails import Guardrails
    from tardigrad.service.client.site_client import SiteTable

T = TypeVar("T")


def join(
    address: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT", help="The server; with --check, also a config.", show_default=False
        ),
    ],
    app: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py[:NAME]",
            help="The client's module and examples: a tardigrad.Client or a function that returns one.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="In place of --app: a table (CSV, Parquet, Arrow) with the columns that the server names.",
        ),
    ] = None,
    flower: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="In place of --app: a Flower app, whose ClientApp trains in this process."
        ),
    ] = None,
    node_config: Annotated[
        str | None,
        typer.Option(
            metavar="'KEY=VALUE ...'", help="With --flower: the node config, as `flower-supernode` takes it."
        ),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The client's key, from `tardigrad enroll`.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The client's name (default: the name of the key file).")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The run, on a server with several (default: any that the client is enrolled for, one "
            "after the other).",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="With --data: only say whether the table fits. Nothing of it is sent."),
    ] = False,
    separator: Annotated[
        str | None, typer.Option(help="The separator of the CSV file (default: as its heading has it).")
    ] = None,
    decimal: Annotated[str, typer.Option(help="The decimal point of the CSV file: . or ,")] = ".",
    helper: Annotated[
        list[str] | None,
        typer.Option(
            metavar="IDENTITY",
            help="The identity of a helper that this client trusts, from its operator; once for each. The "
            "client then takes part in secure runs with these helpers only.",
        ),
    ] = None,
    least_clients: Annotated[
        int | None,
        typer.Option(min=2, help="In a secure run, how many clients must hide each other at least."),
    ] = None,
    most_epsilon: Annotated[
        float | None, typer.Option(help="The greatest epsilon of a secure run; without noise it is refused.")
    ] = None,
    most_weight: Annotated[
        int | None, typer.Option(min=1, help="The greatest integer weight of an upload in a secure run.")
    ] = None,
    guardrails: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="The same four as helpers, least_clients, most_epsilon, most_weight; options go first.",
        ),
    ] = None,
    ca: CA = None,
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The client's memory (default: beside the key).")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS; for tests.")] = False,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds after which a server that does not answer is given up.")
    ] = 600.0,
    log_format: LogFormatOption = LogFormat.text,
    log_level: LogLevelOption = LogLevel.info,
    as_json: AsJson = False,
) -> None:
    """Take part in a served run until it is over."""
    import torch

    from tardigrad.learning.freed_memory import keep_freed_memory
    from tardigrad.service.access.enrolment import check_name, read_key
    from tardigrad.service.access.signed_requests import Signer
    from tardigrad.service.client.any_run import take_part_in_any
    from tardigrad.service.client.app import client_of, find_app, wants_run
    from tardigrad.service.client.client_trainer import ClientTrainer
    from tardigrad.service.client.connection import RunIsOver
    from tardigrad.service.client.participant import Participant
    from tardigrad.service.client.reconnecting import OfferedRun, ask_run
    from tardigrad.service.monitor.logs import log_to_stderr
    from tardigrad.service.protocol.site_declaration import read_declaration

    if [app, data, flower].count(None) != 2:
        raise ConfigError(
            "--app, --data, --flower: give one of them: a Python file with a client, a table, or a Flower app"
        )
    if node_config is not None and flower is None:
        raise ConfigError("--node-config: is told to the ClientApp of a Flower app; give --flower DIR")
    table = None if data is None else _site_table(data, separator, decimal)
    if check and table is None:
        raise ConfigError("--check: compares a table with what the server declares; give --data FILE")
    if check and table is not None and address.endswith(".toml"):
        _report(table, _preparation_in(Path(address)), as_json)
        return
    if key is None:
        raise ConfigError("--key: give the client's key; `tardigrad enroll NAME --key-only` makes one")
    if fault := fault_of(address):
        raise ConfigError(f"the server's address must be HOST:PORT, but {fault}")
    client = check_name(name or key.stem)
    signer = Signer(client, read_key(key))
    authority = None if insecure else authority_of(ca, key)
    log_to_stderr(log_format.value, log_level.value)
    torch.set_num_threads(1)
    keep_freed_memory()
    demanded = guardrails_of(guardrails, helper, least_clients, most_epsilon, most_weight)
    flower_app = None if flower is None else _flower_app(flower, node_config)
    folder = state or key.parent / f"{client}.state"
    found = None if app is None else find_app(app)
    made = None
    if app is not None and not wants_run(found):
        made = ClientTrainer(client, client_of(found, app, client))

    def ask(wanted: str, moves_on: bool = False) -> Awaitable[OfferedRun | RunIsOver]:
        return ask_run(address, signer, authority, patience, wanted, moves_on)

    @lru_cache(maxsize=1)  # a client may come back to the run that it has left
    def trainer_for(offered: OfferedRun) -> TripTrainer:
        if made is not None:
            return made
        if app is not None:
            return ClientTrainer(client, client_of(found, app, client, offered.name))
        if flower_app is not None:
            return flower_app(client, offered.declaration)
        assert table is not None
        return ClientTrainer(client, table.client(client, offered.declaration))

    def take_part(offered: OfferedRun) -> Awaitable[str]:
        participant = Participant(
            address, signer, authority, trainer_for(offered), folder, patience, say, demanded,
            offered.declaration if app is None else None, run or offered.name, moves_on=run is None,
        )  # fmt: skip
        return participant.take_part()

    async def take_part_in_one(wanted: str) -> str:
        offered = await ask(wanted)
        return offered.reason if isinstance(offered, RunIsOver) else await take_part(offered)

    if check:
        assert table is not None
        offered = _until_stopped(ask(run or ""))
        if isinstance(offered, RunIsOver):
            raise RunError(f"the run is over ({offered.reason})")
        _report(table, read_declaration(offered.declaration).preparation, as_json)
        return
    if run is not None:
        work = take_part_in_one(run)
    else:
        work = take_part_in_any(lambda wanted: ask(wanted, moves_on=bool(wanted)), take_part, folder)
    say(f"the run is over ({_until_stopped(work)})")


def _flower_app(folder: Path, node_config: str | None) -> Callable[[str, str], TripTrainer]:
    """Return a function that makes the client of a Flower app from its name and the server's declaration."""
    from tardigrad.flower.requirement import check_flower

    check_flower()
    from tardigrad.flower.app_client import AppClient
    from tardigrad.flower.app_folder import open_app, parse_pairs

    app, node = open_app(folder).client_app(), parse_pairs(node_config, "--node-config")
    return lambda client, declaration: AppClient(client, app, node, declaration)


def _until_stopped(work: Awaitable[T]) -> T:
    """Return the result of some work; Ctrl-C and SIGTERM end the command with code 130."""

    async def cancellable() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # as Ctrl-C does
        return await work

    try:
        return asyncio.run(cancellable())
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("stopped; the same command goes on")
        raise typer.Exit(130) from None


def guardrails_of(
    file: Path | None,
    helpers: list[str] | None,
    least_clients: int | None,
    most_epsilon: float | None,
    most_weight: int | None,
) -> Guardrails:
    """Return what the client demands of a secure run; an option replaces what the file says."""
    from tardigrad.service.client.guardrails import Guardrails, read_guardrails

    found = Guardrails() if file is None else read_guardrails(file)
    options = {
        "helpers": helpers, "least_clients": least_clients, "most_epsilon": most_epsilon,
        "most_weight": most_weight,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value not in (None, [])}
    return Guardrails(**found.model_dump() | given)


def _site_table(file: Path, separator: str | None, decimal: str) -> SiteTable:
    from tardigrad.service.client.site_client import SiteTable

    if separator is not None and len(separator) != 1:
        raise ConfigError(f"--separator: must be one character, not {separator!r}")
    if decimal not in (".", ","):
        raise ConfigError(f"--decimal: must be . or , and not {decimal!r}")
    return SiteTable(file, separator, decimal)


def _preparation_in(file: Path) -> Preparation:
    from tardigrad.experiments.config.reading import load_config
    from tardigrad.experiments.runs.site_declared import preparation_in

    return preparation_in(load_config(file))


def _report(table: SiteTable, preparation: Preparation, as_json: bool) -> None:
    """Print how a site's table fits; raise a ConfigError if it does not."""
    from tardigrad.data.tables.table_fit import table_fit

    read = table.read()
    fits = table_fit(read, preparation, table.decimal)
    problems = [fit for fit in fits if fit.problem]
    if as_json:
        print_json(
            {"fits": not problems, "rows": len(read), "separator": read.separator}
            | {"columns": [fit.record() for fit in fits]}
        )
    else:
        console = Console()
        console.print(fit_table(fits))
        others = [name for name in read.columns if name not in {fit.name for fit in fits}]
        if others:
            say(f"not used: {', '.join(others)}")
        for fit in problems:
            say(f"{fit.name}: {fit.problem}")
    if problems:
        raise ConfigError(
            f"--data {table.file}: does not fit, because of {', '.join(repr(fit.name) for fit in problems)}"
        )
    if not as_json:
        say(f"{table.file} fits: {len(read):,} rows. Nothing was sent; leave --check out to take part.")
