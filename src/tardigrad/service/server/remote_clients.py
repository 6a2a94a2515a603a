"""Clients whose data the server never sees."""

from __future__ import annotations

from tardigrad.data.clients import Clients, Examples
from tardigrad.errors import ConfigError


class RemoteClients(Clients):
    """A number of clients, and nothing else."""

    def __init__(self, population: int) -> None:
        self._population = population

    def __len__(self) -> int:
        return self._population

    def examples(self, client: int) -> int:
        """Not known: as if a minibatch held them all. Step sizes that follow from it want local.steps."""
        return 1

    def load(self, client: int) -> Examples:
        raise ConfigError("data: the server has none of its clients' data")
