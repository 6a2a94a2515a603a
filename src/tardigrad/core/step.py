"""The server's step: momentum x preconditioner x learning rate."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat
from torch import Tensor

from tardigrad.core.momentum import EMA, HeavyBall, Nesterov, NoMomentum
from tardigrad.core.momentum_approximation import Approximation, LightApproximation
from tardigrad.core.preconditioner import NoPreconditioner, Preconditioner
from tardigrad.core.setting import Setting, by_name
from tardigrad.core.situation import Situation
from tardigrad.core.state import State, tensor_of
from tardigrad.core.upload import WeightedSum

Momentum = Annotated[
    NoMomentum | EMA | HeavyBall | Nesterov | Approximation | LightApproximation,
    Field(discriminator="kind"),
    by_name,
]


class Step(Setting):
    """model -= lr * preconditioner(momentum(r))."""

    lr: PositiveFloat = 1.0
    """The server's learning rate (the papers' eta_g)."""
    momentum: Momentum = NoMomentum()
    """none, ema, heavy_ball, nesterov, approximation or light_approximation, with beta."""
    preconditioner: Preconditioner = NoPreconditioner()
    """none, adam, adagrad, yogi or amsgrad."""

    def begin(self, model: Tensor, situation: Situation) -> State:
        """Return the state before the first step."""
        return self.momentum.start(model, situation) | self.preconditioner.start(model)

    def move(self, state: State, r: Tensor, buffer: WeightedSum) -> Tensor:
        """Return the next model. It is a new tensor, because clients may still be training from the old
        one."""
        m = self.momentum.direction(state, r, buffer)
        self.preconditioner.update(state, r)
        return tensor_of(state, "model") - self.lr * self.preconditioner.divide(state, m)
