"""A helper's process: from opening its folder to the end of the last call."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from tardigrad.secure.helper_state import HelperState
from tardigrad.service.access.certificates import expiries
from tardigrad.service.access.enrolment import LIST, Enrolled
from tardigrad.service.access.signed_requests import RequestVerifier
from tardigrad.service.helper.helper_rpc import NAME, HelperServicer, handlers
from tardigrad.service.helper.trusted_keys import ServerKey
from tardigrad.service.protocol.refusals import log
from tardigrad.service.server.endpoint import Endpoint
from tardigrad.service.server.expiry_warnings import warn_of_expiry
from tardigrad.service.server.listener import Listener

GRACE = 10.0
"""Seconds for calls that are under way when the helper is asked to stop."""


@asynccontextmanager
async def listening_helper(
    state: HelperState, endpoint: Endpoint, server: str
) -> AsyncIterator[tuple[HelperServicer, int]]:
    """Answer the calls of the server with this public key, in the background of the block, which is given the
    servicer and the port. The list of clients is in the endpoint's folder of keys."""
    endpoint.check()
    credentials = endpoint.credentials()
    gate = RequestVerifier(ServerKey(server))
    servicer = HelperServicer(state, gate, Enrolled(endpoint.keys / LIST))
    listener = Listener(NAME, handlers(servicer))
    try:
        port = await listener.start(f"{endpoint.host}:{endpoint.port}", credentials)
        log.info("listening on %s:%d", endpoint.host, port, extra={"event": "listening"})
        yield servicer, port
        await listener.stop(GRACE)
    finally:
        await listener.stop(0)
        await asyncio.to_thread(servicer.shut_down)
        log.info(
            "stopped; refused: %s", dict(servicer.refusals.counts) or "nothing", extra={"event": "stopped"}
        )


async def run_helper(
    open_state: Callable[[], HelperState], endpoint: Endpoint, server: str, listening: Callable[[int], None]
) -> None:
    """Help until a signal asks to stop; raise the error if the helper fails. `listening` is called with the
    port."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # the list of clients is read whenever it changes
    with open_state() as state:
        async with listening_helper(state, endpoint, server) as (servicer, port):
            listening(port)
            warnings = asyncio.ensure_future(
                warn_of_expiry({} if endpoint.insecure else expiries(endpoint.keys))
            )
            stop = asyncio.ensure_future(asked.wait())
            stop.add_done_callback(lambda _: servicer.failed.cancel())
            with suppress(asyncio.CancelledError):
                await servicer.failed
            stop.cancel()
            warnings.cancel()
