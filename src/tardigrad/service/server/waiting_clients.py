"""The queue of clients that wait for a task."""

from __future__ import annotations

import asyncio

from tardigrad.core.outcomes import Ticket


class WaitingClients:
    """Clients that wait for a task, in the order in which they came: one future for each."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Ticket | None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, client: str) -> asyncio.Future[Ticket | None]:
        """Append a client and return the future of its ticket. If it waits already, its earlier call gets
        None."""
        self.leave(client)
        place: asyncio.Future[Ticket | None] = asyncio.get_running_loop().create_future()
        self._waiting[client] = place
        return place

    def leave(self, client: str, place: asyncio.Future[Ticket | None] | None = None) -> None:
        """Remove a client, whose call gets None. With `place`, only if that is still the client's future."""
        there = self._waiting.get(client)
        if there is not None and place in (None, there):
            del self._waiting[client]
            if not there.done():
                there.set_result(None)

    def fail(self, client: str, error: BaseException) -> None:
        """Remove a client, whose call raises this error."""
        place = self._waiting.pop(client, None)
        if place is not None and not place.done():
            place.set_exception(error)

    def clients(self) -> list[str]:
        """Return the clients that wait, the first first."""
        return list(self._waiting)

    def serve(self, client: str, ticket: Ticket) -> None:
        """Give a client its ticket. If it does not wait any more, it gets the ticket at its next check-in."""
        place = self._waiting.pop(client, None)
        if place is not None and not place.done():
            place.set_result(ticket)

    def dismiss(self) -> None:
        """Remove all clients, whose calls get None."""
        for client in list(self._waiting):
            self.leave(client)
