"""A client that takes part in any run of a server: when one is over it goes on with the next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from tardigrad.errors import ConfigError
from tardigrad.service.client.client_memory import kept_runs
from tardigrad.service.client.connection import RunIsOver
from tardigrad.service.client.reconnecting import CannotTakePart, OfferedRun
from tardigrad.service.protocol.refusals import log


async def take_part_in_any(
    ask: Callable[[str], Awaitable[OfferedRun | RunIsOver]],
    take_part: Callable[[OfferedRun], Awaitable[str]],
    state: Path,
) -> str:
    """Take part in one run after the other, and return why the last was over.

    Uploads that the client keeps are delivered first, each to the run that it belongs to. `ask`: returns the
    run of a name, or with "" the one that the server chooses. `take_part`: returns why the run ended.
    `state`: the folder of the client's memories.
    """
    wanted = list(dict.fromkeys(kept_runs(state)))
    left: set[str] = set()  # runs that this client has left
    while True:
        name = wanted.pop(0) if wanted else ""
        try:
            offered = await ask(name)
            if isinstance(offered, OfferedRun):
                reason = await take_part(offered)
        except CannotTakePart as error:
            log.warning("%s; asking for another run", error)
            continue
        except ConfigError as error:
            if not name:
                raise
            log.warning("the uploads kept for the run %s cannot be delivered: %s", name, error)
            continue
        if isinstance(offered, RunIsOver):
            if not name:
                return offered.reason
        elif not offered.name or offered.name in left:  # the only one, or one that wants this client no more
            return reason
        else:
            left.add(offered.name)
            log.info("the run %s is over (%s); asking for another run", offered.name, reason)
