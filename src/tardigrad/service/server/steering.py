"""The effects of operators' actions on a run: whether it is paused, who is ejected, the changed limits.

It is deterministic, as all of `RunState`: the same entries give the same state.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import NamedTuple, TypedDict

from tardigrad.core.bookkeeping import Bookkeeping
from tardigrad.core.pace import Asynchronous
from tardigrad.service.server.service_settings import ServiceSettings
from tardigrad.service.store.contract import JournalEntry

STOPPED = "stopped by the operator"
SERVICE_LIMITS = ("requests_per_second", "ticket_seconds")
"""Settings of the table `service` that may change while a run goes on."""
CONCURRENCY = "concurrency"
"""The setting of an asynchronous pace that may change."""
LARGEST_LIMIT = 1e9


class Origin(NamedTuple):
    """Who did something, and when in seconds since 1970."""

    admin: str
    wall: float


class SteeringDocument(TypedDict):
    """`Steering` as JSON."""

    paused: tuple[str, float] | None
    ejected: list[tuple[str, str, float]]
    """Clients, each with the fields of its `Origin`."""
    limits: dict[str, float]


class Steering:
    """The state that operators have given to a run."""

    def __init__(self) -> None:
        self.paused: Origin | None = None
        """Who has paused the run; None if it is not paused."""
        self.ejected: dict[str, Origin] = {}
        """By client, who has ejected it."""
        self.limits: dict[str, float] = {}
        """The limits that were changed, by name."""

    def changes(self, entry: JournalEntry) -> bool:
        """Return whether an act would change anything; an export always counts."""
        match entry.kind:
            case "pause":
                return self.paused is None
            case "resume":
                return self.paused is not None
            case "eject":
                return entry.client not in self.ejected
            case "admit":
                return entry.client in self.ejected
            case "limits":
                new = json.loads(entry.limits or "{}")
                return any(self.limits.get(name) != value for name, value in new.items())
        return True

    def apply(self, entry: JournalEntry, book: Bookkeeping) -> None:
        """Apply an act that changes something. Trips of an ejected client are ended by the caller."""
        match entry.kind:
            case "pause":
                self.paused = Origin(entry.admin, entry.wall)
            case "resume":
                self.paused = None
            case "eject":
                self.ejected[entry.client] = Origin(entry.admin, entry.wall)
            case "admit":
                del self.ejected[entry.client]
            case "limits":
                self.limits |= json.loads(entry.limits or "{}")
                self._set_concurrency(book)

    def _set_concurrency(self, book: Bookkeeping) -> None:
        """Give bookkeeping the concurrency that was set, because check-ins that are repeated depend on it."""
        if CONCURRENCY in self.limits and isinstance(book.pace, Asynchronous):
            book.pace = book.pace.model_copy(update={CONCURRENCY: int(self.limits[CONCURRENCY])})

    def settings(self, given: ServiceSettings) -> ServiceSettings:
        """Return the settings of the server with the limits that were changed."""
        changed = {name: value for name, value in self.limits.items() if name in SERVICE_LIMITS}
        return given.model_copy(update=changed)

    def state(self) -> SteeringDocument:
        """Return everything as JSON."""
        return {
            "paused": self.paused,
            "ejected": [(client, *origin) for client, origin in self.ejected.items()],
            "limits": dict(self.limits),
        }

    def restore(self, state: SteeringDocument, book: Bookkeeping) -> None:
        """Go on from `state()`."""
        self.paused = None if state["paused"] is None else Origin(*state["paused"])
        self.ejected = {client: Origin(admin, wall) for client, admin, wall in state["ejected"]}
        self.limits = dict(state["limits"])
        self._set_concurrency(book)


def limits_in_force(book: Bookkeeping, settings: ServiceSettings) -> dict[str, float]:
    """Return the limits that an operator may change, with their values."""
    found: dict[str, float] = {name: getattr(settings, name) for name in SERVICE_LIMITS}
    if isinstance(book.pace, Asynchronous):
        found[CONCURRENCY] = float(book.pace.concurrency)
    return found


def fault_of_limits(new: Mapping[str, float], in_force: Mapping[str, float]) -> str:
    """Return what is wrong with new values of limits, or ""."""
    for name, value in new.items():
        if name not in in_force:
            return f"{name[:64]!r} is not a limit that can change in this run; give {', '.join(in_force)}"
        if not (math.isfinite(value) and 0 < value <= LARGEST_LIMIT):
            return f"{name}: must be positive and at most {LARGEST_LIMIT:g}; {value:g} was given"
        if name == CONCURRENCY and value != int(value):
            return f"{name}: must be a whole number; {value:g} was given"
    return ""
