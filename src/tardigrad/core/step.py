"""The server's step: momentum x preconditioner x learning rate."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from tardigrad.core.minimum_norm_approximation import MinimumNormApproximation
from tardigrad.core.momentum import EMA, HeavyBall, Nesterov, NoMomentum
from tardigrad.core.momentum_approximation import Approximation, LightApproximation
from tardigrad.core.preconditioner import NoPreconditioner, Preconditioner
from tardigrad.core.setting import Setting, by_name
from tardigrad.core.situation import Situation
from tardigrad.core.state import State, tensor_of
from tardigrad.core.upload import WeightedSum

Momentum = Annotated[
    NoMomentum | EMA | HeavyBall | Nesterov | Approximation | LightApproximation | MinimumNormApproximation,
    Field(discriminator="kind"),
    by_name,
]

PIECE = 1 << 18
"""The numbers of which the step of a large model is made at a time."""


class Step(Setting):
    """model -= lr * preconditioner(momentum(r))."""

    lr: PositiveFloat = 1.0
    """The server's learning rate (the papers' eta_g)."""
    momentum: Momentum = NoMomentum()
    """none, ema, heavy_ball, nesterov, approximation, light_approximation or minimum_norm_approximation, with
    beta."""
    preconditioner: Preconditioner = NoPreconditioner()
    """none, adam, adagrad, yogi or amsgrad."""

    def begin(self, model: Tensor, situation: Situation) -> State:
        """Return the state before the first step."""
        return self.momentum.start(model, situation) | self.preconditioner.start(model)

    def move_by_mean(self, state: State, buffer: WeightedSum) -> Tensor:
        """Return the next model, as `move` does from the mean of the buffer. Without momentum and
        preconditioner it is computed in pieces, so that the model is the only vector that takes memory."""
        if not (isinstance(self.momentum, NoMomentum) and isinstance(self.preconditioner, NoPreconditioner)):
            return self.move(state, buffer.mean(), buffer)
        model, total = tensor_of(state, "model"), buffer.sums["delta"]
        moved = torch.empty_like(model, dtype=torch.result_type(model, total))
        pieces = zip(model.split(PIECE), total.split(PIECE), moved.split(PIECE))
        for old, part, new in pieces:
            torch.sub(old, (part / buffer.divisor).mul_(self.lr), out=new)
        return moved

    def move(self, state: State, r: Tensor, buffer: WeightedSum) -> Tensor:
        """Return the next model. It is a new tensor, because clients may still be training from the old
        one."""
        m = self.momentum.direction(state, r, buffer)
        self.preconditioner.update(state, r)
        return tensor_of(state, "model") - self.lr * self.preconditioner.divide(state, m)
