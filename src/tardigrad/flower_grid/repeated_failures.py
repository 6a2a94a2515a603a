"""Trips that fail one after the other: a few are given up, many end the run."""

from __future__ import annotations

from tardigrad.core.outcomes import Ticket
from tardigrad.errors import RunError
from tardigrad.flower_grid.flower_log import log

MOST_FAILURES = 5
"""Trips for each node that may fail one after the other, without one that succeeds, before the run fails."""


class RepeatedFailures:
    """Counts the trips that have failed since the last one that succeeded."""

    def __init__(self) -> None:
        self._count = 0

    def succeeded(self) -> None:
        """Begin to count again."""
        self._count = 0

    def failed(self, ticket: Ticket, said: str, nodes: int) -> None:
        """Log why a trip has failed; raise a RunError if there were too many. `nodes`: how many are
        connected."""
        log.warning("node %s, trip %d: %s", ticket.client, ticket.trip, said)
        self._count += 1
        if self._count >= MOST_FAILURES * max(1, nodes):
            raise RunError(
                f"{self._count} trips have failed one after the other, and none has succeeded since; the "
                f"last, of node {ticket.client}: {said}"
            )
