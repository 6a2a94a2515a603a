"""FLAIR: photographs of Flickr users, each with several of 17 labels, from the HDF5 file of pfl-research.

The file has the groups train, val and test, and in each a group for every user. A user's group has `images`
(n x 256 x 256 x 3 bytes), and the row and column indices of the ones in the n x labels table as `labels_row`
and `labels_col`. The names of the labels are in metadata/label_mapping as JSON. The same exists for
`fine_grained_labels`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from tardigrad.core.extras import pip_install
from tardigrad.data.clients import Clients, Examples, Federation
from tardigrad.data.dataset import DataSource
from tardigrad.data.folder import require
from tardigrad.errors import ConfigError
from tardigrad.learning.heads import MultiLabel
from tardigrad.learning.images import Flip, Images, ImageStep, RandomCrop

if TYPE_CHECKING:
    import h5py

PUBLISHER = "https://github.com/apple/pfl-research (benchmarks/dataset/flair writes it)"
FILES = ("flair/flair_federated.hdf5", "flair/flair_federated.h5")


class FLAIR(DataSource):
    """FLAIR: photographs of 41,131 Flickr users, who are the clients, with 17 labels, or 1,628 fine ones."""

    kind: Literal["flair"] = "flair"
    labels: Literal["coarse", "fine"] = "coarse"
    """The 17 coarse labels, or the fine-grained ones."""
    at_most: PositiveInt | None = 100
    """Maximum number of images of one user; the first ones are taken."""
    test: Literal["test", "val"] = "test"
    """Which of the two sets of other users is the test set."""
    test_examples: PositiveInt | None = 5000
    """Maximum size of the test set, a random sample drawn once; it is held in memory, 0.2 MB an image."""
    transforms: tuple[ImageStep, ...] = (RandomCrop(side=224), Flip())
    """Steps applied in order before images are normalised: centre_crop, random_crop, flip."""

    MEAN: ClassVar[tuple[float, ...]] = (0.485, 0.456, 0.406)
    DEVIATION: ClassVar[tuple[float, ...]] = (0.229, 0.224, 0.225)

    def federation(self, seed: int) -> Federation:
        file = require(*FILES, publisher=PUBLISHER)
        column = "labels" if self.labels == "coarse" else "fine_grained_labels"
        clients = FlairUsers(file, "train", column, self.at_most)
        others = FlairUsers(file, self.test, column, None)
        transform = Images(self.transforms, mean=self.MEAN, deviation=self.DEVIATION)
        return Federation(
            clients,
            others.sample(self.test_examples, np.random.default_rng(seed)),
            transform.shape(clients.shape),
            clients.classes,
            MultiLabel(),
            transform,
        )


class FlairUsers(Clients):
    """The users of one part of the file; a user's images are read when they are needed."""

    def __init__(self, file: Path, part: str, column: str, at_most: int | None) -> None:
        self._file, self._part, self._column = file, part, column
        self._opened: tuple[int, h5py.File] | None = None
        try:
            with _open(file) as content:
                self.classes = len(json.loads(content[f"metadata/{column[:-1]}_mapping"][()]))
                sizes = {user: len(group["image_ids"]) for user, group in content[part].items()}
                self._users = sorted(user for user, size in sizes.items() if size)
                height, width, channels = content[part][self._users[0]]["images"].shape[1:]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{file}: not the file that pfl-research prepares ({error}); see {PUBLISHER}"
            ) from None
        self.shape = (channels, height, width)
        self._sizes = [min(sizes[user], at_most or sizes[user]) for user in self._users]

    def __len__(self) -> int:
        return len(self._users)

    def examples(self, client: int) -> int:
        return self._sizes[client]

    def name(self, client: int) -> str:
        return self._users[client]

    def load(self, client: int) -> Examples:
        return self._images(client, slice(self._sizes[client])), self.labels(client)

    def labels(self, client: int) -> Tensor:
        """Return a client's labels without its images: a row of ones and zeros for each image."""
        group = self._group(client)
        labels = torch.zeros((len(group["image_ids"]), self.classes), dtype=torch.uint8)
        try:
            rows, columns = (group[f"{self._column}_{what}"][:].astype(np.int64) for what in ("row", "col"))
            labels[rows, columns] = 1
        except (KeyError, IndexError, RuntimeError) as error:
            raise self._damaged(client, error) from None
        return labels[: self._sizes[client]]

    def sample(self, examples: int | None, random: np.random.Generator) -> Examples:
        """Draw this many images (None: all) and their labels from all users."""
        ends = np.cumsum(self._sizes)
        count = min(examples or ends[-1], ends[-1])
        chosen = np.sort(random.choice(ends[-1], size=count, replace=False))
        features = torch.empty((count, *self.shape), dtype=torch.uint8)
        labels = torch.empty((count, self.classes), dtype=torch.uint8)
        owners = np.searchsorted(ends, chosen, side="right")
        for client in np.unique(owners).tolist():
            mine = np.flatnonzero(owners == client)
            rows = chosen[mine] - (ends[client] - self._sizes[client])
            features[mine] = self._images(client, rows)
            labels[mine] = self.labels(client)[rows]
        return features, labels

    def _images(self, client: int, rows: slice | np.ndarray) -> Tensor:
        group = self._group(client)
        try:
            images = group["images"][rows]
        except (KeyError, OSError) as error:
            raise self._damaged(client, error) from None
        if (
            images.dtype != np.uint8
            or images.ndim != 4
            or (images.shape[3], *images.shape[1:3]) != self.shape
        ):
            raise self._damaged(client, f"images of {images.dtype} {images.shape[1:]}")
        return torch.from_numpy(images).permute(0, 3, 1, 2)

    def _group(self, client: int) -> h5py.Group:
        if self._opened is None or self._opened[0] != os.getpid():  # HDF5 handles are invalid after a fork
            self._opened = os.getpid(), _open(self._file)
        return self._opened[1][self._part][self._users[client]]

    def _damaged(self, client: int, reason: object) -> ConfigError:
        return ConfigError(
            f"{self._file}, {self._part}/{self._users[client]}: damaged ({reason}); prepare the file again"
        )

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_opened": None}


def _open(file: Path) -> h5py.File:
    try:
        import h5py
    except ImportError:
        raise ConfigError(f"data.kind 'flair' needs h5py: {pip_install('data')}") from None
    try:
        return h5py.File(file, "r")
    except OSError as error:
        raise ConfigError(f"{file}: truncated or not HDF5 ({error}); prepare it again") from None
