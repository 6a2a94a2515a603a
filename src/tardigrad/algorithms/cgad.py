"""CGAD: "Cosine-Gated Adam-Decay: Drop-In Staleness-Aware Outer Optimization for Decoupled DiLoCo" (Shah,
Sun)."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics, SumOnly
from tardigrad.core.setting import by_name
from tardigrad.core.situation import Situation
from tardigrad.core.staleness import CosineGate, StalenessLaw
from tardigrad.core.state import State, tensor_of
from tardigrad.core.upload import WeightedSum


class CGAD(SumOnly):
    """Adam on the server, whose uploads are scaled by their age before both moments see them.

    sigma(staleness) = gate(staleness) exp(-a staleness), where the gate is a cosine of the *age*: 1 for a
    fresh upload, and smoothly 0 at the cutoff. If all uploads are fresh, it is Adam.
    """

    kind: Literal["cgad"] = "cgad"
    default_buffer: ClassVar[int] = 1
    tuning_space: ClassVar[dict[str, dict[str, object]]] = {
        "algorithm.lr": {"low": 1e-4, "high": 0.1, "log": True},
        "algorithm.staleness.a": {"low": 0.01, "high": 1.0, "log": True},
    }
    lr: PositiveFloat = 0.01
    """The server's learning rate."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Share of the past in m."""
    beta2: float = Field(default=0.99, ge=0, lt=1)
    """Share of the past in v."""
    adaptivity: PositiveFloat = 1e-8
    """Added to the root of v (Adam's epsilon)."""
    staleness: Annotated[CosineGate, by_name] = CosineGate()
    """sigma(staleness)."""

    @property
    def law(self) -> StalenessLaw:
        return self.staleness

    def start(self, model: Tensor, situation: Situation) -> State:
        zeros = {name: model.new_zeros(model.shape) for name in ("momentum", "second_moment")}
        return super().start(model, situation) | zeros | {"steps": 0}

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        g = buffer.mean()  # sigma(staleness) delta, for a buffer of one
        m = self.beta1 * tensor_of(state, "momentum") + (1 - self.beta1) * g
        v = self.beta2 * tensor_of(state, "second_moment") + (1 - self.beta2) * g * g
        state["momentum"], state["second_moment"] = m, v
        state["steps"] += 1
        t = int(state["steps"])
        root = torch.sqrt(v) / math.sqrt(1 - self.beta2**t)
        state["model"] = state["model"] - self.lr / (1 - self.beta1**t) * m / (root + self.adaptivity)
        return {}
