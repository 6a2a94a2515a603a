"""Data sets that a config can name."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveInt

from tardigrad.core.setting import Setting, by_name
from tardigrad.data.clients import Federation
from tardigrad.data.dataset import DataSet
from tardigrad.data.partition import Dirichlet, Partition
from tardigrad.data.sets.celeba import CelebA
from tardigrad.data.sets.chat import Chat
from tardigrad.data.sets.cifar10 import CIFAR10
from tardigrad.data.sets.digits import load_digits
from tardigrad.data.sets.flair import FLAIR
from tardigrad.data.sets.mnist import EMNIST, MNIST, FashionMNIST
from tardigrad.data.sets.own_files import Files
from tardigrad.data.sets.sent140 import Sent140
from tardigrad.data.sets.shakespeare import Shakespeare
from tardigrad.data.sets.stackoverflow import StackOverflow
from tardigrad.data.sets.synthetic import SyntheticClients


class _Source(Setting):
    @abstractmethod
    def federation(self, seed: int) -> Federation:
        """The clients and the test set: a function of the data and the seed."""


class Digits(_Source):
    """1,797 real handwritten digits of 8 x 8 pixels, in 10 classes; part of scikit-learn, no download."""

    kind: Literal["digits"] = "digits"
    partition: Partition = Dirichlet(clients=100, alpha=0.3)
    """Who holds what. `tardigrad list partitions`"""

    def federation(self, seed: int) -> Federation:
        (features, labels), examples = load_digits()
        data = DataSet(features, labels, examples, shape=(1, 8, 8), classes=10)
        clients, test = data.divide(self.partition, seed)
        return Federation(clients, test, data.shape, data.classes)


class Synthetic(_Source):
    """Gaussian classes, made on touch: for any number of clients, up to millions."""

    kind: Literal["synthetic"] = "synthetic"
    clients: PositiveInt = 1000
    """How many clients there are."""
    examples: PositiveInt = 50
    """Examples of each client."""
    features: PositiveInt = 20
    """Length of one example."""
    classes: PositiveInt = 10
    """Number of labels."""

    def federation(self, seed: int) -> Federation:
        clients = SyntheticClients(self.clients, self.examples, self.features, self.classes, seed)
        test = clients.draw(np.random.default_rng([seed, 2]), 2000, shift=0.0)
        return Federation(clients, test, (self.features,), self.classes)


Source = Annotated[
    Digits
    | Synthetic
    | CIFAR10
    | MNIST
    | FashionMNIST
    | EMNIST
    | CelebA
    | FLAIR
    | Shakespeare
    | Sent140
    | Chat
    | StackOverflow
    | Files,
    Field(discriminator="kind"),
    by_name,
]
