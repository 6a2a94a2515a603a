"""Uploads of a secure run that wait for the helpers, and the calls that wait for their outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from tardigrad.core.upload import Upload, Vectors
from tardigrad.secure.helper_refusals import RESEAL
from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.server.journal_queue import JournalQueue
from tardigrad.service.server.run_state import RunState
from tardigrad.service.server.ticket_checks import BusyTrips, check_announced, check_repeated
from tardigrad.service.store.contract import AnswerFields, JournalEntry, RecordedAnswer
from tardigrad.service.store.recovery import Recovery, upload_of

RETRY_AFTER = 2.0
"""Seconds after which a client should come again while a helper is away."""


@dataclass(frozen=True, slots=True)
class _Body:
    """The values of an upload that was received by this process."""

    vectors: Callable[[], Vectors]
    release: Callable[[], None]


class OfferedUploads:
    """Journals offers, and answers them when the helpers have decided. For the event loop's thread."""

    def __init__(self, run_state: RunState, queue: JournalQueue, recovery: Recovery) -> None:
        assert run_state.secure is not None
        self._run_state, self._queue, self._recovery = run_state, queue, recovery
        self._offers = run_state.secure.offers
        self._bodies: dict[int, _Body] = {}
        self._waiting: dict[int, asyncio.Future[RecordedAnswer | None]] = {}
        self.helper_away = True
        """Whether a helper is away, so that clients come again later."""

    def check_there(self) -> None:
        """Raise `Refused` if a helper is away."""
        if self.helper_away:
            raise come_again()

    async def expect(
        self, client: str, trip: int, epoch: int, version: int, digest: bytes, busy: BusyTrips
    ) -> RecordedAnswer | None:
        """Check an upload that is announced. Return None if it may be sent. If it waits for the helpers
        already, return its answer when they have decided. Raise `Refused` if it may not be delivered now."""
        offer = self._offers.get(trip)
        if offer is not None:
            check_repeated(offer, client, epoch, digest)
            return await self._outcome(trip)
        check_announced(self._run_state, busy, client, trip, epoch, version)
        self.check_there()
        return None

    async def deliver(
        self, entry: JournalEntry, vectors: Callable[[], Vectors], release: Callable[[], None]
    ) -> RecordedAnswer | None:
        """Journal an offer, and return the answer when the helpers have decided; None if the run was over
        first. Raise `Refused` if a helper is away; then the upload is kept, and the client asks again.
        `release` is called when the values were applied, or are not needed."""
        self._bodies[entry.trip] = _Body(vectors, release)
        try:
            await self._queue.put(replace(entry, kind="offer"))
        except BaseException:
            self._drop(entry.trip)
            raise
        if entry.trip not in self._offers:  # the run is over, or the client was ejected
            self._drop(entry.trip)
            return None
        return await self._outcome(entry.trip)

    async def _outcome(self, trip: int) -> RecordedAnswer | None:
        self.check_there()
        if trip not in self._waiting:
            self._waiting[trip] = asyncio.get_running_loop().create_future()
            self._waiting[trip].add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._waiting[trip])

    def take(self, entry: JournalEntry) -> tuple[Callable[[], Upload], Callable[[], None] | None]:
        """Return what gives the upload of an entry when it is applied, and what is called after that. Its
        values are in the store if this process has not received them, or has passed them on before."""
        body = self._bodies.pop(entry.trip, None)
        if body is None:
            return partial(self._recovery.stored_upload, entry), None
        return lambda: upload_of(entry, body.vectors()), body.release

    async def decided(self, offer: JournalEntry, reseal: bool) -> None:
        """Answer the calls that wait for the outcome of an offer, which is journaled. `reseal`: the client
        must seal it again; that is not recorded, because the trip goes on."""
        answer = await self._recovery.answer(offer.trip)
        if reseal:
            fields = AnswerFields(accepted=False, reason=RESEAL, version=0, staleness=None, weight=0.0)
            answer = RecordedAnswer(offer.trip, offer.client, offer.digest, fields, offer.epoch)
        waiting = self._waiting.pop(offer.trip, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def drop_ended(self, trips: Iterable[int], refused: Refused) -> None:
        """Let the calls fail whose uploads wait in vain, because an act has ended these trips."""
        for trip in trips:
            future = self._waiting.pop(trip, None)
            if future is not None and not future.done():
                future.set_exception(refused)
            self._drop(trip)

    def refuse_all(self, refused: Refused) -> None:
        """Let all calls that wait fail. The offers are kept."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(refused)

    async def end(self) -> None:
        """Answer all calls that wait, because the run is over, and drop the uploads that wait."""
        for trip in list(self._waiting):
            answer = await self._recovery.answer(trip)
            future = self._waiting.pop(trip, None)
            if future is not None and not future.done():
                future.set_result(answer)
        for trip in list(self._bodies):
            self._drop(trip)

    def _drop(self, trip: int) -> None:
        body = self._bodies.pop(trip, None)
        if body is not None:
            body.release()


def come_again() -> Refused:
    """Return the refusal of calls that need a helper which is away."""
    return Refused(Cause.HELPER_AWAY, "a helper of this secure run is away; come again", RETRY_AFTER)
