"""MasFL and AdaMasFL: "Momentum-Driven Adaptivity: Towards Tuning-Free Asynchronous Federated Learning"
(Yan et al.), Algorithms 1 to 4."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from tardigrad.algorithms.algorithm import Metrics, Rule, SumOnly
from tardigrad.core.precision import at_least_float32
from tardigrad.core.renamed import renamed_keyword
from tardigrad.core.situation import Situation
from tardigrad.core.state import State, tensor_of
from tardigrad.core.upload import Task, Vectors, WeightedSum
from tardigrad.errors import ConfigError


class MasFLRule(Rule):
    """Algorithm 2: momentum and control variates in every local step. The client uploads the change of c_i.

    The control variate c_i is the mean raw gradient of the last trip of the client that was accepted.
    """

    def __init__(self, task: Task, memory: Vectors, lr: float) -> None:
        super().__init__(task, memory, lr)
        self.beta = task.vectors["beta"].item()
        self.drift = task.vectors["drift"]  # beta c + (1 - beta) g
        wide = at_least_float32(self.start)
        self.control = memory["control"] if memory else torch.zeros_like(wide)  # c_i
        self.total = torch.zeros_like(wide)  # of the raw gradients

    def direction(self, gradient: Tensor, x: Tensor) -> Tensor:
        self.total += gradient
        return gradient.sub_(self.control).mul_(self.beta).add_(self.drift)  # line 3

    @renamed_keyword("path", "lr_sum")
    def finish(self, end: Tensor, steps: int, lr_sum: float) -> Vectors:
        control = self.total / steps  # line 6: the next c_i
        self.memory = {"control": control}
        return {"control": control - self.control}


class AdaMasFLRule(MasFLRule):
    """Algorithm 4: all steps have the length eta. The client also uploads the mean of their directions."""

    def direction(self, gradient: Tensor, x: Tensor) -> Tensor:
        d = super().direction(gradient, x)
        norm = torch.linalg.vector_norm(d)  # over all parameters
        return d.div_(norm) if norm > 0 else d  # line 4

    @renamed_keyword("path", "lr_sum")
    def finish(self, end: Tensor, steps: int, lr_sum: float) -> Vectors:
        delta = self.start - end
        if lr_sum > 0:  # 0 in the first pass, in which no client moves
            delta /= lr_sum  # line 6: Delta_i = (start - end) / (eta K)
        return super().finish(end, steps, lr_sum) | {"delta": delta}


class _MasFL(SumOnly):
    remembers: ClassVar[bool] = True
    uses_local_steps: ClassVar[bool] = True
    undiscounted: ClassVar[frozenset[str]] = frozenset({"control"})
    beta: float | None = Field(default=None, gt=0, le=1)
    """Share of the *new* gradient in the momentum. Default: the theorem's sqrt(S K / T), at most 1, for S
    uploads a step, K local steps and T server steps."""
    gamma: PositiveFloat | None = None
    """The server's step size. Default: the theorem's."""
    first_pass: bool = False
    """Begin as in the paper: the first step takes one trip of every client, which reports its gradients at
    the first model, and the model does not move. Otherwise all control variates start at 0."""

    @property
    def averages_memories(self) -> bool:
        return True

    @property
    def assumes_sgd(self) -> str | None:
        return (
            "every local step has the momentum of all clients in its direction already, and the step sizes "
            "of the theorem are those of plain steps along it"
        )

    @property
    def opening(self) -> bool:
        return self.first_pass

    def _is_opening(self, version: int) -> bool:
        return self.first_pass and version == 0

    def start(self, model: Tensor, situation: Situation) -> State:
        return super().start(model, situation) | {
            "momentum": torch.zeros_like(model),  # g
            "control": torch.zeros_like(model),  # c, the mean of all c_i
            "mass": situation.mass,
            **self._step_sizes(situation),
        }

    @abstractmethod
    def _step_sizes(self, situation: Situation) -> dict[str, float]:
        """Return those that were set, or else those of the theorem."""

    def _beta(self, situation: Situation) -> float:
        if self.beta is not None:
            return self.beta
        return min(1.0, math.sqrt(self._work(situation) / self._horizon(situation)))

    def _work(self, situation: Situation) -> float:
        """Return S K, the number of local steps in one server step."""
        if situation.buffer is None:
            raise ConfigError(
                "buffer.size: the step sizes of this algorithm follow from the number of uploads in a step; "
                "set buffer.size, or all step sizes of the algorithm"
            )
        return situation.buffer * situation.local_steps

    def _horizon(self, situation: Situation) -> int:
        """Return T, how many times the model will move."""
        if situation.steps is None:
            raise ConfigError(
                "stop.steps: the step sizes of this algorithm follow from the length of the run; "
                "set stop.steps (or stop.trips), or all step sizes of the algorithm"
            )
        return max(1, situation.steps - self.first_pass)

    def broadcast(self, state: State) -> Vectors:
        beta = float(state["beta"])
        drift = beta * tensor_of(state, "control") + (1 - beta) * tensor_of(state, "momentum")
        return super().broadcast(state) | {"drift": drift, "beta": drift.new_tensor([beta])}

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        if self._is_opening(buffer.version):
            state["control"] = control = buffer.mean("control")  # c^0 = (1/N) sum of c_i^0
            state["momentum"] = control.clone()  # g^0 = c^0
        else:
            self._move(state, buffer)
        return {}

    @abstractmethod
    def _move(self, state: State, buffer: WeightedSum) -> None: ...

    def _momentum(self, state: State, buffer: WeightedSum) -> Tensor:
        beta, g, c = float(state["beta"]), tensor_of(state, "momentum"), tensor_of(state, "control")
        return beta * (buffer.mean("control") + c) + (1 - beta) * g

    def _control(self, state: State, buffer: WeightedSum) -> Tensor:
        change = buffer.change_of_mean("control", float(state["mass"]))  # (1/N) sum of dc
        return tensor_of(state, "control") + change


class MasFL(_MasFL):
    """Momentum across clients and steps, with control variates: no bound on how clients' data differ.

    The client's learning rate is `local.lr`, or `eta = "theorem"`; then local.lr and local.schedule have no
    effect.
    """

    kind: Literal["masfl"] = "masfl"
    smoothness: PositiveFloat = 1.0
    """L, how fast gradients change: the default gamma is beta / (4 L)."""
    eta: Literal["local", "theorem"] = "local"
    """The length of a local step: local.lr, or the largest that the theorem allows. That needs
    buffer.staleness_bound, and is short: with K = 5 local steps and L = 1 at most 0.008."""

    def _step_sizes(self, situation: Situation) -> dict[str, float]:  # Theorem 1
        beta = self._beta(situation)
        sizes = {"beta": beta, "gamma": self.gamma or beta / (4 * self.smoothness)}
        return sizes if self.eta == "local" else sizes | {"eta": self._largest_eta(situation, beta)}

    def _largest_eta(self, situation: Situation, beta: float) -> float:
        """Return the largest eta for which 1 - 4 a - sqrt(S K / T) >= 0, where a = tau_max^2 beta^2 + 20 e^2
        eta^2 K^2 L^2."""
        work, steps, bound = self._work(situation), self._horizon(situation), situation.staleness_bound
        if bound is None:
            raise ConfigError(
                "buffer.staleness_bound: the theorem's eta depends on the largest staleness; give a bound, "
                "or leave algorithm.eta at 'local'"
            )
        left = steps * (1 - 4 * bound**2 * beta**2) - math.sqrt(work * steps)
        if left <= 0:
            raise ConfigError(
                f"algorithm.eta: the theorem allows no step with {work:g} local steps in each of {steps} "
                f"steps, a staleness of {bound} and a beta of {beta:.3g}; run more steps, lower "
                "buffer.staleness_bound (or algorithm.beta, if it is set), or leave it at 'local'"
            )
        scale = 4 * math.sqrt(5) * math.e * situation.local_steps * self.smoothness
        return math.sqrt(left / steps) / scale

    def caution(self, situation: Situation, lr: float) -> str | None:
        if self.eta == "theorem":
            return None
        try:
            largest = self._largest_eta(situation, self._beta(situation))
        except ConfigError:  # the theorem has no bound for this run
            return None
        if lr <= largest:
            return None
        return (
            f"local.lr: {lr:g} is more than the {largest:.3g} for which MasFL's theorem holds; the run may "
            "learn all the same, and algorithm.eta = 'theorem' takes the bound"
        )

    def broadcast(self, state: State) -> Vectors:
        vectors = super().broadcast(state)
        if self.eta == "local":
            return vectors
        return vectors | {"eta": vectors["model"].new_tensor([float(state["eta"])])}

    def rule(self, task: Task, memory: Vectors, lr: float) -> Rule:
        if self.eta == "theorem":
            lr = task.vectors["eta"].item()
        return MasFLRule(task, memory, 0.0 if self._is_opening(task.version) else lr)

    def _move(self, state: State, buffer: WeightedSum) -> None:  # Algorithm 1
        state["momentum"] = self._momentum(state, buffer)  # line 5
        state["model"] = state["model"] - state["gamma"] * state["momentum"]  # line 6
        state["control"] = self._control(state, buffer)  # line 7


class AdaMasFL(_MasFL):
    """MasFL with normalised local steps: nothing to tune, because all step sizes follow from S, K and T.

    The client's learning rate is `eta`; local.lr and local.schedule have no effect.
    """

    kind: Literal["adamasfl"] = "adamasfl"
    eta: PositiveFloat | None = None
    """The length of a local step. Default: the theorem's 1 / (K sqrt(T))."""

    def _step_sizes(self, situation: Situation) -> dict[str, float]:  # Theorem 2
        gamma, eta = self.gamma, self.eta
        if gamma is None:
            gamma = self._work(situation) ** 0.25 / self._horizon(situation) ** 0.75
        if eta is None:
            eta = 1 / (situation.local_steps * math.sqrt(self._horizon(situation)))
        return {"beta": self._beta(situation), "gamma": gamma, "eta": eta}

    def broadcast(self, state: State) -> Vectors:
        vectors = super().broadcast(state)
        return vectors | {"eta": vectors["model"].new_tensor([float(state["eta"])])}

    def rule(self, task: Task, memory: Vectors, lr: float) -> Rule:
        eta = task.vectors["eta"].item()
        return AdaMasFLRule(task, memory, 0.0 if self._is_opening(task.version) else eta)

    def _move(self, state: State, buffer: WeightedSum) -> None:  # Algorithm 3
        state["model"] = state["model"] - state["gamma"] * buffer.mean()  # lines 5 and 6
        state["momentum"] = self._momentum(state, buffer)  # line 7
        state["control"] = self._control(state, buffer)  # line 8
