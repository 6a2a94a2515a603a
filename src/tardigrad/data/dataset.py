"""Data sources that a config can name, and a data set that its clients share by index."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol, Self

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from tardigrad.core.setting import Setting
from tardigrad.data.clients import Clients, Examples, Federation, Indexed
from tardigrad.data.partition import Natural, Partition
from tardigrad.data.split import Aside, SetAside
from tardigrad.errors import ConfigError
from tardigrad.learning.heads import Head
from tardigrad.learning.images import Images, ImageStep


class Rows(Protocol):
    """Examples that are selected by index: a tensor, or an object that reads them from several files."""

    def __getitem__(self, index: Tensor, /) -> Tensor: ...


class Holders(Clients):
    """Clients that share one data set: each client is a list of indices into it.

    >>> parts = [np.array([0, 2]), np.array([1])]
    >>> clients = Holders(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 1, 0]), parts)
    >>> len(clients), clients.examples(0), clients.load(1)
    (2, 2, (tensor([[2.]]), tensor([1])))
    """

    def __init__(
        self,
        features: Rows,
        labels: Tensor,
        parts: Sequence[np.ndarray],
        names: Sequence[int | str] | None = None,
    ) -> None:
        self._features, self._labels, self._names = features, labels, names
        self.parts = [torch.from_numpy(np.asarray(part, dtype=np.int64)) for part in parts]

    def __len__(self) -> int:
        return len(self.parts)

    def examples(self, client: int) -> int:
        return len(self.parts[client])

    def load(self, client: int) -> Examples:
        part = self.parts[client]
        return self._features[part], self._labels[part]

    def indexed(self, client: int) -> Indexed:
        if isinstance(self._features, Tensor):
            return self._features, self._labels, self.parts[client]
        return super().indexed(client)

    def labels(self, client: int) -> Tensor:
        """Return this client's labels without loading its features."""
        return self._labels[self.parts[client]]

    def name(self, client: int) -> int | str:
        return client if self._names is None else self._names[client]


@dataclass(frozen=True)
class DataSet:
    """A data set before it is divided among clients."""

    features: Rows
    """Features of the training examples, as they are stored (images as bytes)."""
    labels: Tensor
    """Labels of the training examples."""
    test: Examples | None
    """The publisher's test set, if there is one."""
    shape: tuple[int, ...]
    """Shape of one stored example."""
    classes: int
    """Number of classes."""
    users: np.ndarray | None = None
    """The user that each training example belongs to, where the data set says so."""

    def sample(self, examples: int, seed: int) -> DataSet:
        """Return a copy with so many of the training examples, drawn at random; test examples stay."""
        if examples > len(self.labels):
            raise ConfigError(
                f"data.examples: {examples:,} cannot be drawn from {len(self.labels):,} training examples"
            )
        drawn = np.sort(
            np.random.default_rng([seed, len(self.labels)]).permutation(len(self.labels))[:examples]
        )
        chosen = torch.from_numpy(drawn)
        users = None if self.users is None else self.users[drawn]
        return replace(self, features=self.features[chosen], labels=self.labels[chosen], users=users)

    def divide(
        self, partition: Partition, seed: int, *asides: Aside | None
    ) -> tuple[Holders, Examples | None]:
        """Divide the training examples among clients; return the clients and the evaluation set.

        `asides` are set aside one after the other, and no client trains on them. The evaluation set is the
        last of them, or the publisher's test set if nothing is set aside.
        """
        parts = partition.split(self.labels.numpy(), np.random.default_rng(seed), self.users)
        names: list[int | str] | None = None
        if isinstance(partition, Natural) and self.users is not None:
            names = [self.users[part[0]].item() for part in parts]
        test = self.test
        for number, aside in enumerate(asides):
            if aside is not None:
                parts, kept, examples = aside.take(parts, np.random.default_rng([seed, number + 1]))
                names = None if names is None else [names[client] for client in kept]
                chosen = torch.from_numpy(examples)
                test = self.features[chosen], self.labels[chosen]
        return Holders(self.features, self.labels, parts, names), test


class DataSource(Setting):
    """A data set that a config can name: the settings, and how to build the clients from them."""

    @property
    def remote(self) -> bool:
        """Whether only the clients of a server have the data, and the config says what they must bring."""
        return False

    def resolved(self) -> Self:
        """Return a copy that has the contents of files that it names, if they are settings."""
        return self

    @abstractmethod
    def federation(self, seed: int) -> Federation:
        """Build the clients and the test set. The result depends only on the data and the seed."""

    def federation_for(self, head: Head | None, seed: int) -> Federation:
        """Build the same for a head that was chosen in place of the data's own. A data set that reads its
        labels in another way then, as numbers to predict, overrides this."""
        del head
        return self.federation(seed)


class ImageSource(DataSource):
    """Settings and loading that all image data sets share."""

    kind: str
    partition: Partition
    """How the examples are divided among clients. `tardigrad list partitions`"""
    examples: PositiveInt | None = None
    """Train on so many of the training examples, drawn at random with the run's seed. Default: on all."""
    validation: SetAside | None = None
    """For tuning: evaluate on this share of the training examples in place of the test set, and let no client
    train on it: 0.1, or {share = 0.1, by = "client"}."""
    transforms: tuple[ImageStep, ...] = ()
    """Steps applied in order before images are normalised: centre_crop, random_crop, flip."""
    download: bool = False
    """Download missing files from their publisher."""

    MEAN: ClassVar[tuple[float, ...]]
    """Mean of each channel, on a scale from 0 (black) to 1 (white)."""
    DEVIATION: ClassVar[tuple[float, ...]]
    """Standard deviation of each channel, on the same scale."""

    @abstractmethod
    def fetch(self) -> Path:
        """Download the files that are missing, and return their folder."""

    @abstractmethod
    def load(self) -> DataSet:
        """Check and read the files."""

    def asides(self, data: DataSet) -> tuple[Aside | None, ...]:
        """Return the shares to set aside, in order; the evaluation set is the last that is not None."""
        del data
        return (self.validation,)

    def federation(self, seed: int) -> Federation:
        if self.download:
            self.fetch()
        data = self.load()
        if self.examples is not None:
            data = data.sample(self.examples, seed)
        transform = Images(self.transforms, mean=self.MEAN, deviation=self.DEVIATION)
        clients, test = data.divide(self.partition, seed, *self.asides(data))
        return Federation(clients, test, transform.shape(data.shape), data.classes, transform=transform)
