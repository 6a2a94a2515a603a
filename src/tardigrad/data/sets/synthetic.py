"""A synthetic population of any size: a client's data is made when it is touched."""

from __future__ import annotations

import numpy as np
import torch

from tardigrad.data.clients import Clients, Examples


class SyntheticClients(Clients):
    """Gaussian classes, shifted a little differently on each client."""

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
        """Examples from these classes, their centres shifted together by a random vector."""
        labels = random.integers(self._classes, size=examples)
        centres = self._centres + shift * random.normal(size=self._features)
        features = centres[labels] + random.normal(size=(examples, self._features))
        return torch.from_numpy(features).float(), torch.from_numpy(labels)
