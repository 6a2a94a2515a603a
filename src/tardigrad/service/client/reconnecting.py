"""Connect to a server, and connect again after errors that pass."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import grpc

from tardigrad.errors import ConfigError, RunError
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.access.tls_probe import tls_fault, unreachable
from tardigrad.service.client.backoff import Backoff
from tardigrad.service.client.connection import Connection, RunIsOver
from tardigrad.service.client.pacing import RequestPace
from tardigrad.service.protocol.refusals import OVER, Cause

TEMPORARY = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
)
"""Statuses after which the client tries again."""

T = TypeVar("T")


class CannotTakePart(RunError):
    """The run has failed, is paused, or an operator has ejected this client; the server may have others."""


class Reconnecting:
    """Opens connections to one server until a session with it has come to its end."""

    def __init__(
        self,
        address: str,
        signer: Signer,
        authority: bytes | None,
        patience: float,
        run: str = "",
        moves_on: bool = False,
    ) -> None:
        """`patience`: the seconds after which a server that does not answer is given up. `run`: the name of
        the run that is wanted; "" for any. `moves_on`: raise `CannotTakePart` instead of waiting for it
        if it has failed or is paused, and if this client was ejected from it."""
        self._address, self._signer, self._authority = address, signer, authority
        self._wanted, self._moves_on = run, moves_on
        self._backoff, self._pace = Backoff(patience), RequestPace()
        self._joined = False

    async def connected(self, session: Callable[[Connection], Awaitable[T]]) -> T | RunIsOver:
        """Return the result of a session, which is begun again after errors that pass; or `RunIsOver` if the
        run ended while this client was away."""
        while True:
            try:
                async with self._connection() as connection:
                    self._joined = True
                    return await session(connection)
            except grpc.aio.AioRpcError as error:
                over = dict(error.trailing_metadata() or ()).get(OVER)
                if over is not None:
                    return RunIsOver(str(over))
                await self._wait_or_raise(error)
            except TimeoutError:
                await self._backoff.failed("the server did not answer in time")

    def _connection(self) -> Connection:
        return Connection(self._address, self._signer, self._authority, self._pace, run=self._wanted)

    async def _wait_or_raise(self, error: grpc.aio.AioRpcError) -> None:
        """Wait if the error is temporary; raise a sentence if it is not."""
        metadata = dict(error.trailing_metadata() or ())
        why = metadata.get("tardigrad-why")
        if why == Cause.SESSION:
            await self._backoff.failed("the server was restarted")
            return
        if why == Cause.TIME and "tardigrad-time-ms" in metadata:
            self._signer.set_clock(int(metadata["tardigrad-time-ms"]))
            await self._backoff.failed("the clock of this machine differs from the server's")
            return
        if why == Cause.HELPER_AWAY:  # patience is for servers that do not answer
            self._backoff.restart_patience()
            sentence = f"the server refused for now: {error.details()}"
            await self._backoff.failed(sentence, float(metadata.get("tardigrad-retry-after", 0.0)))
            return
        if why in (Cause.FAILED, Cause.EJECTED) and self._moves_on:
            raise CannotTakePart(f"the server refused: {error.details()}")
        silent = error.code() is grpc.StatusCode.UNAVAILABLE and why is None
        if silent and not self._joined:  # is it possible to join?
            fault = await asyncio.to_thread(tls_fault, self._address, self._authority)
            if fault is not None:
                raise ConfigError(fault)
        if error.code() in TEMPORARY:
            if why is not None:
                sentence = f"the server refused for now: {error.details()}"
            elif error.code() is grpc.StatusCode.UNAVAILABLE:
                sentence = await asyncio.to_thread(unreachable, self._address)
            else:
                sentence = f"the call failed ({error.details()})"
            await self._backoff.failed(sentence, float(metadata.get("tardigrad-retry-after", 0.0)))
            return
        raise (ConfigError if why == Cause.NOT_ENROLLED else RunError)(
            f"the server refused: {error.details()}"
        )


@dataclass(frozen=True)
class OfferedRun:
    """The run that a server would have a client take part in."""

    name: str
    """Its name; "" if the server has only one."""
    declaration: str
    """The requirements for a client that has a table and no code; "" if it needs code."""


async def ask_run(
    address: str,
    signer: Signer,
    authority: bytes | None,
    patience: float,
    run: str = "",
    moves_on: bool = False,
) -> OfferedRun | RunIsOver:
    """Return the run of this name, or with "" the one that the server chooses; or why all are over.
    `moves_on`: as in `Reconnecting`."""

    async def session(connection: Connection) -> OfferedRun:
        return OfferedRun(connection.joined.name, connection.declaration)

    return await Reconnecting(address, signer, authority, patience, run, moves_on).connected(session)
