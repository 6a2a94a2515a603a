"""Numbers: one or many targets."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch.nn.functional as F
from pydantic import ConfigDict, Field, PositiveFloat
from torch import Tensor

from tardigrad.core.setting import Setting
from tardigrad.learning.heads.task_head import Head, LearningTask, Outputs, misfit


class Regression(Setting, Head):
    """Numbers: one output for each target; squared, absolute or Huber loss; RMSE and MAE.

    >>> head = Regression(loss="huber", delta=2.0)
    >>> head.loss(torch.tensor([[1.0], [5.0]]), torch.tensor([1.0, 1.0]))
    tensor(3.)
    """

    model_config = ConfigDict(populate_by_name=True)

    names: ClassVar[tuple[str, ...]] = ("loss", "rmse", "mae")
    main: ClassVar[str] = "rmse"
    task: ClassVar[LearningTask | None] = "regression"
    kind: Literal["regression"] = "regression"
    error: Literal["squared", "absolute", "huber"] = Field(default="squared", alias="loss")
    """The loss: "squared", "absolute", or "huber" (squared up to `delta`, and linear beyond it)."""
    delta: PositiveFloat = 1.0
    """Where the Huber loss becomes linear."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        outputs, truth = self._pair(outputs, labels)
        if self.error == "squared":
            return F.mse_loss(outputs, truth)
        if self.error == "absolute":
            return F.l1_loss(outputs, truth)
        return F.huber_loss(outputs, truth, delta=self.delta)

    def _pair(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and labels of the same shape and type: a column is as good as a list."""
        if outputs.shape != labels.shape:
            if outputs.numel() != labels.numel() or len(outputs) != len(labels):
                raise misfit(outputs, labels, "one output for each target of an example")
            outputs = outputs.reshape(labels.shape)
        return outputs, labels.to(outputs.dtype)

    def metrics(self, outputs: Outputs) -> dict[str, float]:
        loss, squares, absolutes, numbers = 0.0, 0.0, 0.0, 0
        for found, labels in outputs:
            loss += labels.numel() * float(self.loss(found, labels))
            errors = (found.reshape(labels.shape).double() - labels.double()).flatten()
            squares += float(errors.square().sum())
            absolutes += float(errors.abs().sum())
            numbers += labels.numel()
        return {"loss": loss / numbers, "rmse": math.sqrt(squares / numbers), "mae": absolutes / numbers}

    def width(self, classes: int, labels: Tensor) -> int:
        return math.prod(labels.shape[1:])

    def constant(self, labels: Tensor) -> Tensor:
        labels = labels.double()
        return labels.mean(dim=0) if self.error == "squared" else labels.median(dim=0).values

    @property
    def baseline(self) -> str:
        return "always the mean" if self.error == "squared" else "always the median"
