"""The queue of the journal: batches, their times, and a store that cannot be written."""

import asyncio

import pytest
from service_harness import PATIENCE, FakeClock

from tardigrad.service.monitor.counters import Counters
from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.server.clock import RunTime
from tardigrad.service.server.journal_queue import LARGEST_BATCH, JournalQueue
from tardigrad.service.server.worker_threads import Threads
from tardigrad.service.store.contract import JournalEntry, StoreError
from tardigrad.service.store.memory import MemoryStore
from tardigrad.service.store.sqlite import SqliteStore


class FullStore(MemoryStore):
    """A store whose disk is full."""

    def append(self, entries):
        raise StoreError("No space left on device")


def queued(scene, store, clock=None):
    """Run a scene with the queue of this store."""

    async def run():
        threads = Threads()
        try:
            return await scene(JournalQueue(store, threads, Counters(), RunTime(clock or FakeClock())))
        finally:
            threads.close()

    return asyncio.run(asyncio.wait_for(run(), PATIENCE))


@pytest.mark.parametrize("durable", [False, True])
def test_entries_are_journaled_in_order_and_in_batches(durable, tmp_path):
    store, clock = SqliteStore(tmp_path) if durable else MemoryStore(), FakeClock()

    async def scene(queue):
        for trip in range(LARGEST_BATCH + 2):
            queue.put(JournalEntry("give_up", 99.0, trip=trip))
        await queue.wait()
        clock.advance(5.0)
        first = await queue.write_batch()
        clock.advance(1.0)
        return first, await queue.write_batch(), len(queue)

    first, second, left = queued(scene, store, clock)
    assert [len(first), len(second), left] == [LARGEST_BATCH, 2, 0]
    written = [(position, one.entry) for position, one in [*first, *second]]
    assert written == store.entries(0)
    assert [entry.trip for _, entry in written] == list(range(LARGEST_BATCH + 2))
    assert {entry.time for _, entry in written[:LARGEST_BATCH]} == {5.0}  # the time of the batch
    assert {entry.time for _, entry in written[LARGEST_BATCH:]} == {6.0}
    store.close()


def test_entries_are_refused_and_their_memory_released_if_the_store_is_full():
    released = []

    async def scene(queue):
        effects = queue.put(JournalEntry("deliver", 0.0, trip=3), release=lambda: released.append(3))
        assert await queue.write_batch() == []
        with pytest.raises(Refused, match="No space left") as caught:
            await effects
        return caught.value

    refused = queued(scene, FullStore())
    assert (refused.why, refused.retry_after) == (Cause.DISK, 5.0)
    assert released == [3]


def test_queue_is_idle_when_all_entries_were_applied():
    async def scene(queue):
        await queue.until_idle()
        queue.put(JournalEntry("give_up", 0.0, trip=1))
        queue.set_idle()  # too early: an entry waits
        idle = asyncio.ensure_future(queue.until_idle())
        await asyncio.sleep(0)
        assert not idle.done()
        await queue.write_batch()
        queue.set_idle()
        await idle

    queued(scene, MemoryStore())


def test_failed_run_refuses_the_entries_that_wait():
    async def scene(queue):
        effects = queue.put(JournalEntry("give_up", 0.0, trip=1))
        queue.fail(Refused(Cause.STOPPING, "the run has failed"))
        with pytest.raises(Refused, match="the run has failed"):
            await effects
        await queue.until_idle()
        return len(queue)

    assert queued(scene, MemoryStore()) == 0
