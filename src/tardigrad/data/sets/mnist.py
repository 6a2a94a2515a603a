"""MNIST and Fashion-MNIST: 70,000 images of 28 x 28 pixels in 10 classes, in four idx files each."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from tardigrad.data.clients import TensorExamples
from tardigrad.data.dataset import DataSet, ImageSource
from tardigrad.data.folder import Published, data_folder, download
from tardigrad.data.idx import IMAGES, LABELS, SIDE, as_examples, read_images_and_labels
from tardigrad.data.partition import Dirichlet, Partition, Shards
from tardigrad.errors import ConfigError

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


class _FourIdxFiles(ImageSource):
    """A data set of four idx files that have MNIST's file names, in a folder of their own."""

    FOLDER: ClassVar[str]
    PUBLISHER: ClassVar[str]
    URL: ClassVar[str]
    MD5: ClassVar[dict[str, str]]
    COUNTS: ClassVar[dict[str, tuple[int, ...]]]
    """How often each label occurs in each part. MNIST and Fashion-MNIST have the same file names, and these
    counts tell them apart."""

    def fetch(self) -> Path:
        """Download those of the four files that are missing, and return their folder."""
        for name, md5 in self.MD5.items():
            if not (data_folder() / self.FOLDER / name).exists():
                download(Published(f"{self.URL}/{name}.gz", f"{self.FOLDER}/{name}.gz", md5))
        return data_folder() / self.FOLDER

    def load(self) -> DataSet:
        train, test = self._examples("train"), self._examples("t10k")
        return DataSet(*train, test, (1, SIDE, SIDE), 10)

    def _examples(self, part: str) -> TensorExamples:
        stem = f"{self.FOLDER}/{part}"
        images, labels, file = read_images_and_labels([stem], self.PUBLISHER, self.kind)
        if tuple(np.bincount(labels).tolist()) != self.COUNTS[part]:
            raise ConfigError(
                f"{file}: these are not the labels of {self.FOLDER}; get it at {self.PUBLISHER}"
            )
        return as_examples(images, labels)


class MNIST(_FourIdxFiles):
    """MNIST: 60,000 handwritten digits of 28 x 28 pixels to train on, 10,000 to test on."""

    kind: Literal["mnist"] = "mnist"
    partition: Partition = Shards(clients=100, shards=2)
    """How the examples are divided among clients. `tardigrad list partitions`"""

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


class FashionMNIST(_FourIdxFiles):
    """Fashion-MNIST: 60,000 pieces of clothing of 28 x 28 pixels in 10 classes, 10,000 to test on."""

    kind: Literal["fashion_mnist"] = "fashion_mnist"
    partition: Partition = Dirichlet(clients=100, alpha=0.5)
    """How the examples are divided among clients. `tardigrad list partitions`"""

    MEAN: ClassVar[tuple[float, ...]] = (0.2860,)
    DEVIATION: ClassVar[tuple[float, ...]] = (0.3530,)
    FOLDER: ClassVar[str] = "fashion-mnist"
    PUBLISHER: ClassVar[str] = "https://github.com/zalandoresearch/fashion-mnist"
    URL: ClassVar[str] = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
    MD5: ClassVar[dict[str, str]] = FASHION_MNIST_MD5
    COUNTS: ClassVar[dict[str, tuple[int, ...]]] = {"train": (6000,) * 10, "t10k": (1000,) * 10}
