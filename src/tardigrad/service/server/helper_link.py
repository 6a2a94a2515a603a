"""The link between a server and the helpers of a secure run.

One task takes the uploads that wait in the order of the journal and asks the helpers about them, closes
batches that are full, and gets the receipts of new versions. What the helpers say is journaled before it
counts. Every call to a helper can be repeated, so after a crash the task goes on from what the journal says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np

from tardigrad.core.outcomes import Reason
from tardigrad.core.upload import Upload, Vectors
from tardigrad.privacy.releases import digest_of
from tardigrad.secure.masks import Codes
from tardigrad.secure.receipts import SignedReceipt
from tardigrad.service.protocol.refusals import Cause, Refused, log
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.wire import KNOWS_SECURE, digest, unpacked
from tardigrad.service.server.clock import RunTime
from tardigrad.service.server.helper_connection import HelperAway, HelperRefused
from tardigrad.service.server.helper_group import Decision, HelperGroup, ServerHistory
from tardigrad.service.server.journal_queue import JournalQueue
from tardigrad.service.server.model_state import ModelState
from tardigrad.service.server.released_masks import masked_layer, release_layout
from tardigrad.service.server.run_state import RunState
from tardigrad.service.server.secure_state import SecureState, receipts_as_json
from tardigrad.service.server.ticket_checks import BusyTrips, check_announced, check_repeated
from tardigrad.service.server.upload_form import UploadForm
from tardigrad.service.server.worker_threads import Threads
from tardigrad.service.store.contract import AnswerFields, JournalEntry, RecordedAnswer, Store, StoreError
from tardigrad.service.store.recovery import Recovery, upload_of

RESEAL = "sealed to an old key"
"""The refusal of a helper that has erased the key of an envelope. The client seals and delivers again."""
TOO_FEW = "too few clients"
"""The kind of a helper's refusal to release a batch that can only be abandoned."""
MOST_OFFERS = 128
"""Uploads about which the helpers are asked at a time."""
MOST_BYTES = 1 << 19
"""Bytes of their headers, which must fit into one message."""
LARGEST_HEADER = 2048
"""Bytes of the signed header of an upload, and as many for the envelope to each helper."""
FIRST_WAIT, LONGEST_WAIT = 0.05, 5.0
"""Seconds between two tries to reach a helper."""
DISK_WAIT = 2.0
"""Seconds until the helpers are asked again after the journal could not be written."""
RETRY_AFTER = 2.0
"""Seconds after which a client should come again while a helper is away."""


@dataclass(frozen=True, slots=True)
class _Body:
    """The values of an upload that was received by this process."""

    vectors: Callable[[], Vectors]
    release: Callable[[], None]


class HelperLink:
    """Asks the helpers on behalf of one run. Methods must be called in the event loop's thread."""

    def __init__(
        self,
        helpers: HelperGroup,
        run_state: RunState,
        model_state: ModelState,
        store: Store,
        queue: JournalQueue,
        recovery: Recovery,
        threads: Threads,
        run_time: RunTime,
        uploads: UploadForm,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        assert run_state.secure is not None
        self.helpers = helpers
        self._run_state, self._model_state, self._secure = run_state, model_state, run_state.secure
        self._store, self._queue, self._recovery = store, queue, recovery
        self._threads, self._run_time, self._uploads = threads, run_time, uploads
        self._on_failure = on_failure
        self._bodies: dict[int, _Body] = {}
        self._waiting: dict[int, asyncio.Future[RecordedAnswer | None]] = {}
        self._wake = asyncio.Event()
        self._said_away = False
        self.away_since: float | None = run_time.now()
        """The time of the run since which a helper cannot be reached; None if all are there."""
        self.back = 0.0
        """The time of the run at which the last helper came back."""

    # -- for the calls of clients ------------------------------------------------------------------

    def wake(self) -> None:
        """Look for work: an entry was applied."""
        self._wake.set()

    def check_there(self) -> None:
        """Raise `Refused` if a helper is away."""
        if self.away_since is not None:
            raise _away()

    def policy(self, revision: int) -> tuple[bytes, tuple[bytes, ...]]:
        """Return the policy and the helpers' signatures, for a client that joins; raise `Refused` if they
        have not signed it yet, or the client is too old. `revision`: what the client knows."""
        if revision < KNOWS_SECURE:
            raise Refused(Cause.TOO_OLD, "this run is secure, which this client does not know; upgrade it")
        if not self._secure.signatures:
            raise Refused(Cause.HELPER_AWAY, "the helpers have not signed the policy yet; come again", 1.0)
        return self.helpers.content, self._secure.signatures

    def keys(self) -> list[v1.OfferedKey]:
        """Return the keys that clients seal their seeds to; raise `Refused` if a helper is away."""
        self.check_there()
        keys = self.helpers.keys()
        if keys is None:
            raise _away()
        return keys

    def receipts(self, version: int) -> list[v1.SignedReceipt]:
        """Return the receipts of a version; raise `Refused` if nobody can start from it any more."""
        if version > self._secure.version:
            raise Refused(Cause.STOPPING, "the server is about to stop; come again", retry_after=1.0)
        if version not in self._secure.receipts:
            raise Refused(Cause.UNSOLICITED, f"version {version} is gone: the trip has just ended")
        return [
            v1.SignedReceipt(receipt=one.receipt.to_bytes(), signature=one.signature)
            for one in self._secure.receipts[version]
        ]

    def signed(self, header: v1.UploadHeader, signed: v1.Signed) -> bytes:
        """Return a delivery as its client has signed it, for the helpers; raise `Refused` if it has not one
        envelope for each of them, or is too large to be passed on."""
        content, count = signed.SerializeToString(), len(self.helpers.policy.helpers)
        most = LARGEST_HEADER * (1 + count)
        if len(header.envelopes) != count or len(content) > most:
            raise Refused(
                Cause.ENVELOPES,
                f"the upload has {len(header.envelopes)} envelopes and a header of {len(content)} bytes; in "
                f"this secure run it has {count}, one for each helper, and at most {most} bytes",
            )
        return content

    async def deliver(
        self, entry: JournalEntry, vectors: Callable[[], Vectors], release: Callable[[], None]
    ) -> RecordedAnswer | None:
        """Journal an offer, and return the answer when the helpers have decided; None if the run was over
        first. Raise `Refused` if a helper is away; then the upload is kept, and the client asks again.
        `release` is called when the values were applied, or are not needed."""
        try:
            await self._queue.put(replace(entry, kind="offer"))
            offered = entry.trip in self._secure.offers
        except BaseException:
            release()
            raise
        if not offered:  # the run is over
            release()
            return None
        self._bodies[entry.trip] = _Body(vectors, release)
        self.wake()
        return await self.outcome(entry.trip)

    async def expect(
        self, client: str, trip: int, epoch: int, version: int, digest: bytes, busy: BusyTrips
    ) -> RecordedAnswer | None:
        """Check an upload that is announced. Return None if it may be sent. If it waits for the helpers
        already, return its answer when they have decided. Raise `Refused` if it may not be delivered now."""
        offer = self._secure.offers.get(trip)
        if offer is not None:
            check_repeated(offer, client, epoch, digest)
            return await self.outcome(trip)
        check_announced(self._run_state, busy, client, trip, epoch, version)
        self.check_there()
        return None

    async def outcome(self, trip: int) -> RecordedAnswer | None:
        """Return the answer to an upload that was offered, when the helpers have decided."""
        self.check_there()
        if trip not in self._waiting:
            self._waiting[trip] = asyncio.get_running_loop().create_future()
            self._waiting[trip].add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._waiting[trip])

    async def end(self) -> None:
        """Answer all clients that wait, because the run is over, and drop the uploads that wait."""
        for trip in list(self._waiting):
            self._answer(trip, await self._recovery.answer(trip))
        for body in self._bodies.values():
            body.release()
        self._bodies.clear()

    def _answer(self, trip: int, answer: RecordedAnswer | None) -> None:
        """Answer the calls that wait for the outcome of this trip."""
        waiting = self._waiting.pop(trip, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    @property
    def away(self) -> float | None:
        """Seconds for which a helper could not be reached; None if all are there."""
        return None if self.away_since is None else self._run_time.now() - self.away_since

    def was_there(self, since: float) -> bool:
        """Return whether no helper was away since this time of the run."""
        return self.away_since is None and self.back <= since

    @property
    def owes_receipts(self) -> bool:
        """Whether a version of a run that has begun has no receipts yet."""
        return 0 <= self._secure.version < self._run_state.book.version

    # -- the task ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do the helpers' part of the run until cancelled. Report an error that ends the run."""
        wait = FIRST_WAIT
        try:
            while True:
                try:
                    await self.helpers.greet(self._history())
                    self._set_back()
                    wait = FIRST_WAIT
                    while True:
                        self._wake.clear()
                        if not await self._work():
                            await self._wake.wait()
                except HelperAway as away:
                    if wait > FIRST_WAIT:  # a helper that was only started again is greeted at once
                        self._set_away(str(away))
                except Refused:  # the journal cannot be written now
                    wait = max(wait, DISK_WAIT)
                await asyncio.sleep(wait)
                wait = min(LONGEST_WAIT, 2 * wait)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._on_failure(error)
        finally:
            await self.helpers.close_channels()

    def _history(self) -> ServerHistory:
        secure = self._secure
        return ServerHistory(secure.last, secure.released, secure.admitted, secure.offers.keys())

    def _set_away(self, why: str) -> None:
        if self.away_since is None:
            self.away_since = self._run_time.now()
        if not self._said_away:
            self._said_away = True
            log.warning("%s; trying again until it is back", why, extra={"event": "helper_away"})
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(_away())

    def _set_back(self) -> None:
        if self.away_since is not None:
            self.away_since, self.back, self._said_away = None, self._run_time.now(), False
            log.info("all helpers are there", extra={"event": "helpers"})

    async def _work(self) -> bool:
        """Do what can be done now, and return whether there was anything."""
        if self._secure.version < 0:
            if self._run_state.over is None:
                await self._begin()
            return self._run_state.over is None
        offers = [] if self._run_state.over is not None else self._next_offers()
        if offers:
            await self._admit(offers)
        return await self._step() or bool(offers)

    async def _begin(self) -> None:
        vectors = await self._threads.in_model_thread(self._model_state.aggregator.broadcast)
        signatures, receipts = await self.helpers.begin(vectors)
        await self._queue.put(
            JournalEntry("receipt", 0.0, signed=b"".join(signatures), receipts=receipts_as_json(receipts))
        )

    # -- uploads -----------------------------------------------------------------------------------

    def _next_offers(self) -> list[JournalEntry]:
        offers: list[JournalEntry] = []
        size = 0
        for offer in islice(self._secure.offers.values(), MOST_OFFERS):
            size += len(offer.signed)
            if offers and size > MOST_BYTES:
                break
            offers.append(offer)
        return offers

    async def _admit(self, offers: Sequence[JournalEntry]) -> None:
        """Ask the helpers about these uploads, and journal what they decide, in their order."""
        decisions = await self.helpers.admit([offer.signed for offer in offers])
        decided = list(zip(offers, decisions, strict=True))
        # the helpers' order of admitted uploads counts; it differs only if they knew some of them before
        admitted = iter(sorted((one for one in decided if one[1].batch), key=lambda one: one[1]))
        ordered = [next(admitted) if one[1].batch else one for one in decided]
        put = []
        for number, (offer, decision) in enumerate(ordered, 1):
            entry = self._outcome(offer, decision)
            body = self._bodies.pop(entry.trip, None)
            upload = partial(self._recovery.stored_upload, entry)
            if body is not None:
                upload = partial(_received, entry, body.vectors)
            put.append(
                self._queue.put(
                    entry, upload, None if body is None else body.release, True, number < len(ordered)
                )
            )
        for done in await asyncio.gather(*put, return_exceptions=True):
            if isinstance(done, BaseException):
                raise done
        for offer, decision in ordered:
            answer = await self._recovery.answer(offer.trip)
            if decision.refusal == RESEAL:
                answer = _sealed_again(offer)
            self._answer(offer.trip, answer)

    def _outcome(self, offer: JournalEntry, decision: Decision) -> JournalEntry:
        """Return the entry that a decision makes of an offer."""
        if decision.refusal == RESEAL:
            return replace(offer, kind="withdraw", signed=b"")
        refusal = sentence = ""
        if not decision.batch:
            late = decision.refusal == Reason.STALE and self._run_state.book.pace.in_rounds
            refusal = Reason.LATE.value if late else decision.refusal
            if refusal not in {*Reason}:
                refusal, sentence = Reason.HELPER.value, refusal
        return replace(
            offer, kind="deliver", signed=b"", version=decision.batch, refusal=refusal, reason=sentence
        )

    # -- batches -----------------------------------------------------------------------------------

    async def _step(self) -> bool:
        """Do the next thing for the oldest version without receipts; return whether there was any."""
        secure = self._secure
        version = secure.version + 1
        if version > self._run_state.book.version:
            return False
        if secure.released < version:
            await self._close(version)
        else:
            receipts = await self._receipts(secure, version)
            await self._queue.put(
                JournalEntry("receipt", 0.0, version=version, receipts=receipts_as_json(receipts))
            )
        return True

    async def _close(self, version: int) -> None:
        """Have the helpers release the batch that makes this version, or journal that it is abandoned."""
        layer = masked_layer(self._model_state.aggregator)
        masked = await self._threads.in_model_thread(layer.masked_digest, version - 1)
        entry = JournalEntry("release", 0.0, version=version)
        try:
            payload = (await self.helpers.release(version, masked)).view(np.uint8)
        except HelperRefused as refused:
            if refused.kind != TOO_FEW:
                raise
            log.warning("%s; its uploads do not count", refused, extra={"event": "abandoned"})
            await self._queue.put(entry, lambda: upload_of(entry, {}))
            return
        try:
            file = await asyncio.to_thread(self._store.write, version, payload)
        except StoreError as error:
            raise Refused(Cause.DISK, f"the server cannot write ({error})") from None
        entry = replace(entry, file=file, digest=digest(payload))
        vectors = unpacked(payload, release_layout(self._uploads.layout))
        await self._queue.put(entry, lambda: upload_of(entry, vectors))

    async def _receipts(self, secure: SecureState, version: int) -> list[SignedReceipt]:
        """Return the receipts of a version that was released or abandoned."""
        last = secure.last
        assert last is not None
        if secure.abandoned:
            return await self.helpers.abandon(version, TOO_FEW, last)
        name, total, vectors = await self._threads.in_model_thread(self._made, version)
        return await self.helpers.publish(version, name, total, vectors, last)

    def _made(self, version: int) -> tuple[str, Codes, Vectors]:
        """Return the digest of the newest version, the sum that made it, and its vectors; on the model
        thread."""
        aggregator = self._model_state.aggregator
        assert aggregator.version == version, "the step is made when its release is applied"
        total, vectors = masked_layer(aggregator).released_total(version - 1), aggregator.broadcast()
        assert total is not None, "kept until the version has its receipts"
        return digest_of(vectors), total, vectors


def _received(entry: JournalEntry, vectors: Callable[[], Vectors]) -> Upload:
    return upload_of(entry, vectors())


def _away() -> Refused:
    return Refused(Cause.HELPER_AWAY, "a helper of this secure run is away; come again", RETRY_AFTER)


def _sealed_again(offer: JournalEntry) -> RecordedAnswer:
    """Return the answer to an upload that must be sealed again. It is not recorded: the trip goes on."""
    answer = AnswerFields(accepted=False, reason=RESEAL, version=0, staleness=None, weight=0.0)
    return RecordedAnswer(offer.trip, offer.client, offer.digest, answer, offer.epoch)
