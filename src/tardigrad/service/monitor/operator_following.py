"""The server's reports over the network: to an operator everything, to any other client the progress."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.operator_connection import OperatorConnection
from tardigrad.service.monitor.following import Followed, follow_server
from tardigrad.service.monitor.status import Status
from tardigrad.service.monitor.watching import watch_server
from tardigrad.service.protocol.refusals import Cause


async def is_operator(address: str, signer: Signer, authority: bytes | None) -> bool:
    """Return whether the server takes this key for an operator's. If it cannot be asked, the answer is no,
    and the next call says why."""
    connection = OperatorConnection(address, signer, authority)
    try:
        for _ in range(2):
            try:
                await connection.enter()
            except grpc.aio.AioRpcError as error:
                trailing = dict(error.trailing_metadata() or ())
                if trailing.get("tardigrad-why") != Cause.TIME:
                    return False
                signer.set_clock(int(trailing["tardigrad-time-ms"]))
            else:
                return True
        return False
    finally:
        await connection.close()


async def all_that_is_told(
    address: str, signer: Signer, authority: bytes | None, run: str = "", offset: int = 0
) -> AsyncIterator[Followed]:
    """Yield what the server tells the owner of this key: an operator gets config, status and the events from
    this offset on, any other client the status without names. `run`: its name, if the server has several."""
    if await is_operator(address, signer, authority):
        async for part in follow_server(address, signer, authority, run, offset):
            yield part
    else:
        async for status in watch_server(address, signer, authority, run):
            yield status


async def told_status(
    address: str, signer: Signer, authority: bytes | None, run: str = ""
) -> AsyncIterator[Status]:
    """Yield the status of a run as its server tells it to the owner of this key."""
    async for part in all_that_is_told(address, signer, authority, run):
        if isinstance(part, Status):
            yield part
