"""The queue of clients that wait for a task."""

import asyncio

import pytest

from tardigrad.core.outcomes import Ticket
from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.server.waiting_clients import WaitingClients

TICKET = Ticket(0, "ann", 0, 0.0)


def test_client_that_asks_again_waits_once_and_last():
    async def scene():
        waiting = WaitingClients()
        first, bob = waiting.join("ann"), waiting.join("bob")
        second = waiting.join("ann")
        assert (await first, waiting.clients(), len(waiting)) == (None, ["bob", "ann"], 2)
        waiting.leave("ann", first)  # the earlier call ends; the later one still waits
        waiting.serve("ann", TICKET)
        assert (await second, waiting.clients()) == (TICKET, ["bob"])
        waiting.serve("eve", TICKET)  # she does not wait, and gets it at her next check-in
        waiting.dismiss()
        assert (await bob, len(waiting)) == (None, 0)

    asyncio.run(scene())


def test_error_reaches_the_call_that_waits():
    async def scene():
        waiting = WaitingClients()
        place = waiting.join("ann")
        waiting.fail("ann", Refused(Cause.DISK, "the server cannot write"))
        with pytest.raises(Refused, match="cannot write"):
            await place
        assert len(waiting) == 0

    asyncio.run(scene())
