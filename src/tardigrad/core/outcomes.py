"""The decisions of bookkeeping: what a check-in, an upload or a trip that was given up comes to.

- `check_in` returns a `Ticket` or a `Refusal`;
- `deliver` returns `Accepted`, `Rejected` or `UnknownTrip`;
- `give_up` returns `GivenUp` or `UnknownTrip`.

>>> outcome = Accepted(Ticket(0, "ann", 3, time=1.0), time=2.0, version=5, weight=0.5, mass=1.0, closes=True)
>>> outcome.staleness, outcome.step
(2, 6)
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from tardigrad.core.participation import ClientId


class Reason(StrEnum):
    """Why a check-in or an upload was refused."""

    FULL = "full"
    TRAINING = "already training"
    CONTRIBUTED = "already in this buffer"
    UNKNOWN = "unknown trip"
    DUPLICATE = "duplicate"
    LATE = "round closed"
    STALE = "too stale"
    RESTING = "took part too recently"
    FINISHED = "took part as often as allowed"
    NORM = "norm too large"
    OUTLIER = "norm far above the others"
    HELPER = "refused by a helper"


class Ticket(NamedTuple):
    """The permission to make one trip, from one version."""

    trip: int
    client: ClientId
    version: int
    time: float


class Refusal(NamedTuple):
    """A check-in that was not granted."""

    client: ClientId
    reason: Reason
    time: float


class Accepted(NamedTuple):
    """An upload that counts."""

    ticket: Ticket
    time: float
    """When it arrived."""
    version: int
    """The version at arrival."""
    weight: float
    """The factor of the upload in the weighted sum: its staleness discount times its mass."""
    mass: float
    """Its share of the divisor: 1, or its number of examples. It does not depend on the staleness."""
    closes: bool
    """Whether it filled the buffer, so that the model moves now."""

    @property
    def trip(self) -> int:
        """The number of the trip."""
        return self.ticket.trip

    @property
    def client(self) -> ClientId:
        """The client that made the trip."""
        return self.ticket.client

    @property
    def staleness(self) -> int:
        """How many versions were made between the start of the trip and its arrival."""
        return self.version - self.ticket.version

    @property
    def step(self) -> int:
        """The version that its buffer makes."""
        return self.version + 1


class Rejected(NamedTuple):
    """An upload that does not count."""

    ticket: Ticket
    time: float
    """When it arrived."""
    version: int
    """The version at arrival."""
    reason: Reason
    closes: bool
    """Whether the model moves now, because the step waited for this client only."""

    @property
    def trip(self) -> int:
        """The number of the trip."""
        return self.ticket.trip

    @property
    def client(self) -> ClientId:
        """The client that made the trip."""
        return self.ticket.client

    @property
    def staleness(self) -> int:
        """How many versions were made between the start of the trip and its arrival."""
        return self.version - self.ticket.version


class GivenUp(NamedTuple):
    """A trip that ended without an upload."""

    ticket: Ticket
    time: float
    """When it ended."""
    closes: bool
    """Whether the model moves now, because the step waited for this client only."""


class UnknownTrip(NamedTuple):
    """An upload for a trip that is not under way, or a request to give it up. It changes nothing."""

    trip: int
    time: float
    version: int
    """The version at arrival."""
    reason: Reason
    """`DUPLICATE` if the trip has ended already, `UNKNOWN` if it never began."""
