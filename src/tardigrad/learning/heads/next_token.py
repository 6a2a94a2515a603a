"""The next token at every position of a sequence."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tardigrad.core.setting import Setting
from tardigrad.learning.heads.task_head import Head, LearningTask, Outputs, misfit


class NextToken(Setting, Head):
    """The next token at every position: outputs of examples x length x vocabulary, labels of examples x
    length. Cross entropy, accuracy of the likeliest token and perplexity, each over what counts.

    `pad` never counts, nor does a token of `ignore`. Tokens of `unscored` are trained on but left out of
    the metrics: with the out-of-vocabulary and end-of-sentence tokens, this is the accuracy that the
    papers give for StackOverflow.
    """

    names: ClassVar[tuple[str, ...]] = ("loss", "accuracy", "perplexity")
    task: ClassVar[LearningTask | None] = "sequence"
    kind: Literal["next_token"] = "next_token"
    pad: int
    """The token that fills sequences up."""
    ignore: tuple[int, ...] = ()
    """Tokens that do not count at all."""
    unscored: tuple[int, ...] = ()
    """Tokens that are trained on but left out of the metrics."""

    def __init__(
        self,
        pad: int,
        ignore: Iterable[int] = (),
        unscored: Iterable[int] = (),
        kind: Literal["next_token"] = "next_token",
    ) -> None:
        fields = {"pad": pad, "ignore": tuple(ignore), "unscored": tuple(unscored), "kind": kind}
        super().__init__(**fields)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        wanted = self._without(labels, self.ignore)
        return self._summed(outputs, wanted) / (wanted != self.pad).sum().clamp(min=1)

    def metrics(self, outputs: Outputs) -> dict[str, float]:
        loss, right, tokens = 0.0, 0, 0
        for scores, labels in outputs:
            wanted = self.scored(labels)
            counts = wanted != self.pad
            loss += float(self._summed(scores, wanted))
            right += int(((scores.argmax(dim=-1) == wanted) & counts).sum())
            tokens += int(counts.sum())
        mean = loss / max(1, tokens)
        return {
            "loss": mean,
            "accuracy": right / max(1, tokens),
            "perplexity": math.exp(min(mean, 700.0)),  # beyond, a float overflows
        }

    def scored(self, labels: Tensor) -> Tensor:
        """Return the labels, with padding in the place of those that metrics leave out."""
        return self._without(labels, (*self.ignore, *self.unscored))

    def constant(self, labels: Tensor) -> Tensor | None:
        wanted = self.scored(labels)
        counts = torch.bincount(wanted[wanted != self.pad].flatten()).double()
        return torch.log(counts.clamp(min=1e-6) / counts.sum()) if len(counts) else None

    @property
    def baseline(self) -> str:
        return "always the commonest token"

    def _without(self, labels: Tensor, left_out: tuple[int, ...]) -> Tensor:
        """The labels, with padding in the place of those that are left out."""
        labels = labels.long()
        for token in left_out:
            labels = labels.masked_fill(labels == token, self.pad)
        return labels

    def _summed(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if outputs.shape[:-1] != labels.shape:
            raise misfit(
                outputs, labels, "scores for every position; char_lstm has those with predict = 'every'"
            )
        # no mean: that of nothing is not a number, and a minibatch may be all padding
        return F.cross_entropy(
            outputs.flatten(0, -2), labels.flatten(), ignore_index=self.pad, reduction="sum"
        )
