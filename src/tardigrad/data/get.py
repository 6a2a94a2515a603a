"""Download a data set by its name: `tardigrad data get NAME`."""

from __future__ import annotations

from pathlib import Path

from tardigrad.data.dataset import ImageSource
from tardigrad.data.sets.cifar10 import CIFAR10
from tardigrad.data.sets.emnist import EMNIST
from tardigrad.data.sets.mnist import MNIST, FashionMNIST
from tardigrad.errors import ConfigError

FETCHED: dict[str, ImageSource] = {
    "cifar10": CIFAR10(),
    "mnist": MNIST(),
    "fashion_mnist": FashionMNIST(),
    "emnist": EMNIST(),
}


def get(name: str) -> Path:
    """Download the files of a data set that are missing, check all of them, and return their folder."""
    if name not in FETCHED:
        raise ConfigError(f"data get: {name!r} cannot be fetched; these can: {', '.join(FETCHED)}")
    source = FETCHED[name]
    folder = source.fetch()
    source.load()
    return folder
