"""Following a served run over the network with the key of an operator: all that its folder tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc

from tardigrad.errors import RunError
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.operator_connection import OperatorConnection, fault_of_call
from tardigrad.service.monitor.status import STATUS, Status
from tardigrad.service.protocol.refusals import Cause

FIRST_WAIT, LONGEST_WAIT = 1.0, 16.0
"""Seconds to wait before a server is asked again: it was restarted, or has had too many requests."""
MOST_FAILURES = 5
"""Attempts in a row without any answer after which the server is given up."""


@dataclass(frozen=True)
class FollowedConfig:
    """The config of the run as it was resolved, in TOML. It comes first, and again after a reconnection."""

    text: str


@dataclass(frozen=True)
class FollowedEvents:
    """Whole lines of events.jsonl (a line that is longer than 1 MiB comes in pieces)."""

    lines: bytes
    offset: int
    """The bytes of events.jsonl up to the end of these lines."""


@dataclass(frozen=True)
class FollowedRestart:
    """The events begin anew: forget those that came before. The file was shorter than the offset."""


Followed = FollowedConfig | Status | FollowedEvents | FollowedRestart


async def follow_server(
    address: str, signer: Signer, authority: bytes | None, run: str = "", offset: int = 0
) -> AsyncIterator[Followed]:
    """Yield what a server tells an operator about a run: its config, its status every second, and its events
    from this offset on. It ends when the run is over or has failed; after interruptions it goes on.

    `run`: the name of the run; it may be empty if the server has only one.
    """
    failures, wait, known = 0, FIRST_WAIT, offset > 0
    while True:
        connection = OperatorConnection(address, signer, authority)
        ended = False
        try:
            await connection.enter()
            async for part in connection.follow(run, offset):
                failures, wait, known = 0, FIRST_WAIT, True
                match part.WhichOneof("part"):
                    case "config":
                        yield FollowedConfig(part.config)
                    case "status":
                        status = STATUS.validate_json(part.status)
                        ended = status.ended
                        yield status
                    case "events":
                        offset += len(part.events)
                        yield FollowedEvents(part.events, offset)
                    case "restart":
                        offset = 0
                        yield FollowedRestart()
            if ended:
                return
        except grpc.aio.AioRpcError as error:
            trailing = dict(error.trailing_metadata() or ())
            why = trailing.get("tardigrad-why")
            if why == Cause.TIME:
                signer.set_clock(int(trailing["tardigrad-time-ms"]))
            failures += 1
            passing = why in (Cause.TIME, Cause.SESSION, Cause.RATE) or (
                known and why is None and error.code() is not grpc.StatusCode.UNIMPLEMENTED
            )
            if not passing or failures > MOST_FAILURES:
                raise await fault_of_call(error, address, authority) from None
        except TimeoutError:
            failures += 1
            if failures > MOST_FAILURES:
                raise RunError("the server did not answer in time") from None
        finally:
            await connection.close()
        await asyncio.sleep(wait)
        wait = min(LONGEST_WAIT, 2 * wait)
