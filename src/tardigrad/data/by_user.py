"""Data sets whose natural clients are their users (accounts, roles)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from tardigrad.data.clients import TensorExamples
from tardigrad.data.dataset import DataSource, Holders
from tardigrad.data.partition import Dirichlet, DirichletByLabel, Natural, Partition, Shards
from tardigrad.data.split import Aside, SetAside
from tardigrad.errors import ConfigError


class UserSource(DataSource):
    """Settings that all data sets share whose natural clients are their users."""

    partition: Partition = Natural()
    """How the examples are divided among clients: natural (every user is a client), or another partition.
    `tardigrad list partitions`"""
    test: SetAside = Aside(share=0.2)
    """The central test set, where the publisher has none: this share of each user's examples (0.2), or of the
    users ({share = 0.2, by = "client"})."""
    test_examples: PositiveInt | None = 10_000
    """Maximum size of the test set; a larger one is reduced to a random sample, drawn once."""
    validation: SetAside | None = None
    """For tuning: evaluate on this share of the training examples in place of the test set, and let no client
    train on it: 0.1, or {share = 0.1, by = "client"}."""
    min_examples: PositiveInt = 1
    """Users with fewer training examples are left out."""


@dataclass(frozen=True)
class Users:
    """The users of a data set, and the user that each example belongs to."""

    of: np.ndarray
    """The user number of each example, in the order of the examples."""
    names: Sequence[str]
    """The name of each user number."""

    def __post_init__(self) -> None:
        if len(self.of) == 0:
            raise ConfigError("data: the files hold no examples")

    def aside(self, aside: Aside, seed: int) -> np.ndarray:
        """Return a boolean mask of the examples that are set aside, drawn at random."""
        _, _, examples = aside.take(self._parts(), np.random.default_rng([seed, 0]))
        return self._mask(examples)

    def last_aside(self, aside: Aside, seed: int) -> np.ndarray:
        """Return a mask of the last examples of each user.

        This is for examples that overlap, such as windows over a text: no training example reaches into the
        ones set aside.
        """
        if aside.by == "client":
            return self.aside(aside, seed)
        parts = self._parts()
        kept = [len(part) - min(round(aside.share * len(part)), len(part) - 1) for part in parts]
        return self._mask(np.concatenate([part[first:] for part, first in zip(parts, kept)]))

    def _parts(self) -> list[np.ndarray]:
        return Natural().split(self.of, np.random.default_rng(0), self.of)

    def _mask(self, examples: np.ndarray) -> np.ndarray:
        mask = np.zeros(len(self.of), dtype=bool)
        mask[examples] = True
        return mask


def federate(
    examples: TensorExamples,
    users: Users,
    test: np.ndarray,
    settings: UserSource,
    seed: int,
    rows: np.ndarray | None = None,
) -> tuple[Holders, TensorExamples | None]:
    """Build the clients and the central test set from all examples, their users and a mask of the test set.

    Users with fewer than `min_examples` training examples are left out of both, except those that have none,
    who are in the test set only. `rows` has the row of `examples` that each example is in, if they are not in
    order.
    """
    features, labels = examples
    _check_partition(settings, labels)
    sizes = np.bincount(users.of[~test], minlength=len(users.names))
    if sizes.max(initial=0) < settings.min_examples:
        raise ConfigError(
            f"data.min_examples: nobody has {settings.min_examples} examples to train on; "
            f"give at most {sizes.max(initial=0)}"
        )
    rows = np.arange(len(users.of)) if rows is None else rows
    taken = ((sizes == 0) | (sizes >= settings.min_examples))[users.of]
    train, held = np.flatnonzero(taken & ~test), rows[taken & test]
    parts = settings.partition.split(
        labels[torch.from_numpy(rows[train])].numpy(), np.random.default_rng([seed, 1]), users.of[train]
    )
    names: list[int | str] | None = None
    if isinstance(settings.partition, Natural):
        names = [users.names[users.of[train[part[0]]]] for part in parts]
    parts = [rows[train[part]] for part in parts]
    if settings.validation is not None:
        parts, kept, held = settings.validation.take(parts, np.random.default_rng([seed, 2]))
        names = None if names is None else [names[client] for client in kept]
    if settings.test_examples is not None and len(held) > settings.test_examples:
        drawn = np.random.default_rng([seed, 3]).choice(held, settings.test_examples, replace=False)
        held = np.sort(drawn)
    chosen = torch.from_numpy(held)
    central = (features[chosen], labels[chosen]) if len(held) else None
    return Holders(features, labels, parts, names), central


def _check_partition(settings: UserSource, labels: Tensor) -> None:
    if labels.dim() > 1 and isinstance(settings.partition, Dirichlet | DirichletByLabel | Shards):
        raise ConfigError(
            f"data.partition.kind: {settings.partition.kind!r} goes by labels, but here every token of an "
            "example is one; use 'natural', 'iid' or one that goes by sizes"
        )
