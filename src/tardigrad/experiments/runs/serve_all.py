"""Serve several configs to real clients in one process: `td.serve_all`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tardigrad.errors import ConfigError, RunError, naming
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.drive import one_thread
from tardigrad.experiments.runs.hosted_run import HostedRun, tell_unused, with_clients_data
from tardigrad.experiments.runs.result import Result, result_of
from tardigrad.service.access.enrolment import check_name
from tardigrad.service.monitor.progress_record import over_text
from tardigrad.service.server.endpoint import Endpoint
from tardigrad.service.server.lifecycle import serve_several
from tardigrad.service.server.run_server import RunToServe, ServedRun


def serve_all(
    configs: Mapping[str, Config],
    *,
    out: Path | str,
    endpoint: Endpoint | None = None,
    say: Callable[[str], None] = print,
    accept_loss: bool = False,
    guard: Path | str | None = None,
    moved: bool = False,
    where: Mapping[str, str] | None = None,
) -> dict[str, Result | None]:
    """Serve several runs on one port; return the result of each, or None for one that was stopped by SIGTERM
    or Ctrl-C.

    All configs are checked before anything is written. Runs that `out` holds go on. A run that fails does not
    touch the others.

    `configs`: by the name of the run, which clients ask for. A model of one's own is named in the config.
    `out`: the folder of the runs; each is in the folder of its name there.
    `endpoint`: the address, and the folder with the clients' keys and the server's certificate.
    `say`: called with lines for the operator.
    `accept_loss`: go on although uploads that were acknowledged are lost; not for private runs.
    `guard`: a folder outside `out`, with a file for each private run with which a restored backup is noticed.
    `moved`: `out` was moved to another place, and nobody goes on with the original.
    `where`: by name, the files that the configs are from, which errors name.

    Raises a ConfigError if a setting is wrong, and when all others have ended a RunError if a run has failed.

    >>> serve_all({"heart": heart, "lung": lung}, out="live")  # doctest: +SKIP
    """
    endpoint, where = endpoint or Endpoint(), where or {}
    endpoint.check()
    if not configs:
        raise ConfigError("there is no run to serve; give at least one config")
    guards = None if guard is None else Path(guard)
    if guards is not None and not guards.is_dir():
        raise ConfigError(
            f"--guard {guards}: with several runs it must be a folder that exists, for a file of each"
        )
    with one_thread(), ExitStack() as stack:
        hosted: dict[str, HostedRun] = {}
        for name, config in configs.items():
            check_name(name, "run")
            with naming(where.get(name, name)):
                tell_unused(config, say)
                own = None if guards is None or config.privacy is None else guards / name
                hosted[name] = HostedRun(
                    with_clients_data(config), Path(out) / name, endpoint, None, accept_loss, own, moved
                )
        runs: dict[str, RunToServe] = {}
        for name, one in sorted(hosted.items(), key=lambda item: not item[1].begun):  # damaged ones say so
            with naming(where.get(name, name)):
                run = one.open(stack)
            if run is not None:
                runs[name] = replace(run, closed=_telling(name, run, say))
        finished = {
            name: (one.over, one.plan.settings.linger_seconds)
            for name, one in hosted.items()
            if name not in runs
        }
        for name, (reason, _) in finished.items():
            say(_ended(name, reason, hosted[name].path))

        def listening(port: int) -> None:
            say(f"listening on {endpoint.host}:{port}")

        outcomes = asyncio.run(serve_several([*runs.values()], finished, endpoint, listening))
        failures = [
            f"{name} has failed: {error}"
            for name, error in outcomes.items()
            if isinstance(error, BaseException)
        ]
        if failures:
            raise RunError("; ".join(failures))
        over = [name for name in hosted if name in finished or _is_over(outcomes[name])]
        return {name: result_of(one.folder) if name in over else None for name, one in hosted.items()}


def _is_over(served: ServedRun | BaseException) -> bool:
    return isinstance(served, ServedRun) and bool(served.reason)


def _telling(name: str, run: RunToServe, say: Callable[[str], None]) -> Callable[[ServedRun], None]:
    """Return what is done when a run is closed: as it says, and tell the operator."""

    def closed(served: ServedRun) -> None:
        run.closed(served)
        if served.reason:
            say(_ended(name, served.reason, run.folder))
        elif served.over is not None:
            say(f"{name}: the run is {over_text(served.over, served.steps_waiting)}")

    return closed


def _ended(name: str, reason: str, folder: Path) -> str:
    return f"{name}: the run is over ({reason}): tardigrad show {folder}"
