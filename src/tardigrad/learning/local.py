"""Local training: minibatch steps on a client's examples, steered by the algorithm's rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor

from tardigrad.algorithms.algorithm import Algorithm, Rule
from tardigrad.core.setting import Setting
from tardigrad.core.upload import Task, Upload, Vectors
from tardigrad.errors import ConfigError, RunError
from tardigrad.learning.accumulated_gradient import AccumulatedGradient
from tardigrad.learning.examples import Features, mapped, take
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.gradient import Gradient, Loss, numbers
from tardigrad.learning.heads import Head
from tardigrad.learning.normalisation import BatchNormMode
from tardigrad.learning.optimiser import AdamW, ClientOptimiser, LocalSGD
from tardigrad.learning.profile import Profile
from tardigrad.learning.schedule import ConstantRate, Schedule
from tardigrad.learning.transform import Transform
from tardigrad.learning.trip_schedule import ConstantInTrip, TripSchedule
from tardigrad.learning.trip_steps import TripSteps

CPU = torch.device("cpu")

LARGEST = 1e30
"""Larger settings cannot be multiplied with the numbers of a float32 model."""
Count = Annotated[int, Field(gt=0, le=10**9)]
"""How often something is done in a trip; more would not end."""
RULE_VECTORS = 4
"""How many vectors as long as the model a rule may upload, and may remember."""

Examples = tuple[Features, Tensor, Tensor | None]
"""Features and labels, first dimension the example, and which of them are the client's (nothing: all)."""


def number(examples: Examples) -> int:
    """How many there are."""
    _, labels, index = examples
    return len(labels) if index is None else len(index)


class Local(Setting):
    """How a client trains.

    A local step is one change of the client's model. It takes one minibatch, or `accumulate` of them.
    """

    epochs: Count | None = None
    """Passes over the client's examples (default 1)."""
    steps: Count | None = None
    """Local steps per trip, in place of `epochs`."""
    batch_size: Count = 32
    """Examples per minibatch; the last one of a pass may be smaller."""
    accumulate: Count = 1
    """Minibatches per local step. It is the training of accumulate * batch_size examples at a time, with the
    memory of batch_size; the last step of a pass may have fewer."""
    optimiser: ClientOptimiser = LocalSGD()
    """sgd, momentum or adamw. `tardigrad list optimisers`"""
    lr: float = Field(default=LocalSGD.default_lr, gt=0, le=LARGEST)
    """The client's learning rate (default 0.1; with adamw 0.001)."""
    schedule: Schedule = ConstantRate()
    """constant, step_decay or cosine, by the version that the trip starts from."""
    trip_schedule: TripSchedule = ConstantInTrip()
    """constant, linear or cosine, each with a warm-up if wanted, by the local step within the trip."""
    weight_decay: float = Field(default=0.0, ge=0, le=LARGEST)
    """Added to the gradient, times the parameters. With adamw, the parameters shrink by lr times this."""
    gradient_clip: float | None = Field(default=None, gt=0, le=LARGEST)
    """The largest norm of the gradient of a local step; longer gradients are scaled down to it."""
    autocast: bool = False
    """Compute losses and gradients in bfloat16 where torch.autocast does. The model stays float32."""
    lr_normalisation: bool = False
    """Scale the learning rate by n / batch_size on minibatches with n < batch_size examples
    (FedBuff, section 5); with `accumulate`, by n / (accumulate * batch_size)."""
    batch_norm: BatchNormMode | None = None
    """How BatchNorm and other layers with running statistics are treated. "client": each client keeps its own
    statistics and parameters of these layers (FedBN). "group_norm": GroupNorm replaces them. Default: a model
    that has such layers is refused."""
    personal: tuple[str, ...] | None = None
    """Parameters that stay with their client, by patterns of their names, such as ["head.*"]."""

    @model_validator(mode="before")
    @classmethod
    def _lr_of_adamw(cls, values: object) -> object:
        """Add the default learning rate of adamw if there is none."""
        if isinstance(values, dict) and "lr" not in values:
            given = values.get("optimiser")
            kind = given.get("kind") if isinstance(given, dict) else getattr(given, "kind", given)
            if kind == "adamw":
                return values | {"lr": AdamW.default_lr}
        return values

    @model_validator(mode="after")
    def _epochs_or_steps(self) -> Local:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give epochs or steps, not both")
        return self

    @property
    def step_examples(self) -> int:
        """How many examples a local step takes."""
        return self.accumulate * self.batch_size

    def steps_for(self, examples: int) -> int:
        """How many local steps a trip takes on that many examples."""
        if self.steps is not None:
            return self.steps
        return (self.epochs or 1) * math.ceil(examples / self.step_examples)

    def has_single(self, examples: int) -> bool:
        """Whether one of the minibatches of a trip on that many examples has only one."""
        reached = self.steps_for(examples) * self.step_examples >= examples
        return self.batch_size == 1 or (reached and examples % self.batch_size == 1)

    def minibatches(
        self, examples: int, generator: torch.Generator, device: torch.device = CPU
    ) -> Iterator[Tensor]:
        """Indices of the examples of each local step: every pass in a new random order, drawn on the CPU."""
        left, size = self.steps_for(examples), self.step_examples
        while left > 0:
            order = torch.randperm(examples, generator=generator).to(device)
            for first in range(0, min(examples, left * size), size):
                yield order[first : first + size]
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
        if local.autocast and flat.vector.dtype != torch.float32:
            raise ConfigError(
                f"local.autocast: it is for models in float32, and this one is {flat.vector.dtype}; "
                "leave it out"
            )
        self.flat = flat
        self.head = head
        self.algorithm = algorithm
        self.local = local
        self.transform = transform or Transform()
        self.accept_divergence = accept_divergence
        gradient = Gradient(flat, head, autocast=local.autocast)
        self._gradient: Gradient | AccumulatedGradient = gradient
        if local.accumulate > 1:
            self._gradient = AccumulatedGradient(gradient, flat, local.batch_size)
        self.profile = Profile(on=False)
        self._elsewhere = flat.device != CPU

    @property
    def remembers(self) -> bool:
        """Whether clients keep something between trips. In a client's memory, names without a slash belong to
        the rule of the algorithm."""
        return self.algorithm.remembers or self.local.optimiser.keep or self.flat.has_personal

    @property
    def memory_bytes(self) -> int:
        """The size of a client's memory at most, and of an upload. What clients remember is at least
        float32."""
        shared, whole = self.flat.shared, self.flat.vector
        vectors = RULE_VECTORS * shared.numel() + self.local.optimiser.kept_vectors * whole.numel()
        return vectors * max(whole.element_size(), 4) + self.flat.personal_bytes + 4096

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
        flat = self.flat
        rule = self.rule(task, memory)
        if not flat.module.training:
            flat.train()
        flat.load(rule.start, memory)
        x, gradient = flat.vector, flat.gradient
        steps = TripSteps(self.local, rule, memory, x, number(examples), flat.shared.numel())
        losses: list[Loss] = []
        at_once = self._gradient.step if steps.bare and isinstance(self._gradient, Gradient) else None
        for features, labels in self.minibatches(examples, seed):
            lr = steps.next_lr(len(labels))
            if at_once is not None:
                losses.append(at_once(features, labels, lr))
            else:
                losses.append(self._gradient(features, labels))
                steps.move(x, gradient, lr)
        return self.finished(task, memory, rule, flat.shared, numbers(losses), steps, number(examples))

    def lasting(self, vectors: Vectors) -> Vectors:
        """Return vectors of a trip's result that later trips do not overwrite: those in the scratch module's
        memory are copied."""
        scratch = {_address(self.flat.vector), _address(self.flat.gradient)}
        return {name: v.clone() if _address(v) in scratch else v for name, v in vectors.items()}

    def rule(self, task: Task, memory: Vectors) -> Rule:
        """Return the client's half of the algorithm, for one trip. It sees only its own part of the
        memory."""
        own = {name: vector for name, vector in memory.items() if "/" not in name}
        return self.algorithm.rule(task, own, self.local.lr * self.local.schedule.factor(task.version))

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
        steps: TripSteps,
        examples: int,
    ) -> tuple[Upload, Vectors]:
        """Return the upload after a trip that came to `end` by these steps, with a loss for each, and the
        client's new memory.

        Raises a RunError if the losses are not finite. Where divergence is accepted, as in a private run, the
        upload is that of a client that changed nothing, and the client keeps its old memory.
        """
        mean = _mean(losses)
        if not math.isfinite(mean) and not self.accept_divergence:
            raise RunError(
                f"trip {task.trip} of client {task.client}: the training loss is not finite; "
                f"lower local.lr (now {self.local.lr:g}) or the algorithm's learning rate"
            )
        vectors = rule.finish(end, len(losses), steps.lr_sum)
        kept = rule.memory | steps.kept()
        if self.flat.has_personal:
            kept |= self.flat.personal_memory()
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


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _all_finite(vectors: Vectors) -> bool:
    return all(bool(torch.isfinite(vector).all()) for vector in vectors.values())
