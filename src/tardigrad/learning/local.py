"""Local training: minibatch SGD on a client's examples, steered by the algorithm's rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import cast

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from tardigrad.algorithms.algorithm import Algorithm, Rule
from tardigrad.core.setting import Setting
from tardigrad.core.upload import Task, Upload, Vectors
from tardigrad.errors import RunError
from tardigrad.learning.examples import Features, mapped, take
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.gradient import Gradient, Loss, numbers
from tardigrad.learning.heads import Head
from tardigrad.learning.normalisation import BatchNormMode
from tardigrad.learning.profile import Profile
from tardigrad.learning.schedule import ConstantRate, Schedule
from tardigrad.learning.transform import Transform

CPU = torch.device("cpu")

Examples = tuple[Features, Tensor, Tensor | None]
"""Features and labels, first dimension the example, and which of them are the client's (nothing: all)."""


def number(examples: Examples) -> int:
    """How many there are."""
    _, labels, index = examples
    return len(labels) if index is None else len(index)


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
    batch_norm: BatchNormMode | None = None
    """What becomes of BatchNorm and other layers with running statistics. "client": each client keeps its own
    statistics and parameters of these layers (FedBN). "group_norm": GroupNorm replaces them. Default: a model
    that has such layers is refused."""
    personal: tuple[str, ...] | None = None
    """Parameters that stay with their client, by patterns of their names, such as ["head.*"]."""

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

    def minibatches(
        self, examples: int, generator: torch.Generator, device: torch.device = CPU
    ) -> Iterator[Tensor]:
        """Indices of each minibatch: every pass in a new random order, drawn on the CPU."""
        left = self.steps_for(examples)
        while left > 0:
            order = torch.randperm(examples, generator=generator).to(device)
            for first in range(0, min(examples, left * self.batch_size), self.batch_size):
                yield order[first : first + self.batch_size]
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
        accept_divergence: bool = False,
    ) -> None:
        """`accept_divergence`: a trip whose numbers are not finite uploads zeros, in place of an error."""
        self.flat = flat
        self.head = head
        self.algorithm = algorithm
        self.local = local
        self.transform = transform or Transform()
        self.accept_divergence = accept_divergence
        self._gradient = Gradient(flat, head)
        self.profile = Profile(on=False)
        self._elsewhere = flat.device != CPU

    @property
    def remembers(self) -> bool:
        """Whether clients keep something between trips. In a client's memory, names without a slash belong to
        the rule of the algorithm."""
        return self.algorithm.remembers or self.flat.has_personal

    def train(self, task: Task, memory: Vectors, examples: Examples, seed: int) -> tuple[Upload, Vectors]:
        """Run one trip. Returns what to upload, and what the client would remember if it counts.

        The same inputs give the same bits, whatever was trained before. (A module that draws from numpy's or
        Python's global generator, or counts its calls, breaks that.)
        """
        # dropout and the like draw from torch's own generator: lend it the trip's seed
        generators = self.flat.generators
        before = [generator.get_state() for generator in generators]
        for generator in generators:
            generator.manual_seed(seed ^ 1)
        try:
            return self._train(task, memory, examples, seed)
        finally:
            for generator, state in zip(generators, before):
                generator.set_state(state)

    @torch.no_grad()
    def _train(self, task: Task, memory: Vectors, examples: Examples, seed: int) -> tuple[Upload, Vectors]:
        local, flat = self.local, self.flat
        x, gradient, shared, shared_gradient = flat.vector, flat.gradient, flat.shared, flat.shared_gradient
        rule = self.rule(task, memory)
        if not flat.module.training:
            flat.train()
        flat.load(rule.start, memory)
        lr_sum = 0.0
        losses: list[Loss] = []
        for features, labels in self.minibatches(examples, seed):
            losses.append(self._gradient(features, labels))
            if local.weight_decay:
                gradient.add_(x, alpha=local.weight_decay)
            lr = rule.lr
            if local.lr_normalisation:
                lr *= len(labels) / local.batch_size
            x.sub_(flat.whole(rule.direction(shared_gradient, shared)), alpha=lr)
            lr_sum += lr
        return self.finished(task, memory, rule, shared, numbers(losses), lr_sum, number(examples))

    def rule(self, task: Task, memory: Vectors) -> Rule:
        """The client's half of the algorithm, for one trip. It sees only its own part of the memory."""
        if any("/" in name for name in memory):
            memory = {name: vector for name, vector in memory.items() if "/" not in name}
        return self.algorithm.rule(task, memory, self.local.lr * self.local.schedule.factor(task.version))

    def minibatches(self, examples: Examples, seed: int) -> Iterator[tuple[Features, Tensor]]:
        """A trip's minibatches as the module takes them, on its device.

        What is random about them is drawn on the CPU, so that it is the same on every device.
        """
        prepare = cast(Callable[[Features, torch.Generator], Features], self.transform.train)
        prepared, data = self.flat.prepared, self.profile.part("data")
        generator = torch.Generator().manual_seed(seed)
        if self._elsewhere:
            with data:
                examples = self._moved(examples)
        features, labels, index = examples
        for batch in self.local.minibatches(number(examples), generator, self.flat.device):
            with data:
                chosen = batch if index is None else index[batch]
                x, y = take(features, chosen), labels.index_select(0, chosen)
                minibatch = prepared(prepare(x, generator)), y
            yield minibatch

    def _moved(self, examples: Examples) -> Examples:
        """A client's own examples, on the module's device."""
        features, labels, index = examples
        device = self.flat.device
        if index is not None:
            features, labels = take(features, index), labels[index]
        return mapped(features, lambda tensor: tensor.to(device)), labels.to(device), None

    def finished(
        self,
        task: Task,
        memory: Vectors,
        rule: Rule,
        end: Tensor,
        losses: list[float],
        lr_sum: float,
        examples: int,
    ) -> tuple[Upload, Vectors]:
        """What to upload after a trip that came to `end` with these losses, and what the client remembers.

        A RunError if the losses are not finite. Where divergence is accepted, as in a private run, the upload
        is that of a client that changed nothing, and the client keeps its old memory.
        """
        mean = _mean(losses)
        if not math.isfinite(mean) and not self.accept_divergence:
            raise RunError(
                f"trip {task.trip} of client {task.client}: the training loss is not finite; "
                f"lower local.lr (now {self.local.lr:g}) or the algorithm's learning rate"
            )
        vectors = rule.finish(end, len(losses), lr_sum)
        kept = rule.memory | self.flat.personal_memory() if self.flat.has_personal else rule.memory
        if self.accept_divergence and not (
            math.isfinite(mean) and _all_finite(vectors) and _all_finite(kept)
        ):
            model = task.vectors["model"]
            vectors = {n: model.clone() if n == "model" else torch.zeros_like(v) for n, v in vectors.items()}
            return Upload(vectors, examples, len(losses), 0.0), memory
        return Upload(vectors, examples, len(losses), mean), kept


def _mean(losses: list[float]) -> float:
    total = 0.0
    for loss in losses:
        total += loss
    return total / len(losses)


def _all_finite(vectors: Vectors) -> bool:
    return all(bool(torch.isfinite(vector).all()) for vector in vectors.values())
