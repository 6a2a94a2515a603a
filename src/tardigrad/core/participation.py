"""The participation ledger: how often, and how far apart, one client may take part.

A promise of privacy that trusts no sampling rests on this: a client contributes to at most k steps, and
from one to the next are at least b steps. The ledger is a part of bookkeeping; it sees no values.

>>> ledger = Ledger(Limits(participations=2, separation=3))
>>> ledger.enter("ann", step=1)
>>> ledger.allows("ann", step=3), ledger.allows("ann", step=4)
(False, True)
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

ClientId = int | str


class Limits(NamedTuple):
    """At most `participations` steps of one client, at least `separation` apart (consecutive ones are 1)."""

    participations: int
    separation: int


class Ledger:
    """Who took part in which steps."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.entries: dict[ClientId, tuple[int, int]] = {}
        """By client: how often it took part, and its last step."""
        self.resting: set[ClientId] = set()
        """Those who may not take part in the next step: for a while, or for good."""
        self._back: deque[tuple[int, ClientId]] = deque()  # (step from which it may again, client)

    def allows(self, client: ClientId, step: int) -> bool:
        """Whether the client may take part in this step."""
        entry = self.entries.get(client)
        if entry is None:
            return True
        count, last = entry
        return count < self.limits.participations and step - last >= self.limits.separation

    def finished(self, client: ClientId) -> bool:
        """Whether it has taken part as often as it may."""
        entry = self.entries.get(client)
        return entry is not None and entry[0] >= self.limits.participations

    def enter(self, client: ClientId, step: int) -> None:
        """The client takes part in this step. Steps never go back."""
        assert self.allows(client, step), "the ledger is asked before anybody is let in"
        count = self.entries.get(client, (0, 0))[0] + 1
        self.entries[client] = (count, step)
        self.resting.add(client)
        if count < self.limits.participations:
            self._back.append((step + self.limits.separation, client))

    def advance(self, step: int) -> None:
        """The next step is this one: who has rested long enough is free again."""
        while self._back and self._back[0][0] <= step:
            self.resting.discard(self._back.popleft()[1])

    def state(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {"entries": [[client, *entry] for client, entry in self.entries.items()]}

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Go on from `state()`, where the next step is `step`."""
        self.entries = {client: (count, last) for client, count, last in state["entries"]}
        self.resting = set(self.entries)
        back = [
            (last + self.limits.separation, client)
            for client, (count, last) in self.entries.items()
            if count < self.limits.participations
        ]
        self._back = deque(sorted(back, key=lambda entry: entry[0]))
        self.advance(step)
