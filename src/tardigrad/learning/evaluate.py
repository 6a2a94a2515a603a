"""Evaluate a model on a set of examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from tardigrad.core.upload import Vectors
from tardigrad.learning.examples import Features, mapped, predicted
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.heads import Head, Outputs
from tardigrad.learning.heads.named_metrics import NamedMetrics
from tardigrad.learning.transform import Transform


def evaluate(
    flat: FlatModule,
    head: Head,
    vector: Tensor,
    features: Features,
    labels: Tensor,
    transform: Transform | None = None,
    batch_size: int = 256,
    named: NamedMetrics | None = None,
    memory: Vectors | None = None,
) -> dict[str, float]:
    """Return the loss and metrics of the model `vector` on these examples, computed batch by batch.

    `named`: new, for metrics besides those of the head. `memory`: what the client remembers whose personal
    parts are used; initial values without it.
    """
    transformed = cast(Callable[[Features], Features], (transform or Transform()).evaluate)

    def outputs() -> Outputs:
        for first in range(0, len(labels), batch_size):
            part = slice(first, first + batch_size)
            x = mapped(features, lambda tensor: tensor[part].to(flat.device))  # noqa: B023
            y = labels[part].to(flat.device)
            yield predicted(flat.module, head, flat.prepared(transformed(x)), y), y

    flat.module.eval()
    with torch.no_grad():  # not inference_mode: a module may keep a tensor that it computes for later trips
        flat.load(vector, memory or {})
        flat.pull()
        if named is None:
            return head.metrics(outputs())
        return head.metrics(named.watch(outputs())) | named.result()
