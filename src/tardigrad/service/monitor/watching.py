"""Watching a served run from anywhere, with an enrolled key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import grpc

from tardigrad.errors import ConfigError, RunError
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.access.tls_probe import tls_fault, unreachable
from tardigrad.service.client.connection import Connection
from tardigrad.service.monitor.status import Status
from tardigrad.service.protocol.refusals import OVER, Cause

FIRST_WAIT, LONGEST_WAIT = 1.0, 16.0
"""Seconds to wait when the client with this key has used up its requests."""


async def watch_server(address: str, signer: Signer, authority: bytes | None) -> AsyncIterator[Status]:
    """What the server tells any client that is enrolled: numbers, but no names."""
    set_clock, wait = False, FIRST_WAIT
    while True:
        try:
            async with Connection(address, signer, authority) as connection:
                async for told in connection.watch():
                    yield Status(
                        version=told.version, trips=told.trips, time=told.time, in_flight=told.in_flight,
                        waiting=told.waiting, staleness=told.staleness, given_up=told.given_up,
                        uploads_refused=dict(told.refused), metrics=dict(told.metrics), over=told.over,
                        written=time.time(),
                    )  # fmt: skip
                return
        except grpc.aio.AioRpcError as error:
            said = dict(error.trailing_metadata() or ())
            if said.get("tardigrad-why") == Cause.TIME and not set_clock:
                set_clock = True
                signer.set_clock(int(said["tardigrad-time-ms"]))
                continue
            if said.get("tardigrad-why") == Cause.RATE:  # the client with this key is busy
                await asyncio.sleep(wait)  # long enough for two requests, to join and to watch
                wait = min(LONGEST_WAIT, 2 * wait)
                continue
            if OVER in said:
                raise RunError(f"the run is over ({said[OVER]}); its folder has the result") from None
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                fault = await asyncio.to_thread(tls_fault, address, authority)
                if fault is not None:
                    raise ConfigError(fault) from None
                raise RunError(await asyncio.to_thread(unreachable, address)) from None
            raise RunError(f"{address}: {error.code().name}: {error.details()}") from None
