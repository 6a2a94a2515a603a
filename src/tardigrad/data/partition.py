"""Partitions: how examples are divided among clients, as a function of the labels and a seed."""

from __future__ import annotations

import hashlib
import zipfile
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from tardigrad.core.setting import Setting, by_name
from tardigrad.errors import ConfigError


class _Partition(Setting):
    """A way to divide the examples of a data set among clients."""

    @abstractmethod
    def split(
        self, labels: np.ndarray, random: np.random.Generator, users: np.ndarray | None = None
    ) -> list[np.ndarray]:
        """Return the indices of each client's examples: each example once, and at least one for each client.

        `users` has the user of each example, where the data set says so.
        """


class Central(_Partition):
    """One client has all examples (for the reference run with plain SGD)."""

    kind: Literal["central"] = "central"

    def split(
        self, labels: np.ndarray, random: np.random.Generator, users: np.ndarray | None = None
    ) -> list[np.ndarray]:
        return [np.arange(len(labels))]


class IID(_Partition):
    """Examples are assigned at random, in parts of equal size."""

    kind: Literal["iid"] = "iid"
    clients: PositiveInt = 100
    """Number of clients."""

    def split(
        self, labels: np.ndarray, random: np.random.Generator, users: np.ndarray | None = None
    ) -> list[np.ndarray]:
        _require_enough(self.clients, labels)
        return [np.sort(part) for part in np.array_split(random.permutation(len(labels)), self.clients)]


class Dirichlet(_Partition):
    """Parts of equal size, each with label proportions drawn from a Dirichlet distribution (Hsu et al.): the
    smaller alpha, the fewer labels a client has."""

    kind: Literal["dirichlet"] = "dirichlet"
    clients: PositiveInt = 100
    """Number of clients."""
    alpha: PositiveFloat = 0.1
    """Mean concentration parameter of a label; each label's own is proportional to its overall share. Written
    as Dir(a p) with shares p that sum to one, `a` is alpha times the number of labels."""

    def split(
        self, labels: np.ndarray, random: np.random.Generator, users: np.ndarray | None = None
    ) -> list[np.ndarray]:
        _require_enough(self.clients, labels)
        classes, counts = np.unique(labels, return_counts=True)
        pools = [list(random.permutation(np.flatnonzero(labels == label))) for label in classes]
        left = counts.astype(float)
        prior = self.alpha * len(classes) * counts / counts.sum()
        sizes = [len(part) for part in np.array_split(np.arange(len(labels)), self.clients)]
        parts = []
        for size in sizes:
            proportions = random.dirichlet(prior)
            part: list[int] = []
            while len(part) < size:
                available = np.where(left > 0, proportions, 0.0)
                if available.sum() <= 0:  # all labels of this client have run out: take any that are left
                    available = left
                take = random.multinomial(size - len(part), available / available.sum())
                take = np.minimum(take, left.astype(int))
                for label, n in enumerate(take):
                    if n:
                        part += pools[label][-n:]
                        del pools[label][-n:]
                        left[label] -= n
            parts.append(np.sort(np.asarray(part)))
        return parts


class DirichletByLabel(_Partition):
    """Each label is divided in proportions drawn from a Dirichlet distribution over the clients (Yurochkin et
    al.): clients differ in labels and in size."""

    kind: Literal["dirichlet_by_label"] = "dirichlet_by_label"
    clients: PositiveInt = 100
    """Number of clients."""
    alpha: PositiveFloat = 0.1
    """Concentration parameter of a client."""
    minimum: NonNegativeInt = 1
    """Minimum number of examples of a client; missing ones are taken from the largest client. With 0, clients
    without examples are left out."""

    def split(
        self, labels: np.ndarray, random: np.random.Generator, users: np.ndarray | None = None
    ) -> list[np.ndarray]:
        _require_enough(self.clients, labels, self.minimum)
        held: list[list[int]] = [[] for _ in range(self.clients)]
        for label in np.unique(labels):
            pool = random.permutation(np.flatnonzero(labels == label))
            shares = random.dirichlet(np.full(self.clients, self.alpha))
            cuts = np.rint(np.cumsum(shares)[:-1] * len(pool)).astype(int)
            for client, part in enumerate(np.split(pool, cuts)):
                held[client] += part.tolist()
        sizes = np.array([len(part) for part in held])
        for client in np.flatnonzero(sizes < self.minimum).tolist():
            while sizes[client] < self.minimum:
                richest = int(sizes.argmax())
                held[client].append(held[richest].pop(int(random.integers(sizes[richest]))))
                sizes[client] += 1
                sizes[richest] -= 1
        return [np.sort(np.asarray(part)) for part in held if part]


class Shards(_Partition):
    """The examples are sorted by label and cut into shards of equal size, and each client gets a few of them
    (McMahan et al.): a client has about as many labels as shards."""

    kind: Literal["shards"] = "shards"
    clients: PositiveInt = 100
    """Number of clients."""
    shards: PositiveInt = 2
    """Number of shards of each client."""

    def split(
        self, labels: np.ndarray, random: np.random.Generator, users: np.ndarray | None = None
    ) -> list[np.ndarray]:
        _require_enough(self.clients, labels, self.shards)
        order = random.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        shards = np.array_split(order, self.clients * self.shards)
        drawn = random.permutation(len(shards)).reshape(self.clients, self.shards)
        return [np.sort(np.concatenate([shards[shard] for shard in hand])) for hand in drawn]


class LogNormalSizes(_Partition):
    """Examples are assigned at random, in parts whose sizes have a log-normal distribution."""

    kind: Literal["log_normal"] = "log_normal"
    clients: PositiveInt = 100
    """Number of clients."""
    sigma: PositiveFloat = 1.0
    """Standard deviation of the logarithm of a client's size."""
    minimum: NonNegativeInt = 1
    """Minimum number of examples of a client. With 0, clients without examples are left out."""

    def split(
        self, labels: np.ndarray, random: np.random.Generator, users: np.ndarray | None = None
    ) -> list[np.ndarray]:
        weights = np.exp(self.sigma * random.standard_normal(self.clients))
        return _divide_by_weight(weights, self.minimum, labels, random)


class PowerLawSizes(_Partition):
    """Examples are assigned at random, in parts whose sizes follow a power law (Pareto)."""

    kind: Literal["power_law"] = "power_law"
    clients: PositiveInt = 100
    """Number of clients."""
    exponent: PositiveFloat = 1.5
    """The share of clients with more than n examples is proportional to n ** -exponent: the smaller it is,
    the more the sizes differ."""
    minimum: NonNegativeInt = 1
    """Minimum number of examples of a client. With 0, clients without examples are left out."""

    def split(
        self, labels: np.ndarray, random: np.random.Generator, users: np.ndarray | None = None
    ) -> list[np.ndarray]:
        logarithms = -np.log1p(-random.random(self.clients)) / self.exponent
        weights = np.exp(logarithms - logarithms.max())  # only ratios matter; this cannot overflow
        return _divide_by_weight(weights, self.minimum, labels, random)


class Natural(_Partition):
    """One client for each user, writer, role or person in the data set, with their own examples."""

    kind: Literal["natural"] = "natural"

    def split(
        self, labels: np.ndarray, random: np.random.Generator, users: np.ndarray | None = None
    ) -> list[np.ndarray]:
        if users is None:
            raise ConfigError(
                "data.partition.kind: this data set does not say whose each example is, so there is no "
                "'natural' partition; use 'dirichlet', 'shards' or 'iid'"
            )
        _, owner = np.unique(users, return_inverse=True)
        order = np.argsort(owner, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(owner[order])) + 1)


class Saved(_Partition):
    """A partition that was saved to a file (`save_partition`)."""

    kind: Literal["saved"] = "saved"
    file: Path
    """The .npz file."""

    def split(
        self, labels: np.ndarray, random: np.random.Generator, users: np.ndarray | None = None
    ) -> list[np.ndarray]:
        return load_partition(self.file, labels)


def save_partition(file: Path, parts: Sequence[np.ndarray], labels: np.ndarray) -> None:
    """Save a partition to an .npz file: the indices, the size of each part, and a checksum of the labels.

    >>> save_partition(Path("mine.npz"), IID(clients=2).split(labels, random), labels)  # doctest: +SKIP
    """
    with file.open("wb") as out:  # an open file, because savez adds .npz to other names
        np.savez_compressed(
            out,
            indices=np.concatenate([np.asarray(part, dtype=np.int64) for part in parts]),
            sizes=np.array([len(part) for part in parts], dtype=np.int64),
            examples=np.int64(len(labels)),
            labels_sha256=np.frombuffer(_fingerprint(labels), dtype=np.uint8),
        )


def load_partition(file: Path, labels: np.ndarray) -> list[np.ndarray]:
    """Load a saved partition; raise a ConfigError if it is not a partition of these labels."""
    try:
        with np.load(file, allow_pickle=False) as saved:
            indices, sizes, examples = saved["indices"], saved["sizes"], int(saved["examples"])
            fingerprint = saved["labels_sha256"].tobytes() if "labels_sha256" in saved else None
    except FileNotFoundError:
        raise ConfigError(f"data.partition.file: there is no file {file}") from None
    except (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, zipfile.BadZipFile):
        raise ConfigError(
            f"data.partition.file: {file} is not a saved partition (an .npz file with the arrays indices, "
            "sizes and examples)"
        ) from None
    if examples != len(labels):
        raise ConfigError(
            f"data.partition.file: {file} divides {examples} examples, but the data set has {len(labels)}"
        )
    if fingerprint is not None and fingerprint != _fingerprint(labels):
        raise ConfigError(
            f"data.partition.file: {file} was saved for a data set of the same size but other labels"
        )
    counted = indices.dtype.kind in "iu" and sizes.dtype.kind in "iu" and indices.ndim == sizes.ndim == 1
    if not counted or sizes.min(initial=1) < 1 or sizes.sum() != len(indices):
        raise ConfigError(f"data.partition.file: {file} has sizes that do not add up to its indices")
    if len(indices) == 0 or indices.min() < 0 or indices.max() >= examples:
        raise ConfigError(f"data.partition.file: {file} must have indices from 0 to {examples - 1}")
    indices = indices.astype(np.int64)
    if np.bincount(indices).max() > 1:
        raise ConfigError(f"data.partition.file: {file} gives an example to two clients, or twice to one")
    return np.split(indices, np.cumsum(sizes)[:-1])


def _fingerprint(labels: np.ndarray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(labels, dtype=np.int64).tobytes()).digest()


def _divide_by_weight(
    weights: np.ndarray, minimum: int, labels: np.ndarray, random: np.random.Generator
) -> list[np.ndarray]:
    """Give each client the minimum, and the rest in proportion to the weights, without a remainder."""
    _require_enough(len(weights), labels, minimum)
    rest = len(labels) - minimum * len(weights)
    exact = rest * weights / weights.sum()
    sizes = np.floor(exact).astype(int)
    sizes[np.argsort(sizes - exact, kind="stable")[: rest - sizes.sum()]] += 1
    parts = np.split(random.permutation(len(labels)), np.cumsum(sizes + minimum)[:-1])
    return [np.sort(part) for part in parts if len(part)]


def _require_enough(clients: int, labels: np.ndarray, each: int = 1) -> None:
    """Raise a ConfigError if there are fewer examples than clients need."""
    if clients * max(each, 1) > len(labels):
        fewest = f" with {each} each" if each > 1 else ""
        raise ConfigError(
            f"data.partition.clients: {clients} clients{fewest} cannot share {len(labels)} examples; "
            f"give at most {len(labels) // max(each, 1)}"
        )


Partition = Annotated[
    IID | Dirichlet | DirichletByLabel | Shards | LogNormalSizes | PowerLawSizes | Natural | Saved | Central,
    Field(discriminator="kind"),
    by_name,
]
