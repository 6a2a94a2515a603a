"""The messages that nodes have not answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tardigrad.core.draws import key
from tardigrad.core.outcomes import Ticket
from tardigrad.flower_grid.carrier import Carrier, Order, Reply
from tardigrad.flower_grid.flower_log import log


@dataclass(frozen=True)
class Sent:
    """A message that a node has not answered."""

    node: int
    time: float
    ticket: Ticket | None = None
    """The ticket of a train message; None for an evaluate message."""


class Outbox:
    """Sends orders, one at a time to each node, and matches replies with them."""

    def __init__(self, carrier: Carrier, seconds: float, seed: int) -> None:
        """`seconds`: how long a reply is waited for."""
        self._carrier, self.seconds, self._seed = carrier, seconds, seed
        self._sent: dict[str, Sent] = {}  # by message

    def __len__(self) -> int:
        return len(self._sent)

    def free(self, connected: set[int], number: int) -> list[int]:
        """Return the nodes without a message, in a random order that depends on a number."""
        free = sorted(connected - {sent.node for sent in self._sent.values()})
        order = np.random.default_rng(key(self._seed, "flower nodes", number))
        return [free[index] for index in order.permutation(len(free))]

    def send(self, order: Order, time: float, ticket: Ticket | None = None) -> bool:
        """Send an order, and return whether that was possible."""
        message = self._carrier.send(order)
        if message:
            self._sent[message] = Sent(order.node, time, ticket)
        else:
            log.warning("node %d: the SuperLink does not take a message to it", order.node)
        return bool(message)

    def replies(self) -> list[tuple[Sent, Reply]]:
        """Return the replies that have arrived, with what they answer."""
        found = self._carrier.replies(list(self._sent)) if self._sent else []
        return [(self._sent.pop(reply.message), reply) for reply in found if reply.message in self._sent]

    def lost(self, connected: set[int], now: float) -> Iterator[tuple[Sent, str]]:
        """Forget the messages to nodes that have gone, and those that take too long; yield them, each with
        the reason."""
        for message, sent in list(self._sent.items()):
            gone = sent.node not in connected
            if gone or sent.time <= now - self.seconds:
                del self._sent[message]
                yield sent, "it has gone" if gone else f"it has not answered for {self.seconds:g} seconds"

    def forget_training(self) -> None:
        """Do not wait for nodes that still train. They may be sent another message, which they do next."""
        self._sent = {message: sent for message, sent in self._sent.items() if sent.ticket is None}
