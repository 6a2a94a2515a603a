"""Snapshots of a run on a server, what is kept between two of them, and recovery from both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from tardigrad.core.events import Event, UploadReceived
from tardigrad.core.outcomes import Accepted, Rejected
from tardigrad.core.upload import Upload
from tardigrad.errors import RunError
from tardigrad.privacy.releases import NEW_RUN
from tardigrad.service.protocol.refusals import log
from tardigrad.service.protocol.wire import size_of, unpacked
from tardigrad.service.server.model_state import ModelState
from tardigrad.service.server.released_masks import release_layout
from tardigrad.service.server.run_state import Effects, RunState
from tardigrad.service.server.upload_form import UploadForm
from tardigrad.service.server.worker_threads import Threads
from tardigrad.service.store.audit_log import AuditHead, AuditLog
from tardigrad.service.store.contract import AnswerFields, JournalEntry, RecordedAnswer, Store, StoreError

PATIENCE = 10
"""A snapshot that is due waits until evaluations have ended, but at most for this many intervals."""
MOST_FILES = 2**30
"""Bytes of stored uploads after which a snapshot is due before its time: this limits the disk space that they
take and the duration of a recovery."""
MOST_LARGE = 8
"""Uploads, however large, for which no snapshot is due before its time: it would take longer than they do."""

Snapshot = tuple[dict[str, Tensor], dict[str, Any]]


class RunLog(Protocol):
    """The run's folder."""

    def record(self, events: list[Event]) -> None:
        """Append events."""

    def snapshot(self, tensors: dict[str, Tensor], document: dict[str, object]) -> None:
        """Replace the last snapshot, and keep the events up to here."""

    def unrecovered(self) -> list[UploadReceived]:
        """Return the uploads that were recorded before a crash and that recovery has not repeated."""

    def recovered(self) -> None:
        """Recovery is complete, or the loss was accepted."""


class Recovery:
    """Recovers a run, and makes the snapshots from which it is recovered next time. All methods are for the
    event loop's thread except `recover`."""

    def __init__(
        self,
        run: str,
        run_state: RunState,
        model_state: ModelState,
        store: Store,
        record: RunLog,
        threads: Threads,
        uploads: UploadForm,
        after_snapshot: Callable[[], None],
        private: bool,
        audit: AuditLog | None = None,
    ) -> None:
        self.run = run
        self.audit = audit or AuditLog()
        self._run_state, self._model_state, self._store = run_state, model_state, store
        self._record, self._threads = record, threads
        self._uploads, self._after_snapshot = uploads, after_snapshot
        self._position = 0  # of the last entry that was applied
        self._answers: dict[int, RecordedAnswer] = {}  # since the last snapshot
        self._used: list[str] = []  # payloads of entries since the last snapshot
        self._written = time.monotonic()
        self._private = private
        self._must_snapshot = False  # the last snapshot does not fit the journal or the audit log

    @property
    def age(self) -> float:
        """Seconds since the last snapshot, or since the process started."""
        return time.monotonic() - self._written

    def recover(self, snapshot: Snapshot | None, accept_loss: bool = False) -> None:
        """Restore the state that snapshot and journal describe. The snapshot is consumed: its tensors are
        released one after the other.

        Snapshot, journal and recorded events are compared. If something that was acknowledged is lost, a
        `RunError` names it; with `accept_loss` the run goes on without it, unless it is private.
        """
        if snapshot is not None:
            tensors, document = snapshot
            if document["run"] != self.run:  # its positions belong to another journal
                if self._store.last:
                    raise RunError("the journal is not the one that the snapshot belongs to; start a new run")
                self._lost("the journal of the run is gone", accept_loss)
                self.run = document["run"]
                self._store.adopt(self.run)
            self._position = document["position"]
            self._check_positions(accept_loss)
            self._model_state.restore(tensors, document["values"])
            self._run_state.restore(document["course"])
            self.audit.head = AuditHead(*document.get("audit", ()))
        else:
            self._check_positions(accept_loss)
            self._model_state.evaluate(self._run_state.where())
        entries = self._store.entries(self._position)
        for position, entry in entries:
            effects = self._run_state.apply(entry)
            self._model_state.do(effects, partial(self.stored_upload, entry))
            self.note(position, entry, effects)
        self._model_state.settle()
        lost = self._record.unrecovered()
        if lost:
            trips = ", ".join(str(event.trip) for event in lost[:10]) + (", ..." if len(lost) > 10 else "")
            self._lost(
                f"{len(lost)} uploads were acknowledged and are in neither the snapshot nor the journal "
                f"(trips {trips}): journal.sqlite, its -wal file or the snapshot was lost or put back",
                accept_loss,
            )
        self._must_snapshot |= self.audit.recover(accept_loss)
        self._record.recovered()
        offers = [] if self._run_state.secure is None else self._run_state.secure.offers.values()
        self._store.keep_only({entry.file for _, entry in entries if entry.file} | {o.file for o in offers})
        self._store.checkpoint()
        if entries:
            log.info("recovered %d entries from the journal", len(entries), extra={"event": "recovered"})

    def stored_upload(self, entry: JournalEntry) -> Upload:
        """Return the upload of an entry, or what the helpers have released. May be called from any thread."""
        layout = self._uploads.layout if entry.kind != "release" else release_layout(self._uploads.layout)
        payload = self._store.read(entry.file, size_of(layout), entry.digest)
        return upload_of(entry, unpacked(payload, layout))

    def _check_positions(self, accept_loss: bool) -> None:
        """Compare where the snapshot ends with where the journal begins and ends."""
        forgotten, last = self._store.forgotten, self._store.last
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
        self._store.restart_after(self._position)
        self._must_snapshot = True

    def _lost(self, fault: str, accept_loss: bool) -> None:
        """Log that something is lost, or raise a `RunError` unless that is accepted."""
        if self._private:
            raise RunError(f"{fault}; {NEW_RUN}")
        if not accept_loss:
            raise RunError(f"{fault}; --accept-loss goes on without what is lost")
        log.error("%s; going on without it, as asked", fault, extra={"event": "loss"})

    def note(self, position: int, entry: JournalEntry, effects: Effects) -> None:
        """Note an entry that was applied: keep its answer and its payload until the next snapshot."""
        self._position = position
        if effects.acted:
            effects.audit = self.audit.add(position, entry)
        if entry.file and entry.kind != "offer":  # which is needed until its outcome is known
            self._used.append(entry.file)
        self._used += effects.dropped
        delivery = effects.delivery
        if isinstance(delivery, Accepted | Rejected):
            weight, reason = (
                (delivery.weight, "")
                if isinstance(delivery, Accepted)
                else (0.0, entry.reason or delivery.reason)
            )
            answer: AnswerFields = {
                "accepted": isinstance(delivery, Accepted),
                "reason": reason,
                "version": delivery.version,
                "staleness": delivery.staleness,
                "weight": weight,
            }
            self._answers[entry.trip] = RecordedAnswer(
                entry.trip, str(delivery.client), entry.digest, answer, entry.epoch
            )

    async def answer(self, trip: int) -> RecordedAnswer | None:
        """Return the answer that was given to the upload of this trip, or None if there was none."""
        if trip in self._answers:
            return self._answers[trip]
        if not 0 <= trip < self._run_state.book.next_trip or trip in self._run_state.book.in_flight:
            return None
        return await self._threads.on_disk(self._store.answer, trip)

    def due(self, interval: float) -> bool:
        """Return whether it is time for a snapshot."""
        if self._must_snapshot:
            return True
        if not self._used and not self._answers:
            return False
        most = max(MOST_FILES, MOST_LARGE * self._uploads.size)
        soon = self.age > interval or len(self._used) * self._uploads.size > most
        return soon and (self._model_state.settled() or self.age > PATIENCE * interval)

    async def snapshot(self) -> None:
        """Make a snapshot of everything that was applied until now. Entries that arrive meanwhile are
        journaled and answered; only their values wait, because the model thread writes the snapshot."""
        try:
            while self.audit.pending:  # recovery from the snapshot would not write these lines again
                await self._threads.on_disk(self.audit.sync)
        except StoreError as error:
            self._no_snapshot(error)
            return
        position, head = self._position, self.audit.head
        document = {
            "run": self.run,
            "position": position,
            "course": self._run_state.state(),
            "audit": (head.number, head.hash),
        }
        answers, used = list(self._answers.values()), list(self._used)
        written = self._threads.in_model_thread(self._write, document)
        try:
            # before the entries are forgotten; if the snapshot fails, answers are in both places
            await self._threads.on_disk(self._store.remember, answers)
            await written
            await self._threads.on_disk(self._store.forget, position)
        except (OSError, StoreError) as error:
            self._no_snapshot(error)
            await asyncio.gather(written, return_exceptions=True)  # it may have failed as well
            return
        finally:
            self._written = time.monotonic()
        self._must_snapshot = False
        for one in answers:
            del self._answers[one.trip]
        del self._used[: len(used)]
        self._threads.files.submit(self._store.recycle, used)

    def _no_snapshot(self, error: Exception) -> None:
        self._written = time.monotonic()
        log.error("no snapshot could be written (%s); the journal has all of it", error,
                  extra={"event": "disk"})  # fmt: skip

    def _write(self, document: dict[str, object]) -> None:
        """Write the snapshot, on the model thread. `after_snapshot` runs here too, before the next step: it
        destroys the noise keys of exactly the steps that the snapshot contains."""
        self._model_state.settle()
        tensors, values = self._model_state.snapshot()
        self._record.snapshot(tensors, document | {"values": values})
        for broadcast in self._model_state.broadcasts.values():
            broadcast.rest()
        self._after_snapshot()


def upload_of(entry: JournalEntry, vectors: dict[str, Tensor]) -> Upload:
    """Return the upload that this entry describes."""
    return Upload(vectors, entry.examples, entry.steps, entry.loss)
