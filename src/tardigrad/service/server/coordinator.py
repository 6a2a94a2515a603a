"""The coordinator: takes what clients do, one after the other, and makes it count.

What a client does becomes an entry in a queue. All that wait are journaled together; only then do they count,
in this order, and only then is anybody answered. So what was answered outlives a crash, and what failed to be
written never happened.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from tardigrad.core.events import RunEnded
from tardigrad.core.outcomes import Ticket
from tardigrad.core.upload import Upload
from tardigrad.service.monitor.counters import Counters
from tardigrad.service.protocol.refusals import Cause, Refused, log
from tardigrad.service.protocol.wire import Layout
from tardigrad.service.server.clock import SYSTEM, Clock
from tardigrad.service.server.model_state import Broadcast, ModelState
from tardigrad.service.server.run_state import Effects, RunState
from tardigrad.service.server.service_settings import ServiceSettings
from tardigrad.service.server.waiting_clients import WaitingClients
from tardigrad.service.server.worker_threads import Threads
from tardigrad.service.store.contract import JournalEntry, RecordedAnswer, Store, StoreError
from tardigrad.service.store.recovery import Recovery, RunLog, Snapshot, upload_of

MOST_AT_ONCE = 256
"""Entries of one transaction."""
SWEEP_SECONDS = 0.5


@dataclass(slots=True)
class Waiting:
    """An entry that is not journaled yet."""

    entry: JournalEntry
    upload: Upload | None
    effects: asyncio.Future[Effects]
    done: Callable[[], None] | None
    """Called when the upload's memory is free again."""


class Coordinator:
    """One run on a server. All methods are for the event loop's thread."""

    def __init__(
        self,
        run_state: RunState,
        model_state: ModelState,
        store: Store,
        record: RunLog,
        settings: ServiceSettings,
        upload_layout: Layout,
        after_snapshot: Callable[[], None] = lambda: None,
        private: bool = False,
        clock: Clock = SYSTEM,
    ) -> None:
        self.run_state, self.model_state, self.settings, self.upload_layout = (
            run_state,
            model_state,
            settings,
            upload_layout,
        )
        self._store = store
        self.counters = Counters()
        run = store.fact("run", f"{random.SystemRandom().getrandbits(64):016x}")
        self.epoch = random.SystemRandom().randrange(1, 2**63)
        """Of this process. A ticket is its trip and the epoch of the process that granted it: after a restore
        or a power failure trip numbers are given again, but not with the same epoch."""
        self._threads = Threads()
        self.recovery = Recovery(
            run, run_state, model_state, store, record, self._threads, upload_layout, after_snapshot, private
        )
        self.clock = clock
        self._process_began = 0.0  # in seconds of the run
        self._offset = -clock.monotonic()  # from monotonic time to seconds of the run; set when recovered
        self._line = WaitingClients()
        self._queue: deque[Waiting] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()  # no entry is waiting or being committed
        self._idle.set()
        self._ending: set[int] = set()  # trips of which the end is in the queue
        self._arriving: Counter[int] = Counter()  # by trip: calls that receive or count its upload
        self._granting: set[str] = set()  # clients whose check-in is in the queue
        self._ready: dict[int, asyncio.Future[Broadcast]] = {}
        self._stopping = False
        self.moved = asyncio.Condition()
        """Notified when the version changes or the run ends."""
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the run is over; or the exception that ended it, which is in the log then."""
        self.ended.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._tasks: list[asyncio.Task[None]] = []
        self._snapshotting: asyncio.Task[None] | None = None

    @property
    def run(self) -> str:
        """The run's identity: what a client remembers belongs to one run."""
        return self.recovery.run

    @property
    def now(self) -> float:
        """Seconds for which the run has been served. They go on from the last entry after a restart, and
        never follow the wall clock."""
        return self._offset + self.clock.monotonic()

    # -- life --------------------------------------------------------------------------------------

    async def start(self, snapshot: Snapshot | None, accept_loss: bool = False) -> None:
        """Recover what there is, and begin to take entries. `accept_loss`: although a part of it is lost."""
        self._loop = asyncio.get_running_loop()
        self.model_state.published = self._tell_published
        await self._threads.in_model_thread(self.recovery.recover, snapshot, accept_loss)
        self.model_state.aggregator.notify(self._advance)
        self._process_began = self.run_state.time
        self._offset = self.run_state.time - self.clock.monotonic()
        for version in range(self.model_state.aggregator.version, self.run_state.book.version + 1):
            self._publish(version)
        for version, broadcast in self.model_state.broadcasts.items():
            self._ready[version] = _known(broadcast)
        self._tasks = [
            asyncio.create_task(self._commit_forever()),
            asyncio.create_task(self._sweep_forever()),
        ]
        self._wake.set()  # what was recovered may have been the end

    def dismiss(self) -> None:
        """Take nothing more: who waits is sent away."""
        self._stopping = True
        self._line.dismiss()
        self._tell_watchers()

    async def stop(self) -> None:
        """Make a snapshot and end. The store stays open: whoever opened it closes it."""
        self.dismiss()
        await self._idle.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._snapshotting is not None:
            await asyncio.wait({self._snapshotting})
        try:
            if not self.ended.done():
                self.run_state.time = self.now  # the next process goes on from here
                await self.recovery.snapshot()
        finally:
            await self._threads.in_model_thread(self.model_state.close)
            await asyncio.to_thread(self._threads.close)

    @property
    def waiting(self) -> int:
        """Clients in the line."""
        return len(self._line)

    @property
    def stopping(self) -> bool:
        """Whether the server is about to end."""
        return self._stopping

    # -- what clients do ---------------------------------------------------------------------------

    async def check_in(self, client: str, holding: frozenset[int], seconds: float) -> Ticket | None:
        """A ticket: one that the client was given and does not hold, or a new one as soon as there is room.
        Nothing if there was none for so long, or the run is over; `Refused` if it cannot be written down."""
        for ticket in self.run_state.open.get(client, []):
            if ticket.trip not in holding and ticket.trip not in self._ending:
                return ticket
        if self.run_state.over is not None or self._stopping:
            return None
        place = self._line.join(client)
        self._grant()
        try:
            return await asyncio.wait_for(asyncio.shield(place), seconds)
        except TimeoutError:
            return None
        finally:
            self._line.leave(client, place)

    async def broadcast(self, version: int) -> Broadcast:
        """A version as it is downloaded, as soon as it exists."""
        ready = self._ready.get(version)
        if ready is None:
            raise Refused(Cause.UNSOLICITED, f"version {version} is gone: the trip has just ended")
        return await asyncio.shield(ready)

    async def expect(
        self, client: str, trip: int, epoch: int, version: int, sha: bytes
    ) -> RecordedAnswer | None:
        """An upload is announced: nothing if it may come, or what became of it if it came before."""
        recorded = await self.recovery.answer(trip)
        if recorded is not None:
            if recorded.epoch != epoch:
                raise self._other_ticket(recorded.client == client, trip, epoch)
            if recorded.client != client:
                raise Refused(Cause.NOT_YOURS, f"trip {trip} is not yours")
            if recorded.digest != sha:
                raise Refused(Cause.DUPLICATE, f"trip {trip} was delivered already, with other values")
            return recorded
        ticket = self.run_state.book.in_flight.get(trip)
        if ticket is not None and self.run_state.epochs[trip] != epoch:
            raise self._other_ticket(ticket.client == client, trip, epoch)
        if trip in self._ending or trip in self._arriving:
            raise Refused(Cause.AT_ONCE, f"trip {trip} is just being delivered or given up", retry_after=0.5)
        if ticket is None:
            raise Refused(
                Cause.UNSOLICITED,
                f"trip {trip} is not under way: it was given up, has expired, or never began",
            )
        if ticket.client != client:
            raise Refused(Cause.NOT_YOURS, f"trip {trip} is not yours")
        if ticket.version != version:
            raise Refused(Cause.VERSION, f"trip {trip} started from version {ticket.version}, not {version}")
        return None

    @staticmethod
    def _other_ticket(own: bool, trip: int, epoch: int) -> Refused:
        """Return the refusal for an upload whose trip number belongs to a ticket of another epoch."""
        if own and not epoch:
            return Refused(
                Cause.NO_EPOCH,
                f"the upload of trip {trip} does not have its task's epoch; upgrade this client",
            )
        return Refused(
            Cause.UNSOLICITED,
            f"trip {trip} as you know it is lost: the server was restored to a state from before it began",
        )

    def arriving(self, trip: int) -> None:
        """The upload of this trip is being received or counted. Until `arrived` was called as often, the trip
        does not expire, and no second delivery of it begins."""
        self._arriving[trip] += 1

    def arrived(self, trip: int) -> None:
        """One of those who called `arriving` has finished."""
        self._arriving[trip] -= 1
        if not self._arriving[trip]:
            del self._arriving[trip]

    async def deliver(
        self, entry: JournalEntry, vectors: dict[str, Tensor], done: Callable[[], None]
    ) -> RecordedAnswer | None:
        """An upload that is on disk: what became of it, when it counts; nothing if the run was over first."""
        self._ending.add(entry.trip)
        try:
            await self._enqueue(entry, upload_of(entry, vectors), done)
        finally:
            self._ending.discard(entry.trip)
        return await self.recovery.answer(entry.trip)

    async def give_up(self, client: str, trip: int, epoch: int) -> bool:
        """The client will not do this trip. Whether it was under way."""
        if self.run_state.epochs.get(trip) != epoch:
            return False
        if trip in self._ending or trip in self._arriving:
            raise Refused(Cause.AT_ONCE, f"trip {trip} is just being delivered or given up", retry_after=0.5)
        ticket = self.run_state.book.in_flight.get(trip)
        if ticket is None:
            return False
        if ticket.client != client:
            raise Refused(Cause.NOT_YOURS, f"trip {trip} is not yours")
        await self._end_trip(trip)
        return True

    async def _end_trip(self, trip: int) -> None:
        self._ending.add(trip)
        try:
            await self._enqueue(JournalEntry("give_up", self.now, trip=trip))
        finally:
            self._ending.discard(trip)

    def write(self, trip: int, payload: Any) -> str:
        """Store the bytes of an upload and return their name. May be called from any thread."""
        return self._store.write(trip, payload)

    # -- the queue ---------------------------------------------------------------------------------

    def _enqueue(
        self, entry: JournalEntry, upload: Upload | None = None, done: Callable[[], None] | None = None
    ) -> asyncio.Future[Effects]:
        effects: asyncio.Future[Effects] = asyncio.get_running_loop().create_future()
        self._queue.append(Waiting(entry, upload, effects, done))
        self._idle.clear()
        self._wake.set()
        return effects

    def _grant(self) -> None:
        """Let in who may start, from the first in the line on."""
        book = self.run_state.book
        if self.run_state.over is not None or self._stopping or self.model_state.waiting:
            return
        room = book.capacity() - len(self._granting)
        if room <= 0:
            return
        for client in self._line.clients():
            if room <= 0:
                return
            if client not in self._granting and book.objection(client) is None:
                room -= 1
                self._granting.add(client)
                granted = self._enqueue(JournalEntry("check_in", self.now, client=client, epoch=self.epoch))
                granted.add_done_callback(lambda done: done.exception())  # who waits in the line hears of it

    async def _commit_forever(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._queue:
                    await self._commit()
                if self.run_state.over is not None:
                    await self._finish()
                elif self._snapshot_due():
                    self._snapshotting = asyncio.create_task(self.recovery.snapshot())
                    self._snapshotting.add_done_callback(self._heed)
                if not self._queue:
                    self._idle.set()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fail(error)

    def _heed(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        log.error("the run has failed: %s", error, extra={"event": "failed"})
        if not self.ended.done():
            self.ended.set_exception(error)
        self._stopping = True
        self._line.dismiss()
        while self._queue:
            waiting = self._queue.popleft()
            if not waiting.effects.done():
                waiting.effects.set_exception(Refused(Cause.STOPPING, "the run has failed"))
        self._idle.set()

    async def _commit(self) -> None:
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), MOST_AT_ONCE))]
        # times are given here, so that they are in the order of the entries
        now = self.now
        batch = [replace(one, entry=replace(one.entry, time=now)) for one in batch]
        try:
            entries = [one.entry for one in batch]
            if self._store.durable:
                last = await self._threads.on_disk(self._append, entries)
            else:  # all in memory: no disk to wait for
                last = self._append(entries)
        except StoreError as error:
            for one in batch:
                self._refuse(one, error)
            return
        first = last - len(batch) + 1
        for number, one in enumerate(batch):
            before = self.run_state.book.version
            effects = self.run_state.apply(one.entry)
            if self.run_state.book.version != before:
                self._publish(self.run_state.book.version)
            self.recovery.note(first + number, one.entry, effects)
            if effects.delivery is not None:
                self.counters.delivered(effects.delivery, one.entry.norm)
            self._do(effects, one)
            if one.entry.kind == "check_in":
                self._granting.discard(one.entry.client)
                if effects.ticket is not None:
                    self._line.serve(one.entry.client, effects.ticket)
            if not one.effects.done():
                one.effects.set_result(effects)
        self._grant()

    def _append(self, entries: list[JournalEntry]) -> int:
        if any(entry.file for entry in entries):
            self._store.sync()
        began = time.perf_counter()
        last = self._store.append(entries)
        self.counters.commit_seconds.add(time.perf_counter() - began)
        return last

    def _refuse(self, one: Waiting, error: Exception) -> None:
        log.error("the journal cannot be written: %s", error, extra={"event": "disk"})
        refused = Refused(Cause.DISK, f"the server cannot write ({error}); come again later", retry_after=5.0)
        if one.done is not None:
            one.done()
        if one.entry.file:
            self._threads.files.submit(self._store.discard, one.entry.file)
        if one.entry.kind == "check_in":
            self._granting.discard(one.entry.client)
            self._line.fail(one.entry.client, refused)
        if not one.effects.done():
            one.effects.set_exception(refused)

    def _publish(self, version: int) -> None:
        """A version will exist as soon as the model thread has made it."""
        if version not in self._ready:
            self._ready[version] = asyncio.get_running_loop().create_future()

    def _do(self, effects: Effects, one: Waiting) -> None:
        loop = asyncio.get_running_loop()

        def work() -> None:
            began = time.perf_counter()
            try:
                self.model_state.do(effects, one.upload)
            except BaseException as error:
                loop.call_soon_threadsafe(self._fail, error)
                raise
            if effects.moved:
                self.counters.step_seconds.add(time.perf_counter() - began)
            loop.call_soon_threadsafe(self._done, effects, one.done)

        self._threads.model.submit(work)

    def _done(self, effects: Effects, done: Callable[[], None] | None) -> None:
        if done is not None:
            done()
        for version in effects.forget:
            self._ready.pop(version, None)

    def _tell_published(self, version: int, broadcast: Broadcast) -> None:
        """Have `_published` called in the event loop. For the model thread."""
        self._loop.call_soon_threadsafe(self._published, version, broadcast)

    def _published(self, version: int, broadcast: Broadcast) -> None:
        """Clients may download this version from now on."""
        ready = self._ready.get(version)
        if ready is not None and not ready.done():
            ready.set_result(broadcast)
        self._tell_watchers()
        self._grant()  # who could not start while the step waited

    def _advance(self) -> None:
        """A layer does not have to wait any more: make the steps that can be made. For any thread."""

        def work() -> None:
            try:
                self.model_state.advance()
            except BaseException as error:
                self._loop.call_soon_threadsafe(self._fail, error)
                raise

        self._threads.model.submit(work)

    def _tell_watchers(self) -> None:
        async def tell() -> None:
            async with self.moved:
                self.moved.notify_all()

        task = asyncio.ensure_future(tell())
        self._tasks = [*(t for t in self._tasks if not t.done()), task]

    # -- time --------------------------------------------------------------------------------------

    async def _sweep_forever(self) -> None:
        """Tickets expire; evaluations and the clock may end the run."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self._sweep()
            except Refused:
                continue  # the disk is full: later
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self._fail(error)
                return

    async def _sweep(self) -> None:
        failure = self.model_state.failure()
        if failure is not None:
            raise failure
        if self.run_state.over is not None or self._stopping:
            return
        limit = self.now - self.settings.ticket_seconds
        late = []
        for trip, ticket in self.run_state.book.in_flight.items():  # the oldest first
            if max(ticket.time, self._process_began) > limit:
                break
            if trip not in self._arriving and trip not in self._ending:
                late.append(trip)
        for trip in late:
            client = self.run_state.book.in_flight[trip].client
            log.info("trip %d has expired", trip, extra={"event": "expired", "trip": trip, "client": client})
        self.counters.expired += len(late)
        await asyncio.gather(*(self._end_trip(trip) for trip in late))
        reason = self.run_state.reason_by_now(self.now, self.model_state.metrics)
        if reason is not None:
            await self._enqueue(JournalEntry("end", self.now, reason=reason))
        if self._snapshot_due():
            self._wake.set()

    # -- snapshots and the end ---------------------------------------------------------------------

    def _snapshot_due(self) -> bool:
        under_way = self._snapshotting is not None and not self._snapshotting.done()
        return not under_way and self.recovery.due(self.settings.snapshot_seconds)

    async def _finish(self) -> None:
        """The run is over: evaluate, write the last events, make it safe, tell everybody."""
        if self.ended.done():
            return
        reason = self.run_state.over
        assert reason is not None
        await self._threads.in_model_thread(lambda: None)  # what counted has reached the values
        async with self.moved:  # steps whose buffers are full are made first
            await self.moved.wait_for(lambda: self._stopping or not self.model_state.waiting)
        if self.model_state.waiting:
            return  # the server stops; the run ends when it goes on
        await self._threads.in_model_thread(self._last_events, reason)
        if not self.ended.done():
            self.ended.set_result(reason)
        self._line.dismiss()
        self._tell_watchers()

    def _last_events(self, reason: str) -> None:
        self.model_state.tell(self.run_state.last_reports())
        if self.model_state.evaluated != self.model_state.aggregator.version:
            self.model_state.evaluate(self.run_state.where())
        self.model_state.settle()
        self.model_state.tell([RunEnded(reason, *self.run_state.where())])


def _known(broadcast: Broadcast) -> asyncio.Future[Broadcast]:
    ready: asyncio.Future[Broadcast] = asyncio.get_running_loop().create_future()
    ready.set_result(broadcast)
    return ready
