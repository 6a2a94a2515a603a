"""EMNIST: handwritten letters and digits of 28 x 28 pixels, in six splits, each in four idx files."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from tardigrad.data.clients import TensorExamples
from tardigrad.data.dataset import DataSet, ImageSource
from tardigrad.data.folder import Published, data_folder, download, unpack
from tardigrad.data.idx import IMAGES, LABELS, SIDE, as_examples, read_images_and_labels
from tardigrad.data.partition import Dirichlet, Partition
from tardigrad.errors import ConfigError

ARCHIVE = Published(
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    "emnist/gzip.zip",
    "58c8d27c78d21e728a6bc7b3cc06412e",
)
EXAMPLES = {
    "byclass": (697_932, 116_323),
    "bymerge": (697_932, 116_323),
    "balanced": (112_800, 18_800),
    "letters": (124_800, 20_800),
    "digits": (240_000, 40_000),
    "mnist": (60_000, 10_000),
}
"""Number of training and test examples of each split."""
CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


class EMNIST(ImageSource):
    """EMNIST: handwritten letters and digits of 28 x 28 pixels, in one of six splits."""

    kind: Literal["emnist"] = "emnist"
    split: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = "letters"
    """byclass has 62 classes, bymerge and balanced 47, letters 26, digits and mnist 10."""
    partition: Partition = Dirichlet(clients=100, alpha=0.1)
    """How the examples are divided among clients. `tardigrad list partitions`"""

    MEAN: ClassVar[tuple[float, ...]] = (0.1736,)
    DEVIATION: ClassVar[tuple[float, ...]] = (0.3317,)
    PUBLISHER: ClassVar[str] = "https://www.nist.gov/itl/products-and-services/emnist-dataset"

    def fetch(self) -> Path:
        """Unpack this split from NIST's archive, which is downloaded if missing (536 MB, all splits)."""
        folder = data_folder() / "emnist"
        names = [f"{self._stem(part)}-{what}.gz" for part in ("train", "test") for what in (IMAGES, LABELS)]
        if not all((folder / name).exists() for name in names):
            unpack(download(ARCHIVE), [f"gzip/{name}" for name in names], folder)
        return folder

    def load(self) -> DataSet:
        train, test = self._examples("train", 0), self._examples("test", 1)
        return DataSet(*train, test, (1, SIDE, SIDE), CLASSES[self.split])

    def _stem(self, part: str) -> str:
        return f"emnist-{self.split}-{part}"

    def _examples(self, part: str, number: int) -> TensorExamples:
        stems = [f"emnist/{self._stem(part)}", f"emnist/gzip/{self._stem(part)}"]
        images, labels, file = read_images_and_labels(stems, self.PUBLISHER, self.kind)
        if len(labels) != EXAMPLES[self.split][number]:
            raise ConfigError(
                f"{file}: {len(labels)} labels, and {EXAMPLES[self.split][number]} would be right"
            )
        first = 1 if self.split == "letters" else 0  # only this split numbers its labels from 1
        labels = labels - np.uint8(first)
        if labels.max() >= CLASSES[self.split]:
            raise ConfigError(f"{file}: labels beyond the {CLASSES[self.split]} of {self.split!r}")
        return as_examples(images.transpose(0, 2, 1), labels)  # the published images are transposed
