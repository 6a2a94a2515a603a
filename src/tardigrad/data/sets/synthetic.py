"""A synthetic population of any size, whose data is generated when a client is loaded."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt

from tardigrad.data.clients import Clients, Examples, Federation
from tardigrad.data.dataset import DataSource

MOST = 1_000_000_000


class Synthetic(DataSource):
    """Gaussian classes, generated when a client is loaded: for any number of clients, up to millions."""

    kind: Literal["synthetic"] = "synthetic"
    clients: PositiveInt = 1000
    """Number of clients."""
    examples: int = Field(default=50, gt=0, le=MOST)
    """Examples of each client."""
    features: int = Field(default=20, gt=0, le=MOST)
    """Number of features of an example."""
    classes: int = Field(default=10, gt=0, le=MOST)
    """Number of classes."""

    def federation(self, seed: int) -> Federation:
        clients = SyntheticClients(self.clients, self.examples, self.features, self.classes, seed)
        test = clients.draw(np.random.default_rng([seed, 2]), 2000, shift=0.0)
        return Federation(clients, test, (self.features,), self.classes)


class SyntheticClients(Clients):
    """Clients with the same Gaussian classes, shifted by a small random vector for each client."""

    def __init__(self, clients: int, examples: int, features: int, classes: int, seed: int) -> None:
        self._clients, self._examples = clients, examples
        self._features, self._classes, self._seed = features, classes, seed
        self._centres = np.random.default_rng([seed, 0]).normal(size=(classes, features))

    def __len__(self) -> int:
        return self._clients

    def examples(self, client: int) -> int:
        return self._examples

    def load(self, client: int) -> Examples:
        return self.draw(np.random.default_rng([self._seed, 1, client]), self._examples, shift=0.3)

    def draw(self, random: np.random.Generator, examples: int, shift: float) -> Examples:
        """Draw examples from the classes, after moving all centres by one random vector of scale `shift`."""
        labels = random.integers(self._classes, size=examples)
        centres = self._centres + shift * random.normal(size=self._features)
        features = centres[labels] + random.normal(size=(examples, self._features))
        return torch.from_numpy(features).float(), torch.from_numpy(labels)
