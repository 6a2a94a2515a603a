"""Check-ins: clients ask for a trip, and are granted tickets as soon as the pace allows."""

from __future__ import annotations

import asyncio
from functools import partial

from tardigrad.core.outcomes import Ticket
from tardigrad.service.server.clock import RunTime
from tardigrad.service.server.journal_queue import JournalQueue
from tardigrad.service.server.model_state import ModelState
from tardigrad.service.server.run_state import Effects, RunState
from tardigrad.service.server.ticket_checks import BusyTrips
from tardigrad.service.server.waiting_clients import WaitingClients
from tardigrad.service.store.contract import JournalEntry


class CheckIns:
    """Clients that wait for a ticket, and those whose check-in is being journaled."""

    def __init__(
        self,
        run_state: RunState,
        model_state: ModelState,
        queue: JournalQueue,
        busy: BusyTrips,
        run_time: RunTime,
        epoch: int,
    ) -> None:
        """`epoch`: the random number of this process, which becomes a part of every ticket."""
        self._run_state, self._model_state, self._queue = run_state, model_state, queue
        self._busy, self._run_time, self._epoch = busy, run_time, epoch
        self._waiting = WaitingClients()
        self._granting: set[str] = set()  # clients whose check-in is in the queue
        self._closed = False

    def __len__(self) -> int:
        """Return how many clients wait."""
        return len(self._waiting)

    async def check_in(self, client: str, holding: frozenset[int], seconds: float) -> Ticket | None:
        """Return a ticket: one that the client was granted and does not hold, or a new one as soon as the
        pace allows. Return None if that takes longer than `seconds` or the run is over; raise `Refused` if
        the ticket cannot be journaled."""
        for ticket in self._run_state.open.get(client, []):
            if ticket.trip not in holding and not self._busy.is_ending(ticket.trip):
                return ticket
        if self._run_state.over is not None or self._closed:
            return None
        place = self._waiting.join(client)
        self.grant()
        try:
            async with asyncio.timeout(seconds):  # `wait_for` would need more futures and wake-ups
                return await place
        except TimeoutError:
            return place.result() if place.done() and not place.cancelled() else None
        finally:
            self._waiting.leave(client, place)

    def grant(self) -> None:
        """Queue the check-ins of clients that may start now, in the order in which they came."""
        book = self._run_state.book
        if self._run_state.over is not None or self._closed:
            return
        if self._model_state.waiting or self._run_state.unreceipted or self._run_state.steering.paused:
            return
        free = book.capacity() - len(self._granting)
        if free <= 0:
            return
        for client in self._waiting.clients():
            if free <= 0:
                return
            if client not in self._granting and book.objection(client) is None:
                free -= 1
                self._granting.add(client)
                entry = JournalEntry("check_in", self._run_time.now(), client=client, epoch=self._epoch)
                self._queue.put(entry).add_done_callback(partial(self._tell_refused, client))

    def applied(self, client: str, ticket: Ticket | None) -> None:
        """Take note that a check-in was journaled, and give the client its ticket if it got one."""
        self._granting.discard(client)
        if ticket is not None:
            self._waiting.serve(client, ticket)

    def _tell_refused(self, client: str, granted: asyncio.Future[Effects]) -> None:
        """Tell a client that waits if its check-in could not be journaled."""
        error = granted.exception()
        if error is not None:
            self._granting.discard(client)
            self._waiting.fail(client, error)

    def send_away(self, client: str) -> None:
        """Answer a client that waits and will get no ticket."""
        self._waiting.leave(client)

    def dismiss(self) -> None:
        """Answer all clients that wait: they get no ticket now."""
        self._waiting.dismiss()

    def close(self) -> None:
        """Answer all clients that wait, and grant no more tickets."""
        self._closed = True
        self.dismiss()
