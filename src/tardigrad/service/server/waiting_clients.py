"""The line: clients that wait for a task, in the order in which they came."""

from __future__ import annotations

import asyncio

from tardigrad.core.outcomes import Ticket


class WaitingClients:
    """Costs a future for each client that waits, and nothing while nothing changes."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Ticket | None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, client: str) -> asyncio.Future[Ticket | None]:
        """Wait at the end of the line. Who waits already is sent away there: it has come again."""
        self.leave(client)
        place: asyncio.Future[Ticket | None] = asyncio.get_running_loop().create_future()
        self._waiting[client] = place
        return place

    def leave(self, client: str, place: asyncio.Future[Ticket | None] | None = None) -> None:
        """Do not wait any more (at this place, if it is still the client's)."""
        there = self._waiting.get(client)
        if there is not None and place in (None, there):
            del self._waiting[client]
            if not there.done():
                there.set_result(None)

    def fail(self, client: str, error: Exception) -> None:
        """Send one who waits away with this error."""
        place = self._waiting.pop(client, None)
        if place is not None and not place.done():
            place.set_exception(error)

    def clients(self) -> list[str]:
        """Who waits, from the first on."""
        return list(self._waiting)

    def serve(self, client: str, ticket: Ticket) -> None:
        """Give a ticket to one who waits; if it has left, it finds the ticket when it comes again."""
        place = self._waiting.pop(client, None)
        if place is not None and not place.done():
            place.set_result(ticket)

    def dismiss(self) -> None:
        """Send everybody away."""
        for client in list(self._waiting):
            self.leave(client)
