"""The commands of a helper of secure runs: helper, identity."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from tardigrad.cli.options import Guard, Moved
from tardigrad.cli.service_options import LogFormat, LogFormatOption, LogLevel, LogLevelOption, say
from tardigrad.core.plain_json import plain_json
from tardigrad.errors import ConfigError


def helper(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The helper's folder; a run that it holds is continued.")
    ],
    server: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The identity of the server, from `tardigrad identity`."),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0: any free one.")
    ] = 7434,
    keys: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The folder of the helper's own keys, certificates and clients."),
    ] = Path("helper-keys"),
    least_clients: Annotated[
        int, typer.Option(min=2, help="Take part only in runs in whose sums at least so many clients are.")
    ] = 2,
    most_steps: Annotated[
        int | None, typer.Option(min=1, help="Take part only in runs of at most so many steps.")
    ] = None,
    most_epsilon: Annotated[
        float | None, typer.Option(min=0, help="Take part only in private runs, with epsilon up to this.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS; on this machine only.")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print what the folder holds and who is enrolled, and end.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --show: print a line of JSON.")] = False,
    guard: Guard = None,
    moved: Moved = False,
    log_format: LogFormatOption = LogFormat.text,
    log_level: LogLevelOption = LogLevel.info,
) -> None:
    """Help a server to add up uploads that it cannot read: on another machine, by another operator.

    The helper opens the seeds that clients seal for it, and gives the server the sum of the masks of a full
    batch, less noise. Its folder of keys has its own list of clients (`tardigrad enroll NAME --public KEY
    --keys DIR`), because nobody else can say who they are.
    """
    from tardigrad.secure.helper_guardrails import HelperGuardrails
    from tardigrad.secure.helper_state import HelperState
    from tardigrad.service.access.enrolment import public_key, public_text
    from tardigrad.service.access.identity import own_identity
    from tardigrad.service.helper.helper_lifecycle import run_helper
    from tardigrad.service.monitor.logs import log_to_stderr
    from tardigrad.service.server.endpoint import Endpoint

    if show:
        _show(out, keys, as_json)
        return
    if server is None:
        raise ConfigError("--server: give the identity of the server, as its `tardigrad identity` prints it")
    public_key(server, "--server")
    log_to_stderr(log_format.value, log_level.value)
    endpoint = Endpoint(host, port, keys, insecure)
    endpoint.check()
    identity = own_identity(keys)
    say(f"the identity of this helper is {public_text(identity)}")
    guardrails = HelperGuardrails(
        least_clients=least_clients, most_steps=most_steps, most_epsilon=most_epsilon
    )
    asyncio.run(
        run_helper(
            lambda: HelperState(out, identity, server, guardrails, guard=guard, moved=moved),
            endpoint,
            server,
            lambda port: say(f"listening on {host}:{port}"),
        )
    )
    say("stopped; the same command goes on")


def _show(out: Path, keys: Path, as_json: bool) -> None:
    from tardigrad.secure.helper_summary import read_summary
    from tardigrad.service.access.enrolment import LIST, Enrolled

    summary, enrolled = read_summary(out), len(Enrolled(keys / LIST))
    rows: dict[str, object] = {"enrolled clients": enrolled}
    if summary is not None:
        policy = summary.policy
        noise = policy.noise
        rows = {
            "run": policy.run,
            "server": policy.server,
            "helpers": len(policy.helpers),
            "version": summary.version,
            "released batches": summary.released,
            "abandoned batches": summary.abandoned,
            "uploads in a batch": policy.batch,
            "least clients": policy.least_clients,
            "epsilon": None if noise is None or noise.seed is not None else noise.epsilon,
            "admitted uploads": summary.admitted,
            **{f"refused uploads ({reason})": count for reason, count in summary.refused.items()},
            "clients that took part": summary.clients,
            **rows,
        }
    if as_json:
        say(plain_json(rows))
        return
    if summary is None:
        say("no run has begun here")
    for name, value in rows.items():
        say(f"{name}: {'none' if value is None else value}")


def identity(
    keys: Annotated[Path, typer.Option(metavar="DIR", help="The folder of keys.")] = Path("keys"),
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON.")] = False,
) -> None:
    """Print the identity of the server or the helper whose folder of keys this is; make it if it is missing.

    A secure run needs those of both before it starts: the server's config names its helpers' identities, a
    helper is told that of its server, and clients are told those of the helpers.
    """
    from tardigrad.service.access.enrolment import public_text
    from tardigrad.service.access.identity import own_identity

    public = public_text(own_identity(keys))
    say(plain_json({"identity": public}) if as_json else public)
