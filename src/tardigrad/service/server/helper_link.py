"""The link between a server and the helpers of a secure run.

One task takes the uploads that wait in the order of the journal and asks the helpers about them, closes
batches that are full, and gets the receipts of new versions. What the helpers say is journaled before it
counts. Every call to a helper can be repeated, so after a crash the task goes on from what the journal says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice

import numpy as np

from tardigrad.core.outcomes import Reason
from tardigrad.core.upload import Vectors
from tardigrad.privacy.releases import digest_of
from tardigrad.secure.helper_refusals import RESEAL, RefusalKind
from tardigrad.secure.masks import Codes
from tardigrad.secure.receipts import SignedReceipt
from tardigrad.service.protocol.refusals import Cause, Refused, log
from tardigrad.service.protocol.wire import digest, unpacked
from tardigrad.service.server.clock import RunTime
from tardigrad.service.server.helper_connection import HelperAway, HelperRefused
from tardigrad.service.server.helper_group import Decision, HelperGroup, ServerHistory
from tardigrad.service.server.journal_queue import JournalQueue
from tardigrad.service.server.model_state import ModelState
from tardigrad.service.server.offered_uploads import OfferedUploads, come_again
from tardigrad.service.server.released_masks import masked_layer, release_layout
from tardigrad.service.server.run_state import RunState
from tardigrad.service.server.secure_state import SecureState, receipts_as_json
from tardigrad.service.server.upload_form import UploadForm
from tardigrad.service.server.worker_threads import Threads
from tardigrad.service.store.contract import JournalEntry, Store, StoreError
from tardigrad.service.store.recovery import Recovery, upload_of

MOST_OFFERS = 128
"""Uploads about which the helpers are asked at a time."""
MOST_BYTES = 1 << 19
"""Bytes of their headers, which must fit into one message."""
FIRST_WAIT, LONGEST_WAIT = 0.05, 5.0
"""Seconds between two tries to reach a helper."""
MOST_GREETINGS = 3
"""A helper that was greeted so often, and has done nothing of its work, is as good as away."""
UNDECIDED_SECONDS = 5.0
"""Seconds that an act waits for the helpers' decision about uploads."""
DISK_WAIT = 2.0
"""Seconds until the helpers are asked again after the journal could not be written."""


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
        self.offers = OfferedUploads(run_state, queue, recovery)
        self._store, self._queue = store, queue
        self._threads, self._run_time, self._uploads = threads, run_time, uploads
        self._on_failure = on_failure
        self._wake = asyncio.Event()
        self._asking = asyncio.Lock()  # held from the question about uploads until the answer is applied
        self._asked: set[int] = set()  # trips that the helpers may have admitted, and whose fate is unknown
        self._said_away = False
        self.away_since: float | None = run_time.now()
        """The time of the run since which a helper cannot be reached; None if all are there."""
        self.back = 0.0
        """The time of the run at which the last helper came back."""

    def wake(self) -> None:
        """Look for work: an entry was applied."""
        self._wake.set()

    @property
    def away(self) -> float | None:
        """Seconds for which a helper could not be reached; None if all are there."""
        return None if self.away_since is None else self._run_time.now() - self.away_since

    def was_there(self, since: float) -> bool:
        """Return whether no helper was away since this time of the run."""
        return self.away_since is None and self.back <= since

    @property
    def steps_waiting(self) -> int:
        """How many versions of a run that has begun have no receipts yet."""
        signed = self._secure.version
        return 0 if signed < 0 else self._run_state.book.version - signed

    # -- the task ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do the helpers' part of the run until cancelled. Report an error that ends the run."""
        wait, self.away_since = FIRST_WAIT, self._run_time.now()
        self._asked = set(self._secure.offers)  # the last process may have asked about them
        greetings = 0  # since the last work was done
        try:
            while True:
                try:
                    await self.helpers.greet(self._history())
                    greetings += 1
                    if greetings < MOST_GREETINGS:
                        self._set_back()
                        wait = FIRST_WAIT
                    while True:
                        self._wake.clear()
                        worked = await self._work()
                        self._set_back()
                        wait, greetings = FIRST_WAIT, 0
                        if not worked:
                            await self._wake.wait()
                except HelperAway as away:
                    if wait > FIRST_WAIT or greetings >= MOST_GREETINGS:  # once is a restart, and not noticed
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
        self.offers.helper_away = True
        if self.away_since is None:
            self.away_since = self._run_time.now()
        if not self._said_away:
            self._said_away = True
            log.warning("%s; trying again until it is back", why, extra={"event": "helper_away"})
        self.offers.refuse_all(come_again())

    def _set_back(self) -> None:
        self.offers.helper_away = False
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
        async with self._asking:
            offers = [offer for offer in offers if offer.trip in self._secure.offers]  # an eject came first
            if offers:
                self._asked |= {offer.trip for offer in offers}
                await self._decide(offers)
                self._asked -= {offer.trip for offer in offers}

    async def _decide(self, offers: Sequence[JournalEntry]) -> None:
        decisions = await self.helpers.admit([offer.signed for offer in offers])
        decided = list(zip(offers, decisions, strict=True))
        # the helpers' order of admitted uploads counts; it differs only if they knew some of them before
        admitted = iter(sorted((one for one in decided if one[1].batch), key=lambda one: one[1]))
        ordered = [next(admitted) if one[1].batch else one for one in decided]
        put = []
        for number, (offer, decision) in enumerate(ordered, 1):
            entry = self._outcome(offer, decision)
            upload, release = self.offers.take(entry)
            put.append(self._queue.put(entry, upload, release, offered=True, joined=number < len(ordered)))
        for done in await asyncio.gather(*put, return_exceptions=True):
            if isinstance(done, BaseException):
                raise done
        for offer, decision in ordered:
            await self.offers.decided(offer, decision.refusal == RESEAL)

    @asynccontextmanager
    async def undisturbed(self, client: str) -> AsyncIterator[None]:
        """Let the helpers be asked about no upload within the block, which begins when none of this client's
        is undecided: one that they have admitted is in their batch and must count. Raise `Refused` if that
        takes too long, as while a helper is away; nothing counts meanwhile."""
        deadline = asyncio.get_running_loop().time() + UNDECIDED_SECONDS
        while True:
            async with self._asking:
                tickets = self._run_state.open.get(client, ())
                if not {ticket.trip for ticket in tickets} & self._asked & self._secure.offers.keys():
                    yield
                    return
            if asyncio.get_running_loop().time() > deadline:
                raise Refused(
                    Cause.HELPER_AWAY,
                    f"the helpers were asked about an upload of {client} and have not answered; come again "
                    "when all of them are there (no upload counts until then)",
                    retry_after=UNDECIDED_SECONDS,
                )
            await asyncio.sleep(FIRST_WAIT)

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
            if refused.kind != RefusalKind.TOO_FEW:
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
            return await self.helpers.abandon(version, RefusalKind.TOO_FEW, last)
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
