"""The planner's output: the items of a plan, and the rows that a snapshot contains of them.

>>> item = from_row(["Refusal", "ann", "full", 2.0])
>>> item
Refusal(client='ann', reason=<Reason.FULL: 'full'>, time=2.0)
>>> to_row(item)
['Refusal', 'ann', <Reason.FULL: 'full'>, 2.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tardigrad.core.outcomes import Accepted, GivenUp, Reason, Refusal, Rejected, Ticket
from tardigrad.errors import RunError


class Joined(NamedTuple):
    """All clients that join at a version have started (Poisson pace)."""

    time: float
    closes: bool
    """Whether the model moves now, because no client joined."""


Planned = Ticket | Refusal | Accepted | Rejected | GivenUp | Joined
PlannedRow = Sequence[object]
"""The name of the item's type, then its fields. It can be written as JSON."""


def to_row(item: Planned) -> PlannedRow:
    """Return the row of a planned item."""
    return [type(item).__name__, *item]


def from_row(row: PlannedRow) -> Planned:
    """Return the planned item of a row, also of an earlier snapshot."""
    kind, *fields = row
    make = _MAKERS.get(str(kind))
    if make is None:
        raise RunError(f"the snapshot's plan has an item of an unknown kind, {kind!r}; start a new run")
    return make(*fields)


def _refusal(client: int | str, reason: str, time: float) -> Refusal:
    return Refusal(client, Reason(reason), time)


def _accepted(
    ticket: Sequence[object], time: float, version: int, weight: float, mass: float, closes: bool
) -> Accepted:
    return Accepted(_ticket(*ticket), time, version, weight, mass, closes)


def _rejected(ticket: Sequence[object], time: float, version: int, reason: str, closes: bool) -> Rejected:
    return Rejected(_ticket(*ticket), time, version, Reason(reason), closes)


def _given_up(ticket: Sequence[object], time: float, closes: bool) -> GivenUp:
    return GivenUp(_ticket(*ticket), time, closes)


def _delivery(
    trip: int, client: int | str, start_time: float, time: float, start_version: int, version: int,
    staleness: int, weight: float, mass: float, accepted: bool, reason: str, step: int | None, closes: bool,
) -> Accepted | Rejected:  # fmt: skip
    """Read a row of an earlier snapshot, in which all uploads had one type."""
    ticket = Ticket(trip, client, start_version, start_time)
    if accepted:
        return Accepted(ticket, time, version, weight, mass, closes)
    return Rejected(ticket, time, version, Reason(reason), closes)


_ticket: Callable[..., Ticket] = Ticket
_MAKERS: dict[str, Callable[..., Planned]] = {
    "Ticket": Ticket,
    "Refusal": _refusal,
    "Accepted": _accepted,
    "Rejected": _rejected,
    "GivenUp": _given_up,
    "Joined": Joined,
    "Delivery": _delivery,
    "GiveUp": _given_up,
}
