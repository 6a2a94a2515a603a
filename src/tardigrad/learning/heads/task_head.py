"""The definition of a head: the loss that clients minimise and the metrics that people read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Literal

from torch import Tensor

from tardigrad.core.metric import Metric
from tardigrad.errors import ConfigError

Outputs = Iterable[tuple[Tensor, Tensor]]
"""A model's outputs and the labels, batch after batch."""
LearningTask = Literal["binary", "multiclass", "multilabel", "regression", "sequence"]


class Head(ABC):
    """A loss and the metrics that go with it. Labels may be held as integers of any size.

    A head of one's own is a subclass with `loss` and `metrics`; the rest has defaults (docs/metrics.md).
    """

    names: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    """The metrics that `metrics` gives. A server takes no others from its clients."""
    main: ClassVar[str] = "accuracy"
    """The metric that targets, tables and charts are about, unless evaluation.main names another."""
    lower_is_better: ClassVar[frozenset[str]] = frozenset()
    """Metrics of its own of which less is better. For metrics such as loss and rmse this is known."""
    task: ClassVar[LearningTask | None] = None
    """The kind of outputs and labels, on which it depends which metrics can be computed by name."""

    labels_for_module: ClassVar[str | None] = None
    """The keyword with which the module is given the labels; None if it is not given them."""

    @abstractmethod
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of a minibatch."""

    @abstractmethod
    def metrics(self, outputs: Outputs) -> dict[str, float]:
        """Metrics over a whole evaluation set: always `loss`, and the others of `names`."""

    def width(self, classes: int, labels: Tensor) -> int:
        """Return the number of outputs of a model for data with so many classes and labels like these."""
        del labels
        return classes

    def constant(self, labels: Tensor) -> Tensor | None:
        """Return the outputs for one example of the best model that ignores its input, given the labels that
        it learns from: the baseline. None if there is none."""
        del labels
        return None

    @property
    def baseline(self) -> str:
        """The prediction of the model of `constant`, in words."""
        return "the best constant"

    def metric(self, name: str) -> Metric:
        """Return the metric of this name with the direction that the head knows for it."""
        return Metric.named(name, "lower" if name in self.lower_is_better else None)


def misfit(outputs: Tensor, labels: Tensor, wanted: str) -> ConfigError:
    """Return the error of a model whose outputs do not fit the labels. `wanted`: what the task needs."""
    return ConfigError(
        f"model: it gives outputs of the shape {tuple(outputs.shape)} for labels of the shape "
        f"{tuple(labels.shape)}; this task needs {wanted}"
    )
