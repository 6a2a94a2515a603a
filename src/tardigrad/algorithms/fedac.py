"""FedAC: "Efficient Asynchronous Federated Learning with Prospective Momentum Aggregation and Fine-Grained
Correction" (Zang et al.), Algorithm 1.

The paper takes end - start and adds; here delta = start - end, and the server subtracts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from tardigrad.algorithms.algorithm import Individual, Metrics, Rule
from tardigrad.algorithms.scaffold import CONTROL_IS_MEAN_GRADIENT, ControlledRule
from tardigrad.core.momentum import Nesterov
from tardigrad.core.preconditioner import Adam
from tardigrad.core.situation import Situation
from tardigrad.core.state import State, tensor_of
from tardigrad.core.step import Step
from tardigrad.core.upload import Received, Task, Vectors, WeightedSum

ALMOST_NOTHING = 1e-6
"""If the mean of r over the buffer (weighted by mass) is at most this, all uploads weigh the same. Such small
cosines are rounding errors in float32, and smaller than those of two random directions in a model of any
usual size. Their ratios would give almost all weight to the upload with the largest one."""

_READINGS: dict[str, Callable[[float], float]] = {
    "cosine": lambda cosine: max(cosine, 0.0),
    "signed": lambda cosine: cosine,
    "absolute": abs,
    "shifted": lambda cosine: (1 + cosine) / 2,
    "fresh_at_mean": lambda cosine: max(cosine, 0.0),
    "softmax": math.exp,
}
"""How r of Eq. 4 follows from the cosine, by reading."""


class FedAC(Individual):
    """The weight of an upload depends on its agreement with the movement of the model during the trip; the
    server makes Nadam steps; clients correct their drift by control variates. Each of the three can be
    switched off, as in the paper's ablation (its Figure 3)."""

    kind: Literal["fedac"] = "fedac"
    remembers: ClassVar[bool] = True
    default_buffer: ClassVar[int] = 20
    lr: PositiveFloat = 0.01
    """The server's learning rate (eta_g). The paper names 1, which cannot work with nadam: v starts at 0, so
    the first step moves every coordinate by (1 - beta1^2) / sqrt(1 - beta2), about 2, times `lr`. Without
    momentum, 1 is the natural value."""
    weights: Literal["cosine", "signed", "absolute", "shifted", "fresh_at_mean", "softmax", "uniform"] = (
        "cosine"
    )
    """cosine is the paper's client weight by temporal gradient (WTG): the cosine of the client's change with
    the model's change during the trip, or 0 if that is negative, and 1 for a fresh upload. uniform gives all
    uploads the same weight. The others are readings of Equations 4 and 5, which leave open what a negative
    cosine and a fresh upload weigh: signed takes negative cosines as they are; absolute takes their absolute
    values; shifted takes (1 + cosine) / 2; fresh_at_mean gives fresh uploads the mean weight of the others;
    softmax takes the exponential of the cosine in Equation 5."""
    momentum: Literal["nadam", "none"] = "nadam"
    """The paper's adaptive update with prospective weighted momentum (APWM), which is Nadam; or plain
    steps along the weighted mean."""
    beta1: float = Field(default=0.6, ge=0, lt=1)
    """Share of the past in m (nadam)."""
    beta2: float = Field(default=0.9, ge=0, lt=1)
    """Share of the past in v (nadam)."""
    adaptivity: PositiveFloat = 1e-8
    """Added to the root of v (nadam; the paper's epsilon)."""
    correction: bool = True
    """The paper's fine-grained gradient correction, by control variates as in SCAFFOLD; without it clients
    run plain SGD and upload no control."""
    control_scale: Literal["paper", "population"] = "paper"
    """How far the buffer moves the common control c: by the weighted mean of the clients' changes, as in the
    paper; or by buffer / population of that. With uniform weights the second keeps c equal to the mean of all
    clients' controls (weighted by examples, if clients weigh by them)."""

    @cached_property
    def _step(self) -> Step:
        if self.momentum == "none":
            return Step(lr=self.lr)
        adam = Adam(beta2=self.beta2, adaptivity=self.adaptivity)
        return Step(lr=self.lr, momentum=Nesterov(beta=self.beta1), preconditioner=adam)

    @property
    def averages_memories(self) -> bool:
        return self.correction and self.control_scale == "population"

    @property
    def assumes_sgd(self) -> str | None:
        return f"{CONTROL_IS_MEAN_GRADIENT} (correction = false does without)" if self.correction else None

    @property
    def changes_training(self) -> bool:
        return self.correction

    def start(self, model: Tensor, situation: Situation) -> State:
        state = super().start(model, situation) | self._step.begin(model, situation)
        if self.correction:
            state |= {"control": torch.zeros_like(model), "mass": situation.mass}
        return state

    def broadcast(self, state: State) -> Vectors:
        names = ("model", "control") if self.correction else ("model",)
        return {name: tensor_of(state, name) for name in names}

    def rule(self, task: Task, memory: Vectors, lr: float) -> Rule:
        # Eqs 12 to 16 are those of SCAFFOLD with h = c - c_i; K eta_l is the sum of the learning rates.
        return ControlledRule(task, memory, lr) if self.correction else Rule(task, memory, lr)

    def step(self, state: State, buffer: Sequence[Received], version: int) -> Metrics:
        if self.weights != "uniform":
            r, metrics = _agreement(tensor_of(state, "model"), buffer, self.weights)  # Eq. 4
        else:
            r, metrics = [1.0] * len(buffer), {}
        weighted = _weighted(buffer, r, version)  # Eqs 5 and 7, and the sum of Eq. 17
        state["model"] = self._step.move(state, weighted.mean(), weighted)  # Eqs 8 to 11, of this buffer
        if self.correction:
            scale = 1.0
            if self.control_scale == "population":
                scale = sum(received.member.mass for received in buffer) / float(state["mass"])
            state["control"] = state["control"] + scale * weighted.mean("control")  # Eq. 17
        return metrics


def _agreement(model: Tensor, buffer: Sequence[Received], reading: str) -> tuple[list[float], Metrics]:
    """Return r of Eq. 4 for each upload, and metrics that count the special cases.

    The cosine is taken to be 1 if the model did not move during the trip (fresh), and 0 if the client did not
    move. If almost no weight is left, all uploads weigh the same.
    """
    r: list[float] = []
    cosines: list[float] = []
    fresh: list[int] = []
    unchanged = 0
    for n, received in enumerate(buffer):
        delta, start = received.upload.vectors["delta"], received.start
        now = model.to(start.dtype).to(model.dtype)  # rounded as the start was, if to short floats
        moved = start.to(model.dtype) - now  # both signs reversed
        lengths = float(torch.linalg.vector_norm(moved)), float(torch.linalg.vector_norm(delta))
        if lengths[0] == 0 or received.member.staleness == 0:  # a lossy broadcast moves the start
            fresh.append(n)
            cosine = 1.0
        elif lengths[1] == 0:
            unchanged += 1
            cosine = 0.0
        else:
            cosine = float((moved * delta).sum()) / (lengths[0] * lengths[1])
            cosines.append(cosine)
        r.append(_READINGS[reading](cosine))
    if reading == "fresh_at_mean" and len(fresh) < len(buffer):
        mean = sum(r_i for n, r_i in enumerate(r) if n not in fresh) / (len(buffer) - len(fresh))
        r = [mean if n in fresh else r_i for n, r_i in enumerate(r)]
    masses = [received.member.mass for received in buffer]
    left = sum(mass * r_i for mass, r_i in zip(masses, r))
    fallback = left <= ALMOST_NOTHING * sum(masses)
    if fallback:
        r = [1.0] * len(buffer)
    metrics = {
        "fresh": len(fresh),
        "unchanged": unchanged,
        "negative": sum(cosine < 0 for cosine in cosines),
        "fallback": int(fallback),
    }
    return r, metrics | ({"cosine": sum(cosines) / len(cosines)} if cosines else {})


def _weighted(buffer: Sequence[Received], r: Sequence[float], version: int) -> WeightedSum:
    """Return the sum of the buffer with weights in proportion to r times mass, which sum to 1."""
    total = sum(received.member.mass * r_i for received, r_i in zip(buffer, r))
    sums: Vectors = {}
    members = []
    for received, r_i in zip(buffer, r):
        w = received.member.mass * r_i / total  # Eq. 5
        members.append(received.member._replace(weight=w, mass=w))
        for name, vector in received.upload.vectors.items():
            if name in sums:
                sums[name].add_(vector, alpha=w)  # Eq. 7
            else:
                sums[name] = vector * w
    return WeightedSum(sums, tuple(members), version, divisor=1.0)
