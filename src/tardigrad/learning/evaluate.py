"""Evaluation of a model on a set of examples."""

from __future__ import annotations

import torch
from torch import Tensor

from tardigrad.learning.flat import FlatModule
from tardigrad.learning.head import Head


def evaluate(
    flat: FlatModule, head: Head, vector: Tensor, features: Tensor, labels: Tensor, batch_size: int = 1024
) -> dict[str, float]:
    """Loss and metrics of `vector` on these examples. Leaves torch's random state as it was."""
    module = flat.module
    module.eval()
    with torch.inference_mode():
        flat.vector.copy_(vector)
        outputs = torch.cat([module(batch) for batch in features.split(batch_size)])
        return head.metrics(outputs, labels)
