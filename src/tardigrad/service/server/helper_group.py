"""All helpers of a secure run as one: they are asked together, and must agree."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from tardigrad.core.upload import Vectors
from tardigrad.errors import RunError
from tardigrad.privacy.releases import NEW_RUN
from tardigrad.secure.masks import Codes
from tardigrad.secure.policy import Policy
from tardigrad.secure.receipts import Receipt, SignedReceipt, agreed, is_signed, read_receipt
from tardigrad.service.access.enrolment import public_key
from tardigrad.service.protocol.v1 import helper_pb2 as helper_v1
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.wire import MOST_PLACES
from tardigrad.service.server.helper_connection import HelperConnection

T = TypeVar("T")


class Decision(NamedTuple):
    """The helpers' decision about an upload."""

    batch: int
    """The version that its batch makes; 0 if it was refused."""
    position: int = 0
    """In the batch, from 0."""
    refusal: str = ""
    """Why it was refused."""


class ServerHistory(NamedTuple):
    """The server's knowledge of the run when it greets the helpers."""

    last: Receipt | None
    """The receipt of the last version; None before the run has begun."""
    released: int
    """The last batch that the helpers released or abandoned."""
    admitted: Mapping[int, int]
    """By trip, the batches of all uploads that were admitted and that no receipt covers."""
    offered: Collection[int]
    """Trips whose uploads wait for the helpers' decision."""


class HelperGroup:
    """The helpers of one run, in the order of its policy."""

    def __init__(self, policy: Policy, connections: Sequence[HelperConnection]) -> None:
        self.policy, self._connections = policy, connections
        self.content = policy.to_bytes()
        """The policy as it was signed."""
        self._digest = policy.digest
        self._identities = [public_key(text, "secure.helpers.identity") for text in policy.helpers]

    async def close_channels(self) -> None:
        """Close the channels to all helpers."""
        await asyncio.gather(*(one.close_channel() for one in self._connections))

    def keys(self) -> list[v1.OfferedKey] | None:
        """Return the keys that clients seal their seeds to now; None if a helper has not offered one."""
        found = [one.key for one in self._connections if one.key is not None]
        return found if len(found) == len(self._connections) else None

    async def greet(self, history: ServerHistory) -> None:
        """Greet all helpers; raise a RunError if one of them has another history than this server."""
        last = history.last
        receipt, version = (b"", 0) if last is None else (bytes.fromhex(last.hash), last.version)
        greetings = await self._all(one.greet(self.policy.run, receipt, version) for one in self._connections)
        for number, greeting in enumerate(greetings):
            if greeting.run:
                self._check_signature(number, greeting.policy_signature)
                self._check_history(number, greeting, history)
            elif last is not None:
                raise self._fault(number, f"knows nothing of the run {self.policy.run}", "helper")

    def _check_signature(self, number: int, signature: bytes) -> None:
        if not is_signed(self._identities[number], signature, self._digest):
            raise RunError(
                f"{self._name(number)} has signed another policy, or is not the one that secure.helpers "
                "names: a run keeps its policy; give the config and the keys that it began with"
            )

    def _check_history(self, number: int, greeting: helper_v1.Greeting, history: ServerHistory) -> None:
        """Raise a RunError unless the helper is where this server is, or one receipt ahead."""
        found, last = read_receipt(greeting.receipt.receipt), history.last
        own = -1 if last is None else last.version
        ahead = found.version == 0 if last is None else found.follows(last)
        if found != last and not (ahead and history.released == found.version):
            who = "server" if found.version > own else "helper"
            raise self._fault(
                number, f"is at version {found.version}, and the last receipt here is of version {own}", who
            )
        places = {place.trip: place.batch for place in greeting.places}
        for trip, batch in places.items():
            if history.admitted.get(trip) != batch and trip not in history.offered:
                raise self._fault(
                    number, f"has the upload of trip {trip} in batch {batch}, which the server lost", "server"
                )
        for trip, batch in history.admitted.items():
            if trip not in places and batch > found.version and len(places) < MOST_PLACES:
                raise self._fault(number, f"has lost the upload of trip {trip} in batch {batch}", "helper")

    def _fault(self, number: int, what: str, who: str) -> RunError:
        return RunError(f"{self._name(number)} {what}: the {who} was put back from a backup; {NEW_RUN}")

    def _name(self, number: int) -> str:
        return f"the helper at {self._connections[number].address}"

    async def begin(self, vectors: Vectors) -> tuple[list[bytes], list[SignedReceipt]]:
        """Begin the run; return the helpers' signatures of the policy, and the receipts of version 0."""
        begun = await self._all(one.begin(self.content, vectors) for one in self._connections)
        for number, (signature, _) in enumerate(begun):
            self._check_signature(number, signature)
        receipts = [receipt for _, receipt in begun]
        self._check_receipts(receipts, 0, None)
        return [signature for signature, _ in begun], receipts

    async def admit(self, deliveries: Sequence[bytes]) -> list[Decision]:
        """Return what the helpers decide about these uploads. An upload that one of them refuses whatever
        else is in the batch is refused by all, before any of them has admitted it. What all have found good
        none of them refuses for another reason than its batch, also if their lists change meanwhile."""
        decisions: list[Decision | None] = [None] * len(deliveries)
        if len(self._connections) > 1:
            for places in await self._all(one.admit(deliveries, True) for one in self._connections):
                for index, place in enumerate(places):
                    if place.refusal and decisions[index] is None:
                        decisions[index] = Decision(0, refusal=place.refusal)
        rest = [index for index, decision in enumerate(decisions) if decision is None]
        if rest:
            chosen = [deliveries[index] for index in rest]
            answers = await self._all(one.admit(chosen, False) for one in self._connections)
            for index, places in zip(rest, zip(*answers)):
                found = {Decision(place.batch, place.position, place.refusal) for place in places}
                if len(found) > 1:
                    raise RunError(
                        f"the helpers have decided differently about the upload of trip {places[0].trip}: "
                        f"one of them was put back from a backup; {NEW_RUN}"
                    )
                decisions[index] = found.pop()
        return [decision for decision in decisions if decision is not None]

    async def release(self, batch: int, masked_digest: bytes) -> Codes:
        """Close a batch, and return the sum of what the helpers release for it."""
        length, bits = sum(self.policy.lengths), self.policy.bits
        first, *others = await self._all(
            one.release(batch, masked_digest, length, bits) for one in self._connections
        )
        for other in others:
            first += other
        return first

    async def publish(
        self, version: int, digest: str, total: Codes, vectors: Vectors, last: Receipt
    ) -> list[SignedReceipt]:
        """Return the receipts of a new version. `last`: what those of the version before say."""
        receipts = await self._all(one.publish(version, digest, total, vectors) for one in self._connections)
        if any(one.receipt.digest != digest for one in receipts):
            raise RunError(f"a helper has signed another version {version} than it was given; {NEW_RUN}")
        self._check_receipts(receipts, version, last)
        return receipts

    async def abandon(self, batch: int, reason: str, last: Receipt) -> list[SignedReceipt]:
        """Give a batch up, and return the receipts of its version."""
        receipts = await self._all(one.abandon(batch, reason) for one in self._connections)
        self._check_receipts(receipts, batch, last)
        return receipts

    def _check_receipts(self, receipts: Sequence[SignedReceipt], version: int, last: Receipt | None) -> None:
        found = agreed(receipts, self._identities, self._digest.hex(), version)
        if last is not None and not found.follows(last):
            raise RunError(f"the helpers' receipt of version {version} does not follow the last; {NEW_RUN}")

    async def _all(self, calls: Iterable[Coroutine[None, None, T]]) -> list[T]:
        """Return the answers of all helpers when all have answered; raise the first error."""
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]
