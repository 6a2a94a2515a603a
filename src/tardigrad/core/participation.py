"""The participation ledger: how often, and how far apart, one client may take part.

A privacy guarantee that does not rely on sampling relies on it: a client contributes to at most k steps, and
two of them are at least b steps apart. The ledger is a part of bookkeeping and sees no values.

>>> ledger = Ledger(Limits(participations=2, separation=3))
>>> ledger.enter("ann", step=1)
>>> ledger.allows("ann", step=3), ledger.allows("ann", step=4)
(False, True)
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, TypedDict

ClientId = int | str


class Limits(NamedTuple):
    """At most `participations` steps of one client, at least `separation` apart (consecutive ones are 1)."""

    participations: int
    separation: int


class LedgerState(TypedDict):
    """The contents of a snapshot of a `Ledger`."""

    entries: list[tuple[ClientId, int, int]]
    """Client, how often it took part, its last step."""


class Ledger:
    """How often each client took part, and when it did last."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.entries: dict[ClientId, tuple[int, int]] = {}
        """By client: how often it took part, and its last step."""
        self.resting: set[ClientId] = set()
        """The clients that may not take part in the next step."""
        self._back: deque[tuple[int, ClientId]] = deque()  # (step from which it may again, client)

    def allows(self, client: ClientId, step: int) -> bool:
        """Return whether the client may take part in this step."""
        entry = self.entries.get(client)
        if entry is None:
            return True
        count, last = entry
        return count < self.limits.participations and step - last >= self.limits.separation

    def finished(self, client: ClientId) -> bool:
        """Return whether the client has taken part as often as it may."""
        entry = self.entries.get(client)
        return entry is not None and entry[0] >= self.limits.participations

    def enter(self, client: ClientId, step: int) -> None:
        """Enter that the client takes part in this step, which is not before any step entered earlier."""
        assert self.allows(client, step), "a client may be entered only if the ledger allows it"
        count = self.entries.get(client, (0, 0))[0] + 1
        self.entries[client] = (count, step)
        self.resting.add(client)
        if count < self.limits.participations:
            self._back.append((step + self.limits.separation, client))

    def advance(self, step: int) -> None:
        """Let the clients take part again that may do so in this step, which is the next one."""
        while self._back and self._back[0][0] <= step:
            self.resting.discard(self._back.popleft()[1])

    def state(self) -> LedgerState:
        """Return the whole state, for a snapshot."""
        return {"entries": [(client, *entry) for client, entry in self.entries.items()]}

    def restore(self, state: LedgerState, step: int) -> None:
        """Continue from a `state()`; the next step is `step`."""
        self.entries = {client: (count, last) for client, count, last in state["entries"]}
        self.resting = set(self.entries)
        back = [
            (last + self.limits.separation, client)
            for client, (count, last) in self.entries.items()
            if count < self.limits.participations
        ]
        self._back = deque(sorted(back, key=lambda entry: entry[0]))
        self.advance(step)
