"""Partitioners: who holds which examples, as a function of the labels and a seed."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from tardigrad.core.setting import Setting, by_name
from tardigrad.errors import ConfigError


class _Partition(Setting):
    @abstractmethod
    def split(self, labels: np.ndarray, random: np.random.Generator) -> list[np.ndarray]:
        """For each client the indices of its examples: every example once, nobody without."""


class Central(_Partition):
    """One client holds everything (for the plain SGD reference)."""

    kind: Literal["central"] = "central"

    def split(self, labels: np.ndarray, random: np.random.Generator) -> list[np.ndarray]:
        return [np.arange(len(labels))]


class IID(_Partition):
    """Examples are dealt out at random, in parts of equal size."""

    kind: Literal["iid"] = "iid"
    clients: PositiveInt = 100
    """How many clients there are."""

    def split(self, labels: np.ndarray, random: np.random.Generator) -> list[np.ndarray]:
        _enough(self.clients, labels)
        return [np.sort(part) for part in np.array_split(random.permutation(len(labels)), self.clients)]


class Dirichlet(_Partition):
    """Equal parts, each with its own label proportions drawn from a Dirichlet distribution (Hsu et al.):
    the smaller alpha, the fewer labels a client has."""

    kind: Literal["dirichlet"] = "dirichlet"
    clients: PositiveInt = 100
    """How many clients there are."""
    alpha: PositiveFloat = 0.1
    """Concentration; times the overall share of each label."""

    def split(self, labels: np.ndarray, random: np.random.Generator) -> list[np.ndarray]:
        _enough(self.clients, labels)
        classes, counts = np.unique(labels, return_counts=True)
        pools = [list(random.permutation(np.flatnonzero(labels == label))) for label in classes]
        left = counts.astype(float)
        # numpy wants every parameter above 0, and an all-zero draw cannot be normalised
        prior = np.maximum(self.alpha * len(classes) * counts / counts.sum(), 1e-3)
        sizes = [len(part) for part in np.array_split(np.arange(len(labels)), self.clients)]
        parts = []
        for size in sizes:
            wish = random.dirichlet(prior)
            part: list[int] = []
            while len(part) < size:
                open_wish = np.where(left > 0, wish, 0.0)
                if open_wish.sum() <= 0:  # all that it wished for is gone: take from what is left
                    open_wish = left
                take = random.multinomial(size - len(part), open_wish / open_wish.sum())
                take = np.minimum(take, left.astype(int))
                for label, n in enumerate(take):
                    if n:
                        part += pools[label][-n:]
                        del pools[label][-n:]
                        left[label] -= n
            parts.append(np.sort(np.asarray(part)))
        return parts


def _enough(clients: int, labels: np.ndarray) -> None:
    if clients > len(labels):
        raise ConfigError(
            f"data.partition.clients: {clients} clients cannot share {len(labels)} examples; "
            f"give at most {len(labels)}"
        )


Partition = Annotated[IID | Dirichlet | Central, Field(discriminator="kind"), by_name]
