"""The coordinator: journals what clients do, applies it, and answers.

Every action of a client becomes an entry in the journal's queue. All entries that wait are journaled
together. Only then are they applied, in the same order, and only then are the clients answered. So an action
that was answered survives a crash, and an action that could not be journaled has no effect.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import numpy as np

from tardigrad.core.outcomes import Ticket
from tardigrad.core.upload import Vectors
from tardigrad.service.monitor.counters import Counters
from tardigrad.service.protocol.refusals import Cause, Refused, log
from tardigrad.service.server.check_ins import CheckIns
from tardigrad.service.server.clock import SYSTEM, Clock, RunTime
from tardigrad.service.server.helper_group import HelperGroup
from tardigrad.service.server.helper_link import HelperLink
from tardigrad.service.server.journal_queue import JournalQueue, PendingEntry
from tardigrad.service.server.model_state import ModelState
from tardigrad.service.server.model_thread import ModelThread
from tardigrad.service.server.operator_acts import OperatorActs
from tardigrad.service.server.published_versions import PublishedVersions
from tardigrad.service.server.run_state import RunState
from tardigrad.service.server.service_settings import ServiceSettings
from tardigrad.service.server.task_broadcast import Broadcast
from tardigrad.service.server.ticket_checks import (
    BusyTrips,
    can_give_up,
    check_announced,
    check_repeated,
    expired,
)
from tardigrad.service.server.upload_form import UploadForm
from tardigrad.service.server.worker_threads import Threads
from tardigrad.service.store.audit_log import AuditLog
from tardigrad.service.store.contract import JournalEntry, RecordedAnswer, Store
from tardigrad.service.store.payload_file import PayloadFile
from tardigrad.service.store.recovery import Recovery, RunLog, Snapshot, upload_of

SWEEP_SECONDS = 0.5
"""Seconds between two checks for expired tickets and for the end of the run."""


class Coordinator:
    """One run on a server. Methods must be called in the event loop's thread unless they say otherwise."""

    def __init__(
        self,
        run_state: RunState,
        model_state: ModelState,
        store: Store,
        record: RunLog,
        settings: ServiceSettings,
        uploads: UploadForm,
        after_snapshot: Callable[[], None] = lambda: None,
        private: bool = False,
        clock: Clock = SYSTEM,
        audit: AuditLog | None = None,
    ) -> None:
        self.run_state, self.model_state = run_state, model_state
        self.settings, self.uploads, self.clock = settings, uploads, clock
        self._store = store
        self.counters = Counters()
        run = store.fact("run", f"{random.SystemRandom().getrandbits(64):016x}")
        self.epoch = random.SystemRandom().randrange(1, 2**63)
        """Random number of this process. A ticket is its trip and the epoch of the process that granted it:
        after a restore or a power failure trip numbers are given again, but not with the same epoch."""
        self._threads = Threads()
        self.recovery = Recovery(
            run, run_state, model_state, store, record, self._threads, uploads, after_snapshot, private, audit
        )
        self._time = RunTime(clock)
        self._queue = JournalQueue(store, self._threads, self.counters, self._time)
        self.busy = BusyTrips(() if run_state.secure is None else run_state.secure.offers)
        """The servicer marks the trips whose uploads it receives."""
        self._check_ins = CheckIns(run_state, model_state, self._queue, self.busy, self._time, self.epoch)
        self._versions = PublishedVersions()
        self._model_thread = ModelThread(
            model_state, self._threads, self.counters, self._versions, self._published, self._fail
        )
        self._stopping = False
        self.moved = asyncio.Condition()
        """Notified when the version changes or the run ends."""
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the run is over, or the exception that ended it, which was logged."""
        self.ended.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.unfinished: BaseException | None = None
        """Why the result of a run that is over could not be written."""
        self.acts = OperatorActs(
            run_state, model_state, self._queue, self._check_ins, self.recovery, self._threads, self.moved
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._snapshotting: asyncio.Task[None] | None = None
        self.link: HelperLink | None = None
        """The link to the helpers of a secure run."""

    def join_helpers(self, helpers: HelperGroup) -> None:
        """Make this a secure run with these helpers, before it is started."""
        self.link = self.acts.link = HelperLink(
            helpers, self.run_state, self.model_state, self._store, self._queue, self.recovery,
            self._threads, self._time, self.uploads, self._fail,
        )  # fmt: skip

    @property
    def run(self) -> str:
        """The run's identity. What a client remembers belongs to one run."""
        return self.recovery.run

    @property
    def now(self) -> float:
        """Seconds for which the run has been served."""
        return self._time.now()

    @property
    def waiting(self) -> int:
        """How many clients wait for a task."""
        return len(self._check_ins)

    @property
    def failure(self) -> BaseException | None:
        """The exception that ended the run; None if it goes on or is over."""
        if self.unfinished is not None or not self.ended.done() or self.ended.cancelled():
            return self.unfinished
        return self.ended.exception()

    @property
    def stopping(self) -> bool:
        """Whether the server is about to stop."""
        return self._stopping

    # -- start and stop ----------------------------------------------------------------------------

    async def start(self, snapshot: Snapshot | None, accept_loss: bool = False) -> None:
        """Recover the run, and begin to take entries. With `accept_loss` the run goes on although a part of
        it is lost."""
        await self._threads.in_model_thread(self.recovery.recover, snapshot, accept_loss)
        self._time.resume(self.run_state.time)
        self.settings = self.run_state.steering.settings(self.settings)
        for version in range(self.model_state.aggregator.version, self.run_state.book.version + 1):
            self._versions.announce(version)
        for version, broadcast in self.model_state.broadcasts.items():
            self._versions.announce(version)
            self._versions.publish(version, broadcast)
        self._model_thread.start()
        self._tasks = [
            asyncio.create_task(self._commit_forever()),
            asyncio.create_task(self._sweep_forever()),
        ]
        if self.link is not None:
            self._tasks.append(asyncio.create_task(self.link.run()))
        self._queue.wake()  # the recovered run may be over

    def dismiss(self) -> None:
        """Accept no more work, and answer all clients that wait."""
        self._stopping = True
        self._check_ins.close()
        self._tell_watchers()

    async def stop(self) -> None:
        """Make a snapshot and end all tasks and threads. The caller closes the store."""
        self.dismiss()
        await self._queue.until_idle()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._queue.fail(Refused(Cause.STOPPING, "the run is not served any more"))
        if self._snapshotting is not None:
            await asyncio.wait({self._snapshotting})
        try:
            if not self.ended.done():
                self.run_state.time = self.now  # the next process goes on from here
                await self.recovery.snapshot()
        finally:
            await self._threads.in_model_thread(self.model_state.close)
            await asyncio.to_thread(self._threads.close)

    # -- actions of clients ------------------------------------------------------------------------

    async def check_in(self, client: str, holding: frozenset[int], seconds: float) -> Ticket | None:
        """Return a ticket: one that the client was granted and does not hold, or a new one as soon as the
        pace allows. Return None if that takes longer than `seconds` or the run is over; raise `Refused` if
        the ticket cannot be journaled."""
        return await self._check_ins.check_in(client, holding, seconds)

    async def broadcast(self, version: int) -> Broadcast:
        """Return a version as it is downloaded, as soon as it exists, with receipts if the run is secure."""
        found = await self._versions.get(version)
        if self.run_state.secure is not None:
            secure = self.run_state.secure
            async with self.moved:
                await self.moved.wait_for(lambda: version <= secure.version or self._stopping)
        return found

    async def download(self, version: int, has: int) -> tuple[Broadcast, int]:
        """Return what a client downloads, and `has` if that is only the differences since the version that it
        has, otherwise 0. `has`: 1 + the version that the client has, 0 if it has none."""
        whole = await self.broadcast(version)
        differences = self._versions.since(has - 1, version, whole) if has else None
        return (whole, 0) if differences is None else (differences, has)

    async def expect(
        self, client: str, trip: int, epoch: int, version: int, digest: bytes
    ) -> RecordedAnswer | None:
        """Check an upload that is announced. Return None if it may be sent, or the answer that it got if it
        was delivered before; raise `Refused` if the client may not deliver it."""
        recorded = await self.recovery.answer(trip)
        if recorded is not None:
            check_repeated(recorded, client, epoch, digest)
            return recorded
        if self.link is not None and self.run_state.over is None:
            return await self.link.offers.expect(client, trip, epoch, version, digest, self.busy)
        check_announced(self.run_state, self.busy, client, trip, epoch, version)
        return None

    def write(self, trip: int, payload: np.ndarray) -> str:
        """Store the bytes of an upload and return their name. May be called from any thread."""
        return self._store.write(trip, payload)

    def receive(self, trip: int) -> PayloadFile:
        """Begin to store an upload piece by piece. May be called from any thread."""
        return self._store.receive(trip)

    def discard(self, name: str) -> None:
        """Delete what was stored of an upload. May be called from any thread."""
        self._store.discard(name)

    async def deliver(
        self,
        entry: JournalEntry,
        vectors: Callable[[], Vectors],
        release: Callable[[], None],
        payload: np.ndarray | None = None,
    ) -> RecordedAnswer | None:
        """Journal and apply an upload that was stored. Return its answer, or None if the run was over first.
        `vectors` returns its values when they are applied; `release` is called when they were, or are not
        needed. `payload`: the bytes of a small upload that is not stored yet."""
        with self.busy.ending(entry.trip):
            try:
                if self.link is not None:
                    answer = await self.link.offers.deliver(entry, vectors, release)
                else:
                    await self._queue.put(
                        entry, lambda: upload_of(entry, vectors()), release, payload=payload
                    )
                    answer = await self.recovery.answer(entry.trip)
            except BaseException:
                if self.link is None:
                    release()
                raise
        if answer is None and self.run_state.over is None:
            self.acts.check_not_ejected(entry.client)
            raise Refused(Cause.UNSOLICITED, f"trip {entry.trip} is not under way any more")
        return answer

    async def give_up(self, client: str, trip: int, epoch: int) -> bool:
        """End a trip without an upload, and return whether it was under way."""
        known = can_give_up(self.run_state, self.busy, client, trip, epoch)
        if known:
            await self._end_trip(trip)
        return known

    async def _end_trip(self, trip: int) -> None:
        with self.busy.ending(trip):
            await self._queue.put(JournalEntry("give_up", self.now, trip=trip))

    # -- applying entries --------------------------------------------------------------------------

    async def _commit_forever(self) -> None:
        try:
            while True:
                await self._queue.wait()
                while self._queue:
                    batch = await self._queue.write_batch()
                    for position, one in batch:
                        self._apply(position, one)
                    self._model_thread.flush()
                    if batch:
                        self._check_ins.grant()
                if self.run_state.over is not None:
                    if self.link is not None:
                        await self.link.offers.end()
                    await self._finish()
                elif self._snapshot_due():
                    self._snapshotting = asyncio.create_task(self.recovery.snapshot())
                    self._snapshotting.add_done_callback(self._check_snapshot)
                self._queue.set_idle()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fail(error)

    def _apply(self, position: int, one: PendingEntry) -> None:
        """Apply an entry that was journaled."""
        before = self.run_state.book.version
        effects = self.run_state.apply(one.entry)
        if self.run_state.book.version != before:
            self._versions.announce(self.run_state.book.version)
        self.recovery.note(position, one.entry, effects)
        if effects.delivery is not None:
            self.counters.delivered(effects.delivery, one.entry.norm)
        self._model_thread.apply(effects, one)
        if one.entry.kind == "check_in":
            self._check_ins.applied(one.entry.client, effects.ticket)
        if not one.effects.done():
            one.effects.set_result(effects)
        if self.link is not None:
            self.link.wake()
        if effects.receipted is not None:
            self._tell_watchers()
        if effects.acted:
            self.acts.applied(one.entry, effects)
            self.settings = self.run_state.steering.settings(self.settings)
            self._tell_watchers()

    def _fail(self, error: BaseException) -> None:
        """End the run with this error."""
        log.error("the run has failed: %s", error, extra={"event": "failed"})
        if not self.ended.done():
            self.ended.set_exception(error)
        self._stopping = True
        self._check_ins.close()
        refused = Refused(Cause.STOPPING, "the run has failed")
        self._queue.fail(refused)
        if self.link is not None:
            self.link.offers.refuse_all(refused)

    def _published(self) -> None:
        """Tell of a new version."""
        self._tell_watchers()
        self._check_ins.grant()  # clients may have waited for the step
        if self.run_state.over is not None:
            self._queue.wake()  # so may the end of the run

    def _tell_watchers(self) -> None:
        async def tell() -> None:
            async with self.moved:
                self.moved.notify_all()

        task = asyncio.ensure_future(tell())
        self._tasks = [*(t for t in self._tasks if not t.done()), task]

    # -- the clock, snapshots and the end ----------------------------------------------------------

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self._sweep()
            except Refused:
                continue  # the disk is full; try again at the next sweep
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self._fail(error)
                return

    async def _sweep(self) -> None:
        """End expired trips, and the run if an evaluation or its time says so."""
        failure = self.model_state.failure()
        if failure is not None:
            raise failure
        if self.run_state.over is not None or self._stopping:
            return
        limit = self.now - self.settings.ticket_seconds
        late = expired(self.run_state, self.busy, limit) if self._could_deliver(limit) else []
        for trip, client, _, _ in late:
            log.info("trip %d has expired", trip, extra={"event": "expired", "trip": trip, "client": client})
        self.counters.expired += len(late)
        await asyncio.gather(*(self._end_trip(ticket.trip) for ticket in late))
        reason = self.run_state.reason_by_now(self.now, self.model_state.metrics)
        if reason is not None:
            await self._queue.put(JournalEntry("end", self.now, reason=reason))
        if self._snapshot_due():
            self._queue.wake()

    def _could_deliver(self, since: float) -> bool:
        """Return whether clients could deliver all the time since then: this process served the run, and no
        helper was away."""
        return self._time.process_start <= since and (self.link is None or self.link.was_there(since))

    def _snapshot_due(self) -> bool:
        under_way = self._snapshotting is not None and not self._snapshotting.done()
        return not under_way and self.recovery.due(self.settings.snapshot_seconds)

    def _check_snapshot(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    async def _finish(self) -> None:
        """End the run: evaluate the model, write the last events, and tell all clients."""
        if self.ended.done():
            return
        reason = self.run_state.over
        assert reason is not None
        await self._threads.in_model_thread(lambda: None)  # all entries are applied to the model now
        if self.model_state.waiting or (self.link is not None and self.link.steps_waiting):
            return  # steps whose buffers are full are made first, by this process or the next
        await self._threads.in_model_thread(self._write_end, reason)
        if not self.ended.done():
            self.ended.set_result(reason)
        self._check_ins.dismiss()
        self._tell_watchers()

    def _write_end(self, reason: str) -> None:
        """Write the last events; on the model thread."""
        self.recovery.audit.sync()
        self.model_state.finish(reason, self.run_state.last_reports(), self.run_state.where())
