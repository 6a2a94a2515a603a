"""The interface that carries messages to the nodes and their replies back, as the driver sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tardigrad.core.upload import Vectors
from tardigrad.flower_grid.named_arrays import Arrays

Kind = Literal["train", "evaluate"]
ConfigValue = int | float | str | bytes | bool | list[int] | list[float] | list[str]


@dataclass(frozen=True)
class Order:
    """A task for a node."""

    kind: Kind
    node: int
    version: int
    arrays: Arrays
    config: Mapping[str, ConfigValue]
    """Values for the node besides the config of the app."""
    vectors: Vectors = field(default_factory=dict)
    """Flat vectors for a ClientApp with the client half of the algorithm."""
    seconds: float = 3600.0
    """After this time nobody waits for the reply."""


@dataclass(frozen=True)
class Reply:
    """The answer of a node."""

    message: str
    """The message that it answers."""
    arrays: Arrays = field(default_factory=dict)
    vectors: Arrays = field(default_factory=dict)
    """Flat vectors of a ClientApp with the client half of the algorithm."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    """The error, as one sentence; "" if there was none."""


class Carrier(Protocol):
    """Flower's grid, or a test's stand-in for it."""

    def nodes(self) -> Sequence[int]:
        """Return the nodes that are connected now."""

    def send(self, order: Order) -> str:
        """Send an order and return the identity of the message, or "" if it cannot be sent."""

    def replies(self, messages: Sequence[str]) -> list[Reply]:
        """Return the replies to these messages that have arrived. Each is returned once."""

    def pause(self, seconds: float) -> None:
        """Wait for so long before the next look."""
