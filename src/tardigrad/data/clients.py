"""Clients and their data, wherever the data comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from torch import Tensor

from tardigrad.core.plural import counted
from tardigrad.data.loaders import without_loader
from tardigrad.data.own_examples import features_and_labels, shapes_of
from tardigrad.errors import ConfigError
from tardigrad.learning.examples import Features, mapped, take, tensors
from tardigrad.learning.heads import Head, MultiClass
from tardigrad.learning.heads.labels import check_labels
from tardigrad.learning.transform import Transform

Examples = tuple[Features, Tensor]
TensorExamples = tuple[Tensor, Tensor]
"""Examples whose features are one tensor, as those of all data sets that a config can name."""
Indexed = tuple[Features, Tensor, Tensor | None]
"""Features, labels, and the indices of the rows that are meant (None: all rows)."""


class Clients(ABC):
    """A population of clients, whose data is loaded when it is needed.

    Clients are numbered from 0; `name` is the identifier that events and reports show.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def examples(self, client: int) -> int:
        """Return the number of training examples of a client. Must be cheap, because the planner calls it."""

    @abstractmethod
    def load(self, client: int) -> Examples:
        """Return the features and labels that a client trains on."""

    def indexed(self, client: int) -> Indexed:
        """Return the same examples as indices into larger tensors where possible, which avoids a copy."""
        return *self.load(client), None

    def held_out(self, client: int) -> Examples | None:
        """Return the features and labels that a client keeps for evaluation, or None if it keeps none."""
        return None

    def name(self, client: int) -> int | str:
        """Return the identifier of a client in events."""
        return client


@dataclass(frozen=True)
class Federation:
    """The data of a run: its clients, its test set, and what the model has to fit."""

    clients: Clients
    test: Examples | None
    """The central test set, or None if there is none."""
    shape: tuple[int, ...]
    """Shape of one example's features after the transform."""
    classes: int
    """Number of outputs of the model: classes, or tokens of the vocabulary."""
    head: Head = field(default_factory=MultiClass)
    """The loss and metrics that go with these labels."""
    transform: Transform = field(default_factory=Transform)
    """Converts stored examples to the model's input."""
    vectors: Tensor | None = None
    """Initial values for an embedding, one row for each token."""

    def some_examples(self) -> Examples:
        """Return a few examples of the first client as the module takes them, and their labels."""
        features, labels, index = self.clients.indexed(0)
        chosen = torch.arange(min(len(labels), 8)) if index is None else index[:8]
        transformed = cast(Callable[[Features], Features], self.transform.evaluate)
        return transformed(take(features, chosen)), labels[chosen]


class HoldingOut(Clients):
    """Wraps clients so that each keeps a random share of its examples for evaluation."""

    def __init__(self, clients: Clients, share: float, seed: int) -> None:
        self._clients, self._share, self._seed = clients, share, seed

    def __len__(self) -> int:
        return len(self._clients)

    def _kept(self, client: int) -> int:
        # At least one example, but never all of them: a client with one example trains on it.
        n = self._clients.examples(client)
        return min(max(1, round(self._share * n)), n - 1)

    def _order(self, client: int) -> Tensor:
        random = np.random.default_rng([self._seed, client])
        return torch.from_numpy(random.permutation(self._clients.examples(client)))

    def examples(self, client: int) -> int:
        return self._clients.examples(client) - self._kept(client)

    def load(self, client: int) -> Examples:
        features, labels, part = self.indexed(client)
        assert part is not None
        return take(features, part), labels[part]

    def indexed(self, client: int) -> Indexed:
        features, labels, part = self._clients.indexed(client)
        order = self._order(client)[self._kept(client) :]
        return features, labels, order if part is None else part[order]

    def held_out(self, client: int) -> Examples | None:
        kept = self._kept(client)
        if kept == 0:
            return None
        features, labels = self._clients.load(client)
        part = self._order(client)[:kept]
        return take(features, part), labels[part]

    def name(self, client: int) -> int | str:
        return self._clients.name(client)


class Given(Clients):
    """Clients that the caller passes: a mapping of id to a (features, labels) pair or a torch Dataset."""

    def __init__(self, clients: Mapping[Hashable, object], dtype: torch.dtype) -> None:
        if not isinstance(clients, Mapping):
            raise ConfigError(
                f"clients: must be a mapping {{id: (features, labels), ...}}, not a {type(clients).__name__}"
            )
        if not clients:
            raise ConfigError("clients: the mapping is empty; give {id: (features, labels), ...}")
        self._names = [key if isinstance(key, int | str) else str(key) for key in clients]
        self._data = [_as_tensors(f"clients[{key!r}]", value, dtype) for key, value in clients.items()]
        shape = shapes_of(self._data[0][0])
        for name, (features, _) in zip(self._names, self._data):
            if shapes_of(features) != shape:
                raise ConfigError(
                    f"clients[{name!r}]: its examples have the shape {shapes_of(features)}, but those of "
                    f"clients[{self._names[0]!r}] have {shape}"
                )

    def __len__(self) -> int:
        return len(self._data)

    def examples(self, client: int) -> int:
        return len(self._data[client][1])

    def load(self, client: int) -> Examples:
        return self._data[client]

    def name(self, client: int) -> int | str:
        return self._names[client]


def _as_tensors(where: str, data: object, dtype: torch.dtype) -> Examples:
    """Convert a pair of arrays, a dict, a torch Dataset or a DataLoader to tensors; errors begin with
    `where`."""
    data = without_loader(where, data)
    try:
        features, labels = features_and_labels(data)
        counts = {name: len(tensor) for name, tensor in tensors(features)}
        wanted = len(labels)
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError, NotImplementedError) as error:
        raise ConfigError(
            f"{where}: expected a (features, labels) pair of arrays, a dict of arrays with labels, or a "
            f"torch Dataset of such pairs or dicts with a length; {' '.join(str(error).split())}"
        ) from None
    for name, count in counts.items():
        if count != wanted or wanted == 0:
            raise ConfigError(
                f"{where}: {count} features{name and f' {name!r}'} and {wanted} labels; "
                "there must be as many of one as of the other, and at least one"
            )
    if not counts:
        raise ConfigError(f"{where}: there are labels but no features")
    if labels.dtype.is_floating_point and not torch.isfinite(labels).all():
        raise ConfigError(f"{where}: its labels are not all finite numbers{_first_nan(labels)}")
    for name, tensor in tensors(features):
        if said := _first_nan(tensor):
            raise ConfigError(
                f"{where}: its features{name and f' {name!r}'} have missing values{said}; fill them in, or "
                "leave such examples out"
            )
    features = mapped(features, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
    return features, labels.to(dtype if labels.dtype.is_floating_point else torch.int64)


def _first_nan(values: Tensor) -> str:
    """Return where the first NaN of these values is, in words, or "" if there is none."""
    if not values.is_floating_point() or not torch.isnan(values).any():
        return ""
    rows = torch.isnan(values).reshape(len(values), -1).any(dim=1).nonzero().flatten()
    return f" (NaN in {counted(len(rows), 'example')} of {len(values):,}, first in number {int(rows[0])})"


def given(
    clients: Mapping[Hashable, object],
    test: object | None,
    dtype: torch.dtype = torch.float32,
    head: Head | None = None,
) -> Federation:
    """Build a federation from the caller's own clients, with an optional central test set.

    >>> federation = given({"ann": ([[1.0], [2.0]], [0, 1]), "bob": ([[3.0]], [2])}, test=None)
    >>> len(federation.clients), federation.shape, federation.classes
    (2, (1,), 3)
    """
    population = Given(clients, dtype)
    checked = None if test is None else _as_tensors("test", test, dtype)
    shape = shapes_of(population.load(0)[0])
    if checked is not None and shapes_of(checked[0]) != shape:
        raise ConfigError(
            f"test: its examples have the shape {shapes_of(checked[0])}, but those of the clients "
            f"have {shape}"
        )
    labels = {f"clients[{population.name(i)!r}]": population.load(i)[1] for i in range(len(population))}
    if checked is not None:
        labels["test"] = checked[1]
    for where, part in labels.items():
        check_labels(where, part, head)
    if head is None:
        for where, part in labels.items():
            if part.dtype.is_floating_point or (part.dim() == 1 and part.min() < 0):
                raise ConfigError(
                    f"{where}: its labels are {part.dtype} from {float(part.min()):g} on, but classes are "
                    "whole numbers from 0 on; convert them, or give another head"
                )
    classes = 1 + max(int(part.max()) for part in labels.values())
    single = shape if isinstance(shape, tuple) else ()  # a model of the config takes one tensor
    return Federation(population, checked, single, classes, head or MultiClass())
