"""Evaluate a model on a set of examples."""

from __future__ import annotations

import torch
from torch import Tensor

from tardigrad.learning.flat import FlatModule
from tardigrad.learning.heads import Head, Outputs
from tardigrad.learning.heads.named_metrics import NamedMetrics
from tardigrad.learning.transform import Transform


def evaluate(
    flat: FlatModule,
    head: Head,
    vector: Tensor,
    features: Tensor,
    labels: Tensor,
    transform: Transform | None = None,
    batch_size: int = 256,
    named: NamedMetrics | None = None,
) -> dict[str, float]:
    """Return the loss and metrics of the model `vector` on these examples, computed batch by batch.

    `named`: new, for metrics besides those of the head.
    """
    transform = transform or Transform()

    def outputs() -> Outputs:
        for x, y in zip(features.split(batch_size), labels.split(batch_size)):
            x, y = x.to(flat.device), y.to(flat.device)
            yield flat.module(flat.prepared(transform.evaluate(x))), y

    flat.module.eval()
    with torch.inference_mode():
        flat.vector.copy_(vector)
        flat.reset_buffers()
        if named is None:
            return head.metrics(outputs())
        return head.metrics(named.watch(outputs())) | named.result()
