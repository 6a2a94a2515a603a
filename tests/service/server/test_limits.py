"""Limits: requests a second, and the memory of uploads."""

import asyncio

import pytest
from service_harness import FakeClock

from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.server.limits import Rates, UploadMemory


def test_requests_above_the_rate_are_refused():
    clock = FakeClock()
    rates = Rates(2.0, clock)
    for _ in range(4):
        rates.take("ann")
    with pytest.raises(Refused) as caught:
        rates.take("ann")
    assert caught.value.why is Cause.RATE
    assert caught.value.retry_after == pytest.approx(0.5)
    rates.take("bob")
    clock.advance(0.5)
    rates.take("ann")


def test_uploads_wait_for_memory_in_their_order():
    async def scene():
        reception = UploadMemory(10)
        await reception.take(6, 1.0)
        order = []

        async def one(name, size):
            await reception.take(size, 1.0)
            order.append(name)

        large, small = asyncio.ensure_future(one("large", 8)), asyncio.ensure_future(one("small", 2))
        await asyncio.sleep(0)
        assert order == []  # the small one would fit, but came later
        reception.give_back(6)
        await asyncio.gather(large, small)
        assert order == ["large", "small"]
        assert reception.used == 10
        with pytest.raises(Refused) as caught:
            await reception.take(1, 0.01)
        assert caught.value.why is Cause.FULL
        reception.give_back(10)
        assert reception.used == 0

    asyncio.run(scene())
