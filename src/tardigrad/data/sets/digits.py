"""Handwritten digits from scikit-learn: 1,797 real images of 8 x 8 pixels, without a download."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from tardigrad.data.clients import Federation, TensorExamples
from tardigrad.data.dataset import DataSet, DataSource
from tardigrad.data.partition import Dirichlet, Partition


class Digits(DataSource):
    """1,797 real handwritten digits of 8 x 8 pixels, in 10 classes; part of scikit-learn, no download."""

    kind: Literal["digits"] = "digits"
    partition: Partition = Dirichlet(clients=100, alpha=0.3)
    """How the examples are divided among clients. `tardigrad list partitions`"""

    def federation(self, seed: int) -> Federation:
        (features, labels), test_examples = load_digits()
        data = DataSet(features, labels, test_examples, shape=(1, 8, 8), classes=10)
        clients, test = data.divide(self.partition, seed)
        return Federation(clients, test, data.shape, data.classes)


def load_digits() -> tuple[TensorExamples, TensorExamples]:
    """Return the training set (four fifths) and the test set (one fifth), always the same.

    Pixels are between 0 and 1.
    """
    rows = _read_rows()
    images, labels = rows[:, :-1], rows[:, -1]
    order = np.random.default_rng(0).permutation(len(labels))
    x = torch.from_numpy(images[order] / 16.0).float().reshape(-1, 1, 8, 8)
    y = torch.from_numpy(labels[order]).long()
    cut = len(y) * 4 // 5
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


@cache
def _read_rows() -> np.ndarray:
    """Return one row for each image: 64 pixels from 0 to 16, then the label. They are read once a process.

    Importing scikit-learn takes longer than training on these images, so its data file is read directly. If
    the file is not where it is expected, scikit-learn is imported after all.
    """
    package = find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.exists():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits as load

    return np.column_stack(load(return_X_y=True))
