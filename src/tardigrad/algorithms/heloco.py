"""HeLoCo: "HeLoCo: Efficient asynchronous low-communication training under data and device heterogeneity"
(Al Asif et al.)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from tardigrad.algorithms.algorithm import Individual, Metrics
from tardigrad.algorithms.momentum_look_ahead import LookAhead
from tardigrad.core.situation import Situation
from tardigrad.core.staleness import StalenessLaw
from tardigrad.core.state import State, tensor_of
from tardigrad.core.upload import Received, Vectors

EPSILON = 1e-8
"""Norms below this count as 0."""


class HeLoCo(Individual, LookAhead):
    """Momentum look-ahead whose uploads are turned toward the momentum where they go against it.

    Each parameter tensor of the model is a block b. With u and v the directions of an upload's block and of
    the momentum's, c = u . v and conf = |delta| / (|delta| + kappa |m|), the block becomes

        c >= c_ok:      as it is
        c < 0:          delta - shrink c |delta| v, with shrink = min(k_s (-c) conf, most_shrink)
        in between:     |delta| times the direction of (1 - turn) u + turn v, with turn = min(k_d f conf, 1)

    where f = 1 - c (Eq. 14), or, with `turn = "continuous"`, (c_ok - c) / (c_ok - c_bad), which is 0 at c_ok.
    The corrected uploads then move the model as those of momentum look-ahead do. Clients start from the model
    one step ahead, x - lr beta m (Eq. 5).
    """

    kind: Literal["heloco"] = "heloco"
    default_buffer: ClassVar[int] = 1
    tuning_space: ClassVar[dict[str, dict[str, object]]] = {
        "algorithm.lr": {"low": 0.01, "high": 1.0, "log": True},
        "algorithm.beta": {"low": 0.0, "high": 0.95},
    }
    c_ok: float = Field(default=0.2, gt=0, le=1)
    """The cosine from which on a block is not changed."""
    k_s: NonNegativeFloat = 0.5
    """How strongly what goes against the momentum is shortened."""
    most_shrink: float = Field(default=0.5, ge=0, lt=1)
    """The largest share of it that is cut off (the paper's beta_max)."""
    k_d: NonNegativeFloat = 1.0
    """How strongly blocks in between are turned."""
    kappa: NonNegativeFloat = 3.0
    """How much the momentum's length weighs in the confidence."""
    turn: Literal["paper", "continuous"] = "paper"
    """f of the blocks in between."""
    c_bad: float = Field(default=-0.2, ge=-1, le=0)
    """The cosine at which the continuous f is 1."""

    @property
    def law(self) -> StalenessLaw:
        return self.staleness

    def start(self, model: Tensor, situation: Situation) -> State:
        sizes = situation.blocks or (model.numel(),)
        state = super().start(model, situation) | self.begin(model)
        return state | {"blocks": torch.tensor(sizes, dtype=torch.int64)}

    def broadcast(self, state: State) -> Vectors:
        return {"model": self.ahead(state)}

    def step(self, state: State, buffer: Sequence[Received], version: int) -> Metrics:
        sizes = tensor_of(state, "blocks").tolist()
        momentum = tensor_of(state, "momentum").split(sizes)
        total = torch.zeros_like(tensor_of(state, "model"))
        shrunk = turned = 0
        for received in buffer:
            blocks = []
            for delta, m in zip(received.upload.vectors["delta"].split(sizes), momentum):
                corrected, c = self._corrected(delta, m)
                shrunk += c < 0
                turned += 0 <= c < self.c_ok
                blocks.append(corrected)
            total += received.member.weight * torch.cat(blocks)
        self.move(state, total / sum(received.member.mass for received in buffer))
        count = len(sizes) * len(buffer)
        return {"shrunk": shrunk / count, "turned": turned / count}

    def _corrected(self, delta: Tensor, m: Tensor) -> tuple[Tensor, float]:
        """Return the block of an upload as it counts, and c, which is 1 if one of the two is 0."""
        length, other = (float(torch.linalg.vector_norm(x, dtype=torch.float64)) for x in (delta, m))
        if length < EPSILON or other < EPSILON:
            return delta, 1.0
        u, v = delta / length, m / other
        c = float(u.double() @ v.double())
        confidence = length / (length + self.kappa * other + EPSILON)
        if c >= self.c_ok:
            return delta, c
        if c < 0:
            shrink = min(self.k_s * -c * confidence, self.most_shrink)
            return delta - shrink * c * length * v, c
        f = 1 - c if self.turn == "paper" else (self.c_ok - c) / (self.c_ok - self.c_bad)
        share = min(self.k_d * f * confidence, 1.0)
        mixed = (1 - share) * u + share * v  # not 0, because c >= 0
        return length * mixed / float(torch.linalg.vector_norm(mixed, dtype=torch.float64)), c
