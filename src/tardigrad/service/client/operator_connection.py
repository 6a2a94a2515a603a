"""An operator's connection to a server: the four calls of the administration, signed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import grpc

from tardigrad.errors import ConfigError, RunError, TardigradError
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.access.tls_probe import tls_fault, unreachable
from tardigrad.service.client.connection import OPTIONS, SHORT_SECONDS
from tardigrad.service.protocol.refusals import Cause
from tardigrad.service.protocol.v1 import admin_pb2 as admin_v1
from tardigrad.service.protocol.v1 import admin_pb2_grpc as admin_v1_grpc

IDLE_SECONDS = 60.0
"""Seconds without a message after which a stream is given up."""


class OperatorConnection:
    """One channel to a server, for one session of the server process. Failures are gRPC's errors."""

    def __init__(self, address: str, signer: Signer, authority: bytes | None) -> None:
        """Make a connection, without TLS if no certificate of an authority is given."""
        self._signer = signer
        if authority is None:
            self._channel = grpc.aio.insecure_channel(address, OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(authority), OPTIONS)
        self._stub = admin_v1_grpc.AdministrationStub(self._channel)
        self.runs: list[admin_v1.RunListing] = []
        """The runs of the server."""

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def enter(self) -> None:
        """Begin a session."""
        entered = await self._stub.Enter(self._signer.sign("Enter"), timeout=SHORT_SECONDS)
        self._signer.session, self.runs = entered.session, list(entered.runs)

    async def steer(
        self,
        act: str,
        run: str = "",
        client: str = "",
        limits: Mapping[str, float] | None = None,
        reason: str = "",
    ) -> admin_v1.Steered:
        """Do an act."""
        request = admin_v1.SteerRequest(run=run, act=act, client=client, limits=limits or {}, reason=reason)
        signed = self._signer.sign("Steer", request.SerializeToString())
        return await self._stub.Steer(signed, timeout=SHORT_SECONDS)

    async def export(self, run: str = "", reason: str = "") -> AsyncIterator[admin_v1.ExportPart]:
        """Yield the parts of an export."""
        request = admin_v1.ExportRequest(run=run, reason=reason).SerializeToString()
        async for part in _messages(self._stub.Export(self._signer.sign("Export", request))):
            yield part

    async def follow(self, run: str = "", offset: int = 0) -> AsyncIterator[admin_v1.FollowedPart]:
        """Yield what the run's folder tells, with the events from this offset on."""
        request = admin_v1.FollowRequest(run=run, offset=offset).SerializeToString()
        async for part in _messages(self._stub.Follow(self._signer.sign("Follow", request))):
            yield part


async def _messages(call: grpc.aio.UnaryStreamCall) -> AsyncIterator:  # type: ignore[type-arg]
    """Yield the messages of a stream; raise a TimeoutError if nothing comes for a time."""
    try:
        while True:
            async with asyncio.timeout(IDLE_SECONDS):
                part = await call.read()
            if part is grpc.aio.EOF:
                return
            yield part
    finally:
        call.cancel()


@asynccontextmanager
async def entered(address: str, signer: Signer, authority: bytes | None) -> AsyncIterator[OperatorConnection]:
    """Yield a connection whose session has begun. Errors of its calls become one sentence."""
    connection = OperatorConnection(address, signer, authority)
    try:
        try:
            await connection.enter()
        except grpc.aio.AioRpcError as error:
            trailing = dict(error.trailing_metadata() or ())
            if trailing.get("tardigrad-why") != Cause.TIME:
                raise
            signer.set_clock(int(trailing["tardigrad-time-ms"]))
            await connection.enter()
        yield connection
    except grpc.aio.AioRpcError as error:
        raise await fault_of_call(error, address, authority) from None
    except TimeoutError:
        raise RunError("the server did not answer in time") from None
    finally:
        await connection.close()


async def fault_of_call(error: grpc.aio.AioRpcError, address: str, authority: bytes | None) -> TardigradError:
    """Return the error of a call as one sentence."""
    why = dict(error.trailing_metadata() or ()).get("tardigrad-why")
    if why in (Cause.NOT_ENROLLED, Cause.ACT, Cause.SIGNATURE):
        return ConfigError(f"the server refused: {error.details()}")
    if why is not None:
        return RunError(f"the server refused: {error.details()}")
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        fault = await asyncio.to_thread(tls_fault, address, authority)
        return ConfigError(fault) if fault else RunError(await asyncio.to_thread(unreachable, address))
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return RunError("this server cannot be steered: its run is over, or it is of an older version")
    return RunError(f"the call failed ({error.code().name}: {error.details()})")
