"""Real handwritten digits that come with scikit-learn: 1,797 images of 8 x 8 pixels, no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

Arrays = tuple[torch.Tensor, torch.Tensor]


def load_digits() -> tuple[Arrays, Arrays]:
    """Training and test set (four fifths and one fifth, always the same), pixels in [0, 1]."""
    rows = _rows()
    images, labels = rows[:, :-1], rows[:, -1]
    order = np.random.default_rng(0).permutation(len(labels))
    x = torch.from_numpy(images[order] / 16.0).float().reshape(-1, 1, 8, 8)
    y = torch.from_numpy(labels[order]).long()
    cut = len(y) * 4 // 5
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def _rows() -> np.ndarray:
    """64 pixels of 0 to 16 and a label in each row.

    To import scikit-learn takes longer than to train on them, so its file is read directly where it lies.
    """
    package = find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.exists():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits as load

    return np.column_stack(load(return_X_y=True))
