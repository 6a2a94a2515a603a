"""Local training: minibatch SGD on a client's examples, steered by the algorithm's rule."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from tardigrad.algorithms.algorithm import Algorithm
from tardigrad.core.setting import Setting
from tardigrad.core.upload import Task, Upload, Vectors
from tardigrad.errors import RunError
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.gradient import Gradient
from tardigrad.learning.head import Head
from tardigrad.learning.schedule import ConstantRate, Schedule
from tardigrad.learning.transform import Transform

Examples = tuple[Tensor, Tensor, Tensor | None]
"""Features and labels, first dimension the example, and which of them are the client's (nothing: all)."""


class Local(Setting):
    """How a client trains."""

    epochs: PositiveInt | None = None
    """Passes over the client's examples (default 1)."""
    steps: PositiveInt | None = None
    """Minibatches per trip, in place of `epochs`."""
    batch_size: PositiveInt = 32
    """Examples per minibatch; the last one of a pass may be smaller."""
    lr: PositiveFloat = 0.1
    """The client's learning rate."""
    schedule: Schedule = ConstantRate()
    """constant, step_decay or cosine, by the version that the trip starts from."""
    weight_decay: NonNegativeFloat = 0.0
    """Added to the gradient, times the parameters."""
    lr_normalisation: bool = False
    """Scale the learning rate by n / batch_size on minibatches with n < batch_size examples
    (FedBuff, section 5)."""

    @model_validator(mode="after")
    def _epochs_or_steps(self) -> Local:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give epochs or steps, not both")
        return self

    def steps_for(self, examples: int) -> int:
        """How many minibatches a trip takes on that many examples."""
        if self.steps is not None:
            return self.steps
        return (self.epochs or 1) * math.ceil(examples / self.batch_size)

    def minibatches(self, examples: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Indices of each minibatch: every pass in a new random order."""
        left = self.steps_for(examples)
        while left > 0:
            for batch in torch.randperm(examples, generator=generator).split(self.batch_size)[:left]:
                yield batch
                left -= 1


class Trainer:
    """One scratch module, used for trip after trip."""

    def __init__(
        self,
        flat: FlatModule,
        head: Head,
        algorithm: Algorithm,
        local: Local,
        transform: Transform | None = None,
    ) -> None:
        self.flat = flat
        self.head = head
        self.algorithm = algorithm
        self.local = local
        self.transform = transform or Transform()
        self._gradient = Gradient(flat, head)

    def train(self, task: Task, memory: Vectors, examples: Examples, seed: int) -> tuple[Upload, Vectors]:
        """Run one trip. Returns what to upload, and what the client would remember if it counts.

        The same inputs give the same bits, whatever was trained before. (A module that draws from numpy's or
        Python's global generator, or counts its calls, breaks that.)
        """
        # dropout and the like draw from torch's own generator: lend it the trip's seed
        generator = torch.default_generator
        before = generator.get_state()
        generator.manual_seed(seed ^ 1)
        try:
            return self._train(task, memory, examples, seed)
        finally:
            generator.set_state(before)

    def _train(self, task: Task, memory: Vectors, examples: Examples, seed: int) -> tuple[Upload, Vectors]:
        local, prepare, prepared = self.local, self.transform.train, self.flat.prepared
        x, gradient = self.flat.vector, self.flat.gradient
        features, labels, index = examples
        count = len(labels) if index is None else len(index)
        generator = torch.Generator().manual_seed(seed)
        rule = self.algorithm.rule(task, memory, local.lr * local.schedule.factor(task.version))
        if not self.flat.module.training:
            self.flat.module.train()
        with torch.no_grad():
            x.copy_(rule.start)
            self.flat.reset_buffers()
        steps, path, total_loss = 0, 0.0, 0.0
        for batch in local.minibatches(count, generator):
            chosen = batch if index is None else index[batch]
            batch_features = prepare(features.index_select(0, chosen), generator)
            loss = self._gradient(prepared(batch_features), labels[chosen])
            with torch.no_grad():
                if local.weight_decay:
                    gradient.add_(x, alpha=local.weight_decay)
                lr = rule.lr
                if local.lr_normalisation:
                    lr *= len(batch) / local.batch_size
                x.sub_(rule.direction(gradient, x), alpha=lr)
            steps += 1
            path += lr
            total_loss += loss
        if not math.isfinite(total_loss):
            raise RunError(
                f"trip {task.trip} of client {task.client}: the training loss is not finite; "
                f"lower local.lr (now {local.lr:g}) or the algorithm's learning rate"
            )
        with torch.no_grad():
            vectors = rule.finish(x, steps, path)
        return Upload(vectors, count, steps, total_loss / steps), rule.memory
