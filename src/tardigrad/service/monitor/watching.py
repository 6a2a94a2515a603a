"""Watching a served run over the network, with the key of an enrolled client."""

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
"""Seconds to wait when the client with this key has sent too many requests."""


async def watch_server(
    address: str, signer: Signer, authority: bytes | None, run: str = ""
) -> AsyncIterator[Status]:
    """Yield the status of a run as its server sends it to any enrolled client: numbers, but no names. `run`:
    its name, if the server has several; "" for any."""
    set_clock, wait = False, FIRST_WAIT
    while True:
        try:
            async with Connection(address, signer, authority, run=run) as connection:
                async for progress in connection.watch():
                    yield Status(
                        version=progress.version, trips=progress.trips, time=progress.time,
                        in_flight=progress.in_flight, waiting=progress.waiting,
                        staleness=progress.staleness, given_up=progress.given_up,
                        uploads_refused=dict(progress.refused), metrics=dict(progress.metrics),
                        over=progress.over, written=time.time(),
                    )  # fmt: skip
                return
        except grpc.aio.AioRpcError as error:
            trailing = dict(error.trailing_metadata() or ())
            if trailing.get("tardigrad-why") == Cause.TIME and not set_clock:
                set_clock = True
                signer.set_clock(int(trailing["tardigrad-time-ms"]))
                continue
            if trailing.get("tardigrad-why") == Cause.RATE:  # the client with this key sends requests too
                await asyncio.sleep(wait)  # long enough for the two requests Join and Watch
                wait = min(LONGEST_WAIT, 2 * wait)
                continue
            if OVER in trailing:
                raise RunError(f"the run is over ({trailing[OVER]}); its folder has the result") from None
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                fault = await asyncio.to_thread(tls_fault, address, authority)
                if fault is not None:
                    raise ConfigError(fault) from None
                raise RunError(await asyncio.to_thread(unreachable, address)) from None
            raise RunError(f"{address}: {error.code().name}: {error.details()}") from None
