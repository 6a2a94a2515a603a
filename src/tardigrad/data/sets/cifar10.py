"""CIFAR-10: 60,000 photographs of 32 x 32 pixels in 10 classes, from its binary or its Python version."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tardigrad.data.dataset import DataSet, ImageSource
from tardigrad.data.folder import (
    Published,
    check_md5,
    check_size,
    data_folder,
    download,
    require,
    unpack,
)
from tardigrad.data.partition import Dirichlet, Partition
from tardigrad.errors import ConfigError

ROWS = 10_000
"""Number of images in each file."""
PIXELS = 3 * 32 * 32
"""Number of bytes of an image."""
BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
ARCHIVE = Published(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
)
PUBLISHER = "https://www.cs.toronto.edu/~kriz/cifar.html"
MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
TRAIN, TEST = tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch"

Batch = tuple[np.ndarray, Tensor]
"""Images (rows of bytes: the red, green and blue plane) and labels of one file."""


class Batches:
    """The images of several files of equal length, indexed as one sequence."""

    def __init__(self, batches: Sequence[np.ndarray]) -> None:
        self._batches = batches

    def __getitem__(self, index: Tensor, /) -> Tensor:
        rows = len(self._batches[0])
        file, row = np.divmod(index.numpy(), rows)
        images = np.empty((len(row), PIXELS), dtype=np.uint8)
        for number, batch in enumerate(self._batches):
            here = np.flatnonzero(file == number)
            images[here] = batch[row[here]]
        return as_images(images)


def as_images(rows: np.ndarray) -> Tensor:
    """Reshape rows of bytes to examples x channels x height x width."""
    return torch.from_numpy(rows).unflatten(1, (3, 32, 32))


def read_binary(file: Path) -> Batch:
    """Memory-map one file of the binary version, whose rows are a label and three color planes."""
    check_size(file, ROWS * (1 + PIXELS))
    check_md5(file, MD5[file.name])
    rows = np.memmap(file, dtype=np.uint8, mode="c", shape=(ROWS, 1 + PIXELS)).view(np.ndarray)
    return rows[:, 1:], torch.from_numpy(rows[:, 0].astype(np.int64))


def read_python(file: Path) -> Batch:
    """Read one file of the Python version: a pickled dict with only arrays, lists and byte strings."""
    check_md5(file, MD5[file.name])
    try:
        with file.open("rb") as content:
            entry = _Unpickler(content, encoding="bytes").load()
        images, labels = entry[b"data"], torch.tensor(entry[b"labels"])
        if images.dtype != np.uint8 or images.shape != (ROWS, PIXELS) or labels.shape != (ROWS,):
            raise ValueError(f"it has arrays of {images.shape} and {tuple(labels.shape)}")
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{file}: not a file of CIFAR-10's python version ({error}); get it from {PUBLISHER}"
        ) from None
    return images, labels


class CIFAR10(ImageSource):
    """CIFAR-10: 50,000 photographs of 32 x 32 pixels in 10 classes to train on, 10,000 to test on."""

    kind: Literal["cifar10"] = "cifar10"
    partition: Partition = Dirichlet(clients=5000, alpha=0.1)
    """How the examples are divided among clients. `tardigrad list partitions`"""

    MEAN: ClassVar[tuple[float, ...]] = (0.4914, 0.4822, 0.4465)
    DEVIATION: ClassVar[tuple[float, ...]] = (0.2470, 0.2435, 0.2616)

    def fetch(self) -> Path:
        """Download the binary version if neither version is there, and return its folder."""
        folder, archive = data_folder(), data_folder() / ARCHIVE.file
        if (folder / PYTHON).exists() and not (folder / BINARY).exists():
            return folder / PYTHON
        if not all((folder / BINARY / f"{name}.bin").exists() for name in (*TRAIN, TEST)):
            downloaded = not archive.exists()
            unpack(download(ARCHIVE), [f"{BINARY}/{name}.bin" for name in (*TRAIN, TEST)], folder / BINARY)
            if downloaded:
                archive.unlink()
        return folder / BINARY

    def load(self) -> DataSet:
        folder = require(BINARY, PYTHON, publisher=PUBLISHER, get=self.kind)
        binary = folder.name == BINARY
        batches = []
        for name in (*TRAIN, TEST):
            file = folder / (f"{name}.bin" if binary else name)
            if not file.exists():
                raise ConfigError(f"{file} is missing; get all of CIFAR-10 from {PUBLISHER}")
            batches.append(read_binary(file) if binary else read_python(file))
        *train, (images, labels) = batches
        return DataSet(
            Batches([rows for rows, _ in train]),
            torch.cat([labels for _, labels in train]),
            (as_images(images), labels),
            (3, 32, 32),
            10,
        )


class _Unpickler(pickle.Unpickler):
    """Unpickles numpy arrays and plain values only; a pickle that names anything else is refused."""

    def find_class(self, module: str, name: str) -> object:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.empty(0).__reduce__()[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):  # used where Python 3 wrote bytes for Python 2
            return _encode
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no such file needs")


def _encode(text: str, encoding: str) -> bytes:
    return text.encode(encoding)
