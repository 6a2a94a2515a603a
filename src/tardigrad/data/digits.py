"""Real handwritten digits that come with scikit-learn: 1,797 images of 8 x 8 pixels, no download."""

from __future__ import annotations

import numpy as np
import torch

Arrays = tuple[torch.Tensor, torch.Tensor]


def load_digits() -> tuple[Arrays, Arrays]:
    """Training and test set (four fifths and one fifth, always the same), pixels in [0, 1]."""
    from sklearn.datasets import load_digits as load

    images, labels = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = torch.from_numpy(images[order] / 16.0).float().reshape(-1, 1, 8, 8)
    y = torch.from_numpy(labels[order]).long()
    cut = len(y) * 4 // 5
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])
