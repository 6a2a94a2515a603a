"""The commands of operators: steer a served run with an operator's key, without a shell on the server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tardigrad.cli.service_options import CA, authority_of, fault_of, say
from tardigrad.core.plain_json import plain_json
from tardigrad.core.plural import counted
from tardigrad.errors import ConfigError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from tardigrad.service.client.operator_connection import OperatorConnection
    from tardigrad.service.protocol.v1 import admin_pb2 as admin_v1

app = typer.Typer(
    help="Steer a served run with an operator's key (`tardigrad enroll --admin NAME`).",
    epilog="Example: `tardigrad admin pause HOST:7433 --key keys/root.key --reason maintenance`",
    no_args_is_help=True,
)

T = TypeVar("T")
Where = Annotated[str, typer.Argument(metavar="HOST:PORT", help="The server.", show_default=False)]
AdminKey = Annotated[Path, typer.Option("--key", metavar="FILE", help="The operator's key.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS; for tests.")]
RunName = Annotated[str, typer.Option("--run", metavar="NAME", help="The run, if the server has several.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; it is written to the audit log.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print a line of JSON.")]
ClientName = Annotated[str, typer.Argument(metavar="CLIENT", help="The client's name.", show_default=False)]


def _entered(
    where: str, key: Path, ca: Path | None, insecure: bool
) -> AbstractAsyncContextManager[OperatorConnection]:
    from tardigrad.service.access.enrolment import check_name, read_key
    from tardigrad.service.access.signed_requests import Signer
    from tardigrad.service.client.operator_connection import entered

    if ":" not in where:
        raise ConfigError(f"{where}: is not HOST:PORT")
    if fault := fault_of(where):
        raise ConfigError(f"HOST:PORT was not given, because {fault}")
    signer = Signer(check_name(key.stem), read_key(key))
    return entered(where, signer, None if insecure else authority_of(ca, key))


def _waited(work: Coroutine[None, None, T]) -> T:
    return asyncio.run(work)


def _steer(
    where: str,
    key: Path,
    ca: Path | None,
    insecure: bool,
    run: str,
    reason: str,
    act: str,
    client: str = "",
    limits: dict[str, float] | None = None,
) -> admin_v1.Steered:
    async def steered() -> admin_v1.Steered:
        async with _entered(where, key, ca, insecure) as connection:
            return await connection.steer(act, run, client, limits, reason)

    return _waited(steered())


def _tell(steered: admin_v1.Steered, as_json: bool, done: str, already: str) -> None:
    """Print the outcome of an act: `done` if it has changed the run, `already` if not."""
    if as_json:
        facts = {
            "changed": steered.changed, "state": steered.state, "audit": steered.audit,
            "limits": dict(sorted(steered.limits.items())), "under_way": steered.under_way,
            "ended": steered.ended,
        }  # fmt: skip
        print(plain_json(facts))
    elif steered.changed:
        say(f"{done} (line {steered.audit} of the audit log)")
    else:
        say("the run is over; nothing was changed" if steered.state == "over" else already)


def _under_way(steered: admin_v1.Steered) -> str:
    return f"{counted(steered.under_way, 'trip')} {'is' if steered.under_way == 1 else 'are'} under way"


def _what_counts(steered: admin_v1.Steered) -> str:
    if not steered.under_way:
        return "no trip is under way"
    which = "its upload counts" if steered.under_way == 1 else "their uploads count"
    return f"{_under_way(steered)} and {which}"


@app.command(epilog="Example: `tardigrad admin pause HOST:7433 --key keys/root.key --reason maintenance`")
def pause(
    where: Where,
    key: AdminKey,
    ca: CA = None,
    insecure: Insecure = False,
    run: RunName = "",
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Hand out no more tasks; uploads of trips that are under way count. It survives a restart."""
    steered = _steer(where, key, ca, insecure, run, reason, "pause")
    _tell(steered, as_json, f"paused; {_what_counts(steered)}", "the run is paused already")


@app.command(epilog="Example: `tardigrad admin resume HOST:7433 --key keys/root.key`")
def resume(
    where: Where,
    key: AdminKey,
    ca: CA = None,
    insecure: Insecure = False,
    run: RunName = "",
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Hand out tasks again."""
    steered = _steer(where, key, ca, insecure, run, reason, "resume")
    _tell(steered, as_json, "resumed; tasks are handed out again", "the run is not paused")


@app.command(epilog="Example: `tardigrad admin stop HOST:7433 --key keys/root.key --reason 'good enough'`")
def stop(
    where: Where,
    key: AdminKey,
    ca: CA = None,
    insecure: Insecure = False,
    run: RunName = "",
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """End the run as a stop rule would: with a last evaluation, the model and the summary."""
    steered = _steer(where, key, ca, insecure, run, reason, "stop")
    lost = f"; {_under_way(steered)} and will not count" if steered.under_way else ""
    _tell(steered, as_json, f"stopped; the server evaluates the model and writes the result{lost}", "")


@app.command(epilog="Example: `tardigrad admin eject HOST:7433 ann --key keys/root.key --reason 'bad data'`")
def eject(
    where: Where,
    client: ClientName,
    key: AdminKey,
    ca: CA = None,
    insecure: Insecure = False,
    run: RunName = "",
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Take a client out of the run: its trips end and its calls are refused; what counted stays."""
    steered = _steer(where, key, ca, insecure, run, reason, "eject", client)
    ended = f"{counted(steered.ended, 'trip')} of it ended" if steered.ended else "it had no trip under way"
    _tell(
        steered, as_json, f"ejected {client}; {ended}, and what counted stays", f"{client} is ejected already"
    )


@app.command(epilog="Example: `tardigrad admin admit HOST:7433 ann --key keys/root.key`")
def admit(
    where: Where,
    client: ClientName,
    key: AdminKey,
    ca: CA = None,
    insecure: Insecure = False,
    run: RunName = "",
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Let a client that was ejected take part again."""
    steered = _steer(where, key, ca, insecure, run, reason, "admit", client)
    _tell(steered, as_json, f"admitted {client}; it can join again", f"{client} is not ejected")


@app.command(epilog="Example: `tardigrad admin limits HOST:7433 concurrency=50 --key keys/root.key`")
def limits(
    where: Where,
    key: AdminKey,
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Limits to change; none shows them.", show_default=False
        ),
    ] = None,
    ca: CA = None,
    insecure: Insecure = False,
    run: RunName = "",
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Show the limits that can change while a run goes on, or change some of them."""
    new = dict(_limit(text) for text in changes or ())
    steered = _steer(where, key, ca, insecure, run, reason, "limits", limits=new)
    told = ", ".join(f"{name} = {value:g}" for name, value in sorted(steered.limits.items()))
    _tell(steered, as_json, f"changed; now {told}", told)


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise ConfigError(f"{text!r}: must be KEY=VALUE with a number, such as concurrency=50") from None


@app.command(epilog="Example: `tardigrad admin export HOST:7433 --out exported --key keys/root.key`")
def export(
    where: Where,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The new folder of the export.")],
    key: AdminKey,
    ca: CA = None,
    insecure: Insecure = False,
    run: RunName = "",
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Write the current model of the run, its config and its privacy statement into a new folder here."""
    from tardigrad.service.client.received_export import receive_export

    async def exported() -> admin_v1.ExportHeader:
        async with _entered(where, key, ca, insecure) as connection:
            return await receive_export(connection.export(run, reason), out)

    header = _waited(exported())
    if as_json:
        files = {file.name: file.digest.hex() for file in header.files}
        print(
            plain_json({"out": str(out), "version": header.version, "audit": header.audit, "sha256": files})
        )
    else:
        names = ", ".join(file.name for file in header.files)
        say(f"wrote version {header.version} to {out}: {names} (line {header.audit} of the audit log)")
