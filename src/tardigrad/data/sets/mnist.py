"""MNIST, Fashion-MNIST and EMNIST: images of 28 x 28 pixels in idx files, packed with gzip or plain.

A packed file is unpacked beside itself once, where the folder can be written to, and mapped ever after.
"""

from __future__ import annotations

import gzip
import math
import os
import shutil
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch

from tardigrad.data.clients import Examples
from tardigrad.data.dataset import DataSet, ImageSource
from tardigrad.data.folder import Published, data_folder, download, require, unpack, whole
from tardigrad.data.partition import Dirichlet, Partition, Shards
from tardigrad.errors import ConfigError

SIDE = 28
UNSIGNED_BYTES = 0x08
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"

MNIST_MD5 = {
    f"train-{IMAGES}": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    f"train-{LABELS}": "d53e105ee54ea40749a09fcbcd1e9432",
    f"t10k-{IMAGES}": "9fb629c4189551a2d022fa330f9573f3",
    f"t10k-{LABELS}": "ec29112dd5afa0611ce80d1b7f02629c",
}
FASHION_MNIST_MD5 = {
    f"train-{IMAGES}": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    f"train-{LABELS}": "25c81989df183df01b3e8a0aad5dffbe",
    f"t10k-{IMAGES}": "bef4ecab320f06d8554ea6380940ec79",
    f"t10k-{LABELS}": "bb300cfdad3c16e7a12a480ee83cd310",
}
EMNIST_ARCHIVE = Published(
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    "emnist/gzip.zip",
    "58c8d27c78d21e728a6bc7b3cc06412e",
)
EMNIST_EXAMPLES = {
    "byclass": (697_932, 116_323),
    "bymerge": (697_932, 116_323),
    "balanced": (112_800, 18_800),
    "letters": (124_800, 20_800),
    "digits": (240_000, 40_000),
    "mnist": (60_000, 10_000),
}
"""Training and test examples of each of its splits."""
EMNIST_CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


def read_idx(file: Path, dimensions: int) -> np.ndarray:
    """The array of bytes in an idx file: mapped if it is plain, or can be unpacked beside itself."""
    start = 4 + 4 * dimensions
    if file.suffix != ".gz":
        with file.open("rb") as content:
            shape = _shape(content.read(start), file.stat().st_size, file, dimensions)
        return np.memmap(file, dtype=np.uint8, mode="c", offset=start, shape=shape)
    plain = file.with_suffix("")
    try:
        if os.access(file.parent, os.W_OK):
            with whole(plain) as partial, gzip.open(file) as packed, partial.open("wb") as out:
                head = packed.read(start)
                out.write(head)
                shutil.copyfileobj(packed, out, 1 << 20)
                _shape(head, out.tell(), file, dimensions)
            return read_idx(plain, dimensions)
        with gzip.open(file) as packed:
            content_bytes = bytearray(packed.read())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ConfigError(f"{file}: truncated or not gzip ({error}); delete it and get it again") from None
    except OSError as error:
        raise ConfigError(f"{file}: could not be unpacked ({error})") from None
    shape = _shape(bytes(content_bytes[:start]), len(content_bytes), file, dimensions)
    return np.frombuffer(content_bytes, dtype=np.uint8, offset=start).reshape(shape)


def _shape(head: bytes, size: int, file: Path, dimensions: int) -> tuple[int, ...]:
    """What the head of a file announces, if it is an idx file of this kind and has the size for it."""
    magic = struct.pack(">HBB", 0, UNSIGNED_BYTES, dimensions)
    if head[:4] != magic or len(head) != 4 + 4 * dimensions:
        raise ConfigError(
            f"{file}: not an idx file of unsigned bytes in {dimensions} dimension(s): it begins with "
            f"{head[:4].hex() or 'nothing'}, and {magic.hex()} would be right"
        )
    shape = struct.unpack(f">{dimensions}I", head[4:])
    if size != len(head) + math.prod(shape):
        raise ConfigError(
            f"{file}: truncated or damaged: it announces {' x '.join(map(str, shape))} bytes and has "
            f"{size - len(head)}; delete it and get it again"
        )
    return shape


def _pair(stems: Sequence[str], publisher: str, get: str) -> tuple[np.ndarray, np.ndarray, Path]:
    """Images and labels that belong together, and the file of the labels. `stems` are the places to look."""
    found = [
        require(
            *(f"{stem}-{ending}{packed}" for stem in stems for packed in ("", ".gz")),
            publisher=publisher,
            get=get,
        )
        for ending in (IMAGES, LABELS)
    ]
    images, labels = read_idx(found[0], 3), read_idx(found[1], 1)
    if images.shape[1:] != (SIDE, SIDE):
        raise ConfigError(f"{found[0]}: images of {images.shape[1]} x {images.shape[2]}, not {SIDE} x {SIDE}")
    if len(images) != len(labels):
        raise ConfigError(f"{found[0]}: {len(images)} images, but {len(labels)} labels in {found[1].name}")
    return images, labels, found[1]


def _tensors(images: np.ndarray, labels: np.ndarray) -> Examples:
    return torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype(np.int64))


class _MNISTLike(ImageSource):
    """Four files by MNIST's names, in a folder of their own."""

    FOLDER: ClassVar[str]
    PUBLISHER: ClassVar[str]
    URL: ClassVar[str]
    MD5: ClassVar[dict[str, str]]
    COUNTS: ClassVar[dict[str, tuple[int, ...]]]
    """How often each label occurs, which tells these files from others of the same names."""

    def fetch(self) -> Path:
        """Download those of the four files that are not there."""
        for name, md5 in self.MD5.items():
            if not (data_folder() / self.FOLDER / name).exists():
                download(Published(f"{self.URL}/{name}.gz", f"{self.FOLDER}/{name}.gz", md5))
        return data_folder() / self.FOLDER

    def load(self) -> DataSet:
        train, test = self._examples("train"), self._examples("t10k")
        return DataSet(*train, test, (1, SIDE, SIDE), 10)

    def _examples(self, part: str) -> Examples:
        stem = f"{self.FOLDER}/{part}"
        images, labels, file = _pair([stem], self.PUBLISHER, self.kind)
        if tuple(np.bincount(labels).tolist()) != self.COUNTS[part]:
            raise ConfigError(
                f"{file}: these are not the labels of {self.FOLDER}; get it at {self.PUBLISHER}"
            )
        return _tensors(images, labels)


class MNIST(_MNISTLike):
    """MNIST: 60,000 handwritten digits of 28 x 28 pixels to train on, 10,000 to test on."""

    kind: Literal["mnist"] = "mnist"
    partition: Partition = Shards(clients=100, shards=2)
    """Who holds what. `tardigrad list partitions`"""

    MEAN: ClassVar[tuple[float, ...]] = (0.1307,)
    DEVIATION: ClassVar[tuple[float, ...]] = (0.3081,)
    FOLDER: ClassVar[str] = "mnist"
    PUBLISHER: ClassVar[str] = "http://yann.lecun.com/exdb/mnist/"
    URL: ClassVar[str] = "https://ossci-datasets.s3.amazonaws.com/mnist"
    MD5: ClassVar[dict[str, str]] = MNIST_MD5
    COUNTS: ClassVar[dict[str, tuple[int, ...]]] = {
        "train": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        "t10k": (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    }


class FashionMNIST(_MNISTLike):
    """Fashion-MNIST: 60,000 pieces of clothing of 28 x 28 pixels in 10 classes, 10,000 to test on."""

    kind: Literal["fashion_mnist"] = "fashion_mnist"
    partition: Partition = Dirichlet(clients=100, alpha=0.5)
    """Who holds what. `tardigrad list partitions`"""

    MEAN: ClassVar[tuple[float, ...]] = (0.2860,)
    DEVIATION: ClassVar[tuple[float, ...]] = (0.3530,)
    FOLDER: ClassVar[str] = "fashion-mnist"
    PUBLISHER: ClassVar[str] = "https://github.com/zalandoresearch/fashion-mnist"
    URL: ClassVar[str] = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
    MD5: ClassVar[dict[str, str]] = FASHION_MNIST_MD5
    COUNTS: ClassVar[dict[str, tuple[int, ...]]] = {"train": (6000,) * 10, "t10k": (1000,) * 10}


class EMNIST(ImageSource):
    """EMNIST: handwritten letters and digits of 28 x 28 pixels, in one of six splits."""

    kind: Literal["emnist"] = "emnist"
    split: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = "letters"
    """byclass has 62 classes, bymerge and balanced 47, letters 26, digits and mnist 10."""
    partition: Partition = Dirichlet(clients=100, alpha=0.1)
    """Who holds what. `tardigrad list partitions`"""

    MEAN: ClassVar[tuple[float, ...]] = (0.1736,)
    DEVIATION: ClassVar[tuple[float, ...]] = (0.3317,)
    PUBLISHER: ClassVar[str] = "https://www.nist.gov/itl/products-and-services/emnist-dataset"

    def fetch(self) -> Path:
        """Download NIST's archive (536 MB, all splits), if it is not there, and unpack this split."""
        folder = data_folder() / "emnist"
        names = [f"{self._stem(part)}-{what}.gz" for part in ("train", "test") for what in (IMAGES, LABELS)]
        if not all((folder / name).exists() for name in names):
            unpack(download(EMNIST_ARCHIVE), [f"gzip/{name}" for name in names], folder)
        return folder

    def load(self) -> DataSet:
        train, test = self._examples("train", 0), self._examples("test", 1)
        return DataSet(*train, test, (1, SIDE, SIDE), EMNIST_CLASSES[self.split])

    def _stem(self, part: str) -> str:
        return f"emnist-{self.split}-{part}"

    def _examples(self, part: str, number: int) -> Examples:
        stems = [f"emnist/{self._stem(part)}", f"emnist/gzip/{self._stem(part)}"]
        images, labels, file = _pair(stems, self.PUBLISHER, self.kind)
        if len(labels) != EMNIST_EXAMPLES[self.split][number]:
            raise ConfigError(
                f"{file}: {len(labels)} labels, and {EMNIST_EXAMPLES[self.split][number]} would be right"
            )
        first = 1 if self.split == "letters" else 0  # its labels count from 1
        labels = labels - np.uint8(first)
        if labels.max() >= EMNIST_CLASSES[self.split]:
            raise ConfigError(f"{file}: labels beyond the {EMNIST_CLASSES[self.split]} of {self.split!r}")
        return _tensors(images.transpose(0, 2, 1), labels)  # they lie on their side
