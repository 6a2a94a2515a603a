"""Which uploads are in a batch, and with which weight: the rules that every helper keeps by itself.

A batch is what makes one step, and its number is the version that it makes. The rules are those of
bookkeeping, as far as they decide whether an upload counts, so that a helper and the server come to the same
decisions from the same uploads in the same order. Nothing here is a value of an upload.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tardigrad.core.outcomes import Reason
from tardigrad.core.participation import Ledger
from tardigrad.secure.policy import Policy


@dataclass(frozen=True, slots=True)
class AdmittedUpload:
    """An upload that is in a batch."""

    trip: int
    client: str
    version: int
    """The version that its trip started from."""
    batch: int
    place: int
    """Its place in the batch, from 0."""
    weight: int
    """Its staleness weight, from 1 to the policy's denominator."""

    @property
    def staleness(self) -> int:
        """How many versions were made since its trip started."""
        return self.batch - 1 - self.version


@dataclass
class Batch:
    """The uploads that make one step."""

    number: int
    members: list[AdmittedUpload] = field(default_factory=list)


class BatchBook:
    """The batch that is being filled, and those that are full and not released yet."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.open = Batch(1)
        self.full: dict[int, Batch] = {}
        """Full batches by number, until they are released or abandoned."""
        self.ledger = None if policy.limits is None else Ledger(policy.limits)

    def objection(self, client: str, version: int) -> Reason | None:
        """Return why an upload of this client, from a trip that started at this version, may not be in the
        open batch, or None if it may."""
        number, bound = self.open.number, self.policy.staleness_bound
        staleness = number - 1 - version
        if staleness < 0:
            return Reason.UNKNOWN
        if bound is not None and staleness > bound:
            return Reason.STALE
        if any(member.client == client for member in self.open.members):
            return Reason.CONTRIBUTED
        if self.ledger is not None and not self.ledger.allows(client, number):
            return Reason.FINISHED if self.ledger.finished(client) else Reason.RESTING
        return None

    def admit(self, trip: int, client: str, version: int) -> AdmittedUpload | Reason:
        """Put an upload into the open batch, or return why it may not be there."""
        reason = self.objection(client, version)
        if reason is not None:
            return reason
        batch = self.open
        weight = self.policy.weight(batch.number - 1 - version)
        admission = AdmittedUpload(trip, client, version, batch.number, len(batch.members), weight)
        self.enter(admission)
        return admission

    def enter(self, admission: AdmittedUpload) -> None:
        """Enter an upload that was admitted, now or by the process before; they are entered in order."""
        batch = self.open
        assert (admission.batch, admission.place) == (batch.number, len(batch.members)), "in order"
        batch.members.append(admission)
        if self.ledger is not None:
            self.ledger.enter(admission.client, batch.number)
        if len(batch.members) == self.policy.batch_size(batch.number):
            self.full[batch.number] = batch
            self.open = Batch(batch.number + 1)

    def remove(self, number: int) -> Batch:
        """Forget a full batch, because it was released or abandoned, and return it."""
        return self.full.pop(number)


def effective_clients(weights: Iterable[int]) -> float:
    """Return how many clients of equal weight would hide each other as well: (sum w)^2 / sum w^2.

    >>> effective_clients([256, 256, 256, 256])
    4.0
    >>> round(effective_clients([256, 1, 1, 1]), 2)
    1.02
    """
    found = list(weights)
    return sum(found) ** 2 / sum(weight * weight for weight in found) if found else 0.0


def too_few(policy: Policy, weights: Iterable[int]) -> bool:
    """Return whether a batch must not be released, because too few clients would hide each other in it.
    `weights`: of its uploads.

    In vectors without a discount all weigh the same, so that only the number of clients matters.
    """
    return effective_clients(weights) < policy.least_clients
