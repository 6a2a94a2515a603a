"""The local steps of one trip: how a gradient becomes a change of the client's model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tardigrad.algorithms.algorithm import Rule
from tardigrad.core.precision import is_short
from tardigrad.core.tensor_names import strip_prefix
from tardigrad.core.upload import Vectors
from tardigrad.learning.optimiser import LocalSGD

if TYPE_CHECKING:
    from tardigrad.learning.local import Local

PREFIX = "optimiser/"
"""Begins the names of the optimiser's state in a client's memory."""


class TripSteps:
    """Makes the local steps of one trip, one after the other.

    A step clips the gradient, adds weight decay, asks the rule for the direction, and lets the optimiser move
    along it with the learning rate of this step.
    """

    def __init__(
        self,
        local: Local,
        rule: Rule,
        memory: Vectors,
        x: Tensor,
        examples: int,
        shared: int | None = None,
    ) -> None:
        """`memory`: what the client remembers. `x`: its model. `examples`: how many it has.
        `shared`: how many of the parameters, the first ones, the rule steers; the others follow their
        gradient. Default: all."""
        self._rule, self._optimiser = rule, local.optimiser
        self._shared = None if shared is None or shared == len(x) else shared
        self._clip = local.gradient_clip
        self._added_decay = 0.0 if local.optimiser.decoupled else local.weight_decay
        self._shrinking = local.weight_decay if local.optimiser.decoupled else 0.0
        self._usual = local.step_examples if local.lr_normalisation else None
        self._steps, self._step = local.steps_for(examples), 0
        self._schedule = None if local.trip_schedule.is_flat else local.trip_schedule
        self._state = self._optimiser.begin(x)
        if self._optimiser.keep:
            self._state |= {name: v.clone() for name, v in strip_prefix(PREFIX, memory).items()}
        self.lr_sum = 0.0
        """The sum of the learning rates of all steps so far."""

    @property
    def plain(self) -> bool:
        """Whether a step is nothing but x -= lr * (gradient + weight_decay * x)."""
        rule = type(self._rule).direction is Rule.direction
        return rule and self._clip is None and isinstance(self._optimiser, LocalSGD)

    @property
    def bare(self) -> bool:
        """Whether a step is nothing but x -= lr * gradient."""
        return self.plain and not self._added_decay

    def next_lr(self, examples: int) -> float:
        """Return the learning rate of the next step, whose gradient is of so many examples; count it."""
        lr = self._rule.lr
        if self._schedule is not None:
            lr *= self._schedule.factor(self._step, self._steps)
            self._step += 1
        if self._usual is not None:
            lr *= examples / self._usual
        self.lr_sum += lr
        return lr

    def move(self, x: Tensor, gradient: Tensor, lr: float) -> None:
        """Make a step: change `x` in place. The gradient may be overwritten."""
        if self._clip is not None:
            clip(gradient, self._clip)
        if self._added_decay:
            gradient.add_(x, alpha=self._added_decay)
        direction = self._direction(gradient, x)
        if self._shrinking:
            x.mul_(1 - lr * self._shrinking)
        self._optimiser.move(self._state, x, direction, lr)

    def _direction(self, gradient: Tensor, x: Tensor) -> Tensor:
        """Return the direction of the step of the whole vector."""
        if self._shared is None:
            return self._rule.direction(gradient, x)
        own = gradient[: self._shared]
        direction = self._rule.direction(own, x[: self._shared])
        if direction.data_ptr() != own.data_ptr():
            own.copy_(direction)
        return gradient

    def kept(self) -> Vectors:
        """Return what the client remembers of the optimiser, by its names in the client's memory."""
        if not self._optimiser.keep:
            return {}
        return {PREFIX + name: vector for name, vector in self._state.items()}


def clip(gradient: Tensor, bound: float) -> None:
    """Scale a gradient in place so that its norm is at most `bound`, as torch's clip_grad_norm_ does.

    >>> gradient = torch.tensor([3.0, 4.0])
    >>> clip(gradient, 1.0)
    >>> gradient
    tensor([0.6000, 0.8000])
    """
    norm = torch.linalg.vector_norm(gradient, dtype=torch.float32 if is_short(gradient.dtype) else None)
    gradient.mul_((bound / (norm + 1e-6)).clamp_(max=1.0))
