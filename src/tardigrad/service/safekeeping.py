"""Snapshots of a run on a server, what must be remembered between two, and recovery from both."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from torch import Tensor

from tardigrad.core.upload import Upload
from tardigrad.errors import RunError
from tardigrad.privacy.releases import NEW_RUN
from tardigrad.service.course import Course, Event, Happened
from tardigrad.service.journal import Entry, Journal, Recorded
from tardigrad.service.layout import Layout, size_of, unpacked
from tardigrad.service.refused import log
from tardigrad.service.uploads import UploadFiles
from tardigrad.service.values import Values

PATIENCE = 10
"""A snapshot that is due waits for evaluations to end, but not longer than so many times its interval."""
MOST_FILES = 2**30
"""Bytes of uploads after which a snapshot is due before its time: they and a recovery must not grow."""

Snapshot = tuple[dict[str, Tensor], dict[str, Any]]


class Record(Protocol):
    """The run's folder."""

    def record(self, events: list[Event]) -> None:
        """Append events."""

    def snapshot(self, tensors: dict[str, Tensor], document: dict[str, Any]) -> None:
        """Put a snapshot in the place of the last one, with the events up to here."""

    def unrecovered(self) -> list[Event]:
        """Return the uploads that were recorded before a crash and that recovery has not told again."""

    def recovered(self) -> None:
        """Recovery is complete, or the loss was accepted."""


class Threads:
    """What must not hold up the event loop: one thread for tensors, one for the journal, one for files that
    nobody waits for."""

    def __init__(self) -> None:
        self.values = ThreadPoolExecutor(1, "values")
        self.disk = ThreadPoolExecutor(1, "journal")
        self.files = ThreadPoolExecutor(1, "files")

    def in_values(self, function: Callable[..., Any], *given: Any) -> asyncio.Future[Any]:
        """Call it behind all that the values thread has to do."""
        return asyncio.get_running_loop().run_in_executor(self.values, function, *given)

    def on_disk(self, function: Callable[..., Any], *given: Any) -> asyncio.Future[Any]:
        """Call it behind all that the journal's thread has to do."""
        return asyncio.get_running_loop().run_in_executor(self.disk, function, *given)

    def close(self) -> None:
        """Wait for all of them."""
        for threads in (self.values, self.disk, self.files):
            threads.shutdown()


class Safekeeping:
    """For the event loop's thread, but for `recover`."""

    def __init__(
        self,
        run: str,
        course: Course,
        values: Values,
        journal: Journal,
        files: UploadFiles,
        record: Record,
        threads: Threads,
        upload_layout: Layout,
        after_snapshot: Callable[[], None],
        private: bool,
    ) -> None:
        self.run = run
        self._course, self._values, self._journal = course, values, journal
        self._files, self._record, self._threads = files, record, threads
        self._layout, self._after_snapshot = upload_layout, after_snapshot
        self._position = 0  # of the last entry that counts
        self._answers: dict[int, Recorded] = {}  # since the last snapshot
        self._used: list[str] = []  # files of entries since the last snapshot
        self._written = time.monotonic()
        self._private = private
        self._must_snapshot = False  # the last one does not fit the journal

    @property
    def age(self) -> float:
        """Seconds since the last snapshot, or since the process began."""
        return time.monotonic() - self._written

    def recover(self, snapshot: Snapshot | None, accept_loss: bool = False) -> None:
        """Come back to where the snapshot and the journal say that the run was. Takes the snapshot over: its
        tensors are released one after the other.

        Snapshot, journal and recorded events are compared. If something that was acknowledged is gone, a
        RunError says what; with `accept_loss` the run goes on without it, unless it is private.
        """
        if snapshot is not None:
            tensors, document = snapshot
            if document["run"] != self.run:  # its positions would mean nothing
                if self._journal.last:
                    raise RunError("the journal is not the one that the snapshot belongs to; start a new run")
                self._lost("the journal of the run is gone", accept_loss)
                self.run = document["run"]
                self._journal.adopt(self.run)
            self._position = document["position"]
            self._check_positions(accept_loss)
            self._values.restore(tensors, document["values"])
            self._course.restore(document["course"])
        else:
            self._check_positions(accept_loss)
            self._values.evaluate(self._course.where())
        entries = self._journal.entries(self._position)
        for position, entry in entries:
            happened = self._course.apply(entry)
            upload = None
            if happened.delivery is not None and happened.delivery.accepted:
                room = self._files.read(entry.file, size_of(self._layout), entry.digest)
                upload = upload_of(entry, unpacked(room, self._layout))
            self._values.do(happened, upload)
            self.note(position, entry, happened)
        self._values.settle()
        lost = self._record.unrecovered()
        if lost:
            trips = ", ".join(str(event["trip"]) for event in lost[:10]) + (", ..." if len(lost) > 10 else "")
            self._lost(
                f"{len(lost)} uploads were acknowledged and are in neither the snapshot nor the journal "
                f"(trips {trips}): journal.sqlite, its -wal file or the snapshot was lost or put back",
                accept_loss,
            )
        self._record.recovered()
        self._files.keep_only({entry.file for _, entry in entries if entry.file})
        self._journal.settle()
        if entries:
            log.info("recovered %d entries from the journal", len(entries), extra={"event": "recovered"})

    def _check_positions(self, accept_loss: bool) -> None:
        """Compare where the snapshot ends with where the journal begins and ends."""
        forgotten, last = self._journal.forgotten, self._journal.last
        if self._position < forgotten:
            fault = (
                f"the snapshot ends at entry {self._position}, but the journal begins behind {forgotten}: "
                "the snapshot was put back from a backup"
            )
        elif self._position > last:
            fault = (
                f"the snapshot ends at entry {self._position}, but the journal at {last}: journal.sqlite or "
                "its -wal file was lost or put back from a backup"
            )
        else:
            return
        self._lost(fault, accept_loss)
        self._position = max(self._position, last)
        self._journal.restart_after(self._position)
        self._must_snapshot = True

    def _lost(self, fault: str, accept_loss: bool) -> None:
        """Say that something is lost; a RunError unless that is accepted."""
        if self._private:
            raise RunError(f"{fault}; {NEW_RUN}")
        if not accept_loss:
            raise RunError(f"{fault}; --accept-loss goes on without what is lost")
        log.error("%s; going on without it, as asked", fault, extra={"event": "loss"})

    def note(self, position: int, entry: Entry, happened: Happened) -> None:
        """An entry counts: remember what must be remembered until the next snapshot."""
        self._position = position
        if entry.file:
            self._used.append(entry.file)
        delivery = happened.delivery
        if delivery is not None and delivery.client is not None:
            answer = {
                "accepted": delivery.accepted,
                "reason": delivery.reason or "",
                "version": delivery.version,
                "staleness": delivery.staleness,
                "weight": delivery.weight,
            }
            self._answers[entry.trip] = Recorded(
                entry.trip, str(delivery.client), entry.digest, answer, entry.epoch
            )

    async def answer(self, trip: int) -> Recorded | None:
        """What became of the upload of this trip, if there was one."""
        if trip in self._answers:
            return self._answers[trip]
        if not 0 <= trip < self._course.book.next_trip or trip in self._course.book.in_flight:
            return None
        return await self._threads.on_disk(self._journal.answer, trip)

    def due(self, interval: float) -> bool:
        """Whether it is time for a snapshot."""
        if self._must_snapshot:
            return True
        if not self._used and not self._answers:
            return False
        soon = self.age > interval or len(self._used) * size_of(self._layout) > MOST_FILES
        return soon and (self._values.settled() or self.age > PATIENCE * interval)

    async def snapshot(self) -> None:
        """Make a snapshot of all that counts until now. What comes meanwhile is journaled and answered, and
        waits only with its values: the thread that makes them writes the snapshot when it has come so far."""
        document = {"run": self.run, "position": self._position, "course": self._course.state()}
        answers, used = list(self._answers.values()), list(self._used)
        written = self._threads.in_values(self._write, document)
        try:
            # before the entries are forgotten; should the snapshot fail, they are known twice
            await self._threads.on_disk(self._journal.remember, answers)
            await written
            await self._threads.on_disk(self._journal.forget, document["position"])
        except (OSError, sqlite3.Error) as error:
            log.error("no snapshot could be written (%s); the journal has all of it", error,
                      extra={"event": "disk"})  # fmt: skip
            await asyncio.gather(written, return_exceptions=True)  # its error may be another one
            return
        finally:
            self._written = time.monotonic()
        self._must_snapshot = False
        for one in answers:
            del self._answers[one.trip]
        del self._used[: len(used)]
        self._threads.files.submit(self._files.recycle, used)

    def _write(self, document: dict[str, Any]) -> None:
        """Write the snapshot, on the values thread. `after_snapshot` runs here too, before the next step: it
        destroys the noise keys of exactly the steps that the snapshot holds."""
        self._values.settle()
        tensors, values = self._values.snapshot()
        self._record.snapshot(tensors, document | {"values": values})
        self._after_snapshot()


def upload_of(entry: Entry, vectors: dict[str, Tensor]) -> Upload:
    """What was delivered."""
    return Upload(vectors, entry.examples, entry.steps, entry.loss)
