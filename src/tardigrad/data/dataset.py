"""One data set, held once as it was published, and the clients that share it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from tardigrad.core.setting import Setting
from tardigrad.data.clients import Clients, Examples, Federation, Indexed
from tardigrad.data.partition import Natural, Partition
from tardigrad.data.split import Aside, SetAside
from tardigrad.learning.images import Images, ImageStep


class Rows(Protocol):
    """Examples that are picked by index: a tensor, or something that finds them in several files."""

    def __getitem__(self, index: Tensor, /) -> Tensor: ...


class Holders(Clients):
    """Clients that share one data set: each is a list of indices into it."""

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
        """This client's labels alone."""
        return self._labels[self.parts[client]]

    def name(self, client: int) -> int | str:
        return client if self._names is None else self._names[client]


@dataclass(frozen=True)
class DataSet:
    """A data set before anybody holds it."""

    features: Rows
    """Of the training examples, as bytes."""
    labels: Tensor
    test: Examples | None
    shape: tuple[int, ...]
    """Of one example, as it is stored."""
    classes: int
    users: np.ndarray | None = None
    """Whose each training example is."""

    def divide(
        self, partition: Partition, seed: int, *asides: Aside | None
    ) -> tuple[Holders, Examples | None]:
        """Who holds what, and what is evaluated on: what was set aside last, else the test set."""
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


class ImageSource(Setting):
    """What data sets of images have in common."""

    kind: str
    partition: Partition
    """Who holds what. `tardigrad list partitions`"""
    validation: SetAside | None = None
    """Evaluate on this share of the training examples in place of the test set, and train nobody on it
    (for tuning): 0.1, or {share = 0.1, by = "client"}."""
    transforms: tuple[ImageStep, ...] = ()
    """What happens to images before they are normalised: centre_crop, random_crop, flip, in order."""
    download: bool = False
    """Fetch the files from their publisher if they are not there."""

    MEAN: ClassVar[tuple[float, ...]]
    """Of each channel, black being 0 and white 1."""
    DEVIATION: ClassVar[tuple[float, ...]]

    @abstractmethod
    def fetch(self) -> Path:
        """Download what is not there. Returns the folder."""

    @abstractmethod
    def load(self) -> DataSet:
        """Read, and check, the files."""

    def asides(self, data: DataSet) -> tuple[Aside | None, ...]:
        """What nobody trains on, one after the other; the last is evaluated on."""
        del data
        return (self.validation,)

    def federation(self, seed: int) -> Federation:
        """The clients and the test set: a function of the data and the seed."""
        if self.download:
            self.fetch()
        data = self.load()
        transform = Images(self.transforms, mean=self.MEAN, deviation=self.DEVIATION)
        clients, test = data.divide(self.partition, seed, *self.asides(data))
        return Federation(clients, test, transform.shape(data.shape), data.classes, transform=transform)
