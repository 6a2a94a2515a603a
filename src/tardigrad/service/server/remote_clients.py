"""Clients whose data the server never sees."""

from __future__ import annotations

from tardigrad.data.clients import Clients, Examples
from tardigrad.errors import ConfigError


class RemoteClients(Clients):
    """Stands for clients of which only the number is known."""

    def __init__(self, population: int) -> None:
        self._population = population

    def __len__(self) -> int:
        return self._population

    def examples(self, client: int) -> int:
        """Return 1, because the number is not known. Step sizes that depend on it need local.steps."""
        return 1

    def load(self, client: int) -> Examples:
        raise ConfigError("data: the server has none of its clients' data")
