"""The head of a module that computes its own loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from torch import Tensor

from tardigrad.errors import ConfigError
from tardigrad.learning.heads import Head, Outputs

IGNORED = -100
"""The label of a position that does not count, as in torch and in Hugging Face's models."""


class ModuleLoss(Head):
    """The loss that the module itself returns when it is called with `labels`, as models of Hugging Face do:
    an output with `loss`, as an attribute or a key.

    The loss of an evaluation is the mean over the labels that count (all but -100). `accuracy` is given where
    every example has one label, a whole number, and the output has `logits`.
    """

    labels_for_module: ClassVar[str | None] = "labels"

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        loss = _part(outputs, "loss")
        if loss is None:
            raise ConfigError(
                "head: the module was called with labels and returned no `loss`; give the head of the task, "
                "such as td.MultiClass()"
            )
        return loss

    def metrics(self, outputs: Outputs) -> dict[str, float]:
        loss, right, counted = 0.0, 0, 0
        known = True
        for output, labels in outputs:
            count = int((labels != IGNORED).sum())
            logits = _part(output, "logits")
            if count:  # a mean over no labels is not a number
                loss += count * float(self.loss(output, labels))
            counted += count
            known &= logits is not None and labels.dim() == 1 and not labels.dtype.is_floating_point
            if known and logits is not None:
                right += int((logits.argmax(dim=-1) == labels).sum())
        metrics = {"loss": loss / max(1, counted)}
        return metrics | ({"accuracy": right / max(1, counted)} if known else {})


def _part(outputs: object, name: str) -> Tensor | None:
    found = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
    return cast(Any, found)
