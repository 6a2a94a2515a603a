"""Client optimisers: how a local step moves the model. Each works on the flat vector and makes the update of
the optimiser in torch.optim that it is named after."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from tardigrad.core.precision import at_least_float32
from tardigrad.core.setting import Setting, by_name
from tardigrad.core.upload import Vectors


class _Optimiser(Setting):
    """An update rule and the names of its state, which are vectors as long as the model, and counters."""

    default_lr: ClassVar[float] = 0.1
    """The value of local.lr if the config has none."""
    decoupled: ClassVar[bool] = False
    """Whether weight decay shrinks the parameters, in place of being added to the gradient."""
    vectors: ClassVar[int] = 1
    """How many vectors as long as the model the state has."""
    keep: bool = False
    """Whether a client keeps the state in its memory for its next trip. Otherwise every trip begins with
    zeros."""

    @property
    def kept_vectors(self) -> int:
        """How many vectors a client keeps in its memory."""
        return self.vectors if self.keep else 0

    @abstractmethod
    def begin(self, x: Tensor) -> Vectors:
        """Return the state before the first step."""

    @abstractmethod
    def move(self, state: Vectors, x: Tensor, direction: Tensor, lr: float) -> None:
        """Make one step: change `x` and `state` in place; leave `direction` as it is."""


class LocalSGD(Setting):
    """Plain SGD: x = x - lr g."""

    kind: Literal["sgd"] = "sgd"
    default_lr: ClassVar[float] = 0.1
    decoupled: ClassVar[bool] = False
    keep: ClassVar[bool] = False
    kept_vectors: ClassVar[int] = 0

    def begin(self, x: Tensor) -> Vectors:
        """Return an empty state."""
        return {}

    def move(self, state: Vectors, x: Tensor, direction: Tensor, lr: float) -> None:
        """Make one step."""
        x.sub_(direction, alpha=lr)


class LocalMomentum(_Optimiser):
    """SGD with momentum, as torch.optim.SGD has it: m = beta m + g, then x = x - lr m.

    >>> state, x = LocalMomentum().begin(torch.zeros(1)), torch.zeros(1)
    >>> for _ in range(2):
    ...     LocalMomentum(beta=0.5).move(state, x, torch.ones(1), lr=1.0)
    >>> x
    tensor([-2.5000])
    """

    kind: Literal["momentum"] = "momentum"
    beta: float = Field(default=0.9, ge=0, lt=1)
    """Share of the past in m (torch: momentum)."""
    nesterov: bool = False
    """Nesterov's momentum: step along g + beta m, in place of m."""

    def begin(self, x: Tensor) -> Vectors:
        return {"momentum": torch.zeros_like(at_least_float32(x))}

    def move(self, state: Vectors, x: Tensor, direction: Tensor, lr: float) -> None:
        m = state["momentum"].mul_(self.beta).add_(direction)
        x.sub_(m.mul(self.beta).add_(direction) if self.nesterov else m, alpha=lr)


class AdamW(_Optimiser):
    """AdamW, as torch.optim.AdamW has it: m and v are running means of g and g^2, whose bias is corrected,
    and x = x - lr m / (sqrt(v) + eps). local.weight_decay shrinks x by lr times weight_decay before."""

    kind: Literal["adamw"] = "adamw"
    default_lr: ClassVar[float] = 0.001
    decoupled: ClassVar[bool] = True
    vectors: ClassVar[int] = 2
    betas: tuple[
        Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]
    ] = (0.9, 0.999)  # fmt: skip
    """Shares of the past in m and in v."""
    eps: PositiveFloat = 1e-8
    """Added to the root of v."""

    def begin(self, x: Tensor) -> Vectors:
        wide = at_least_float32(x)
        return {
            "first_moment": torch.zeros_like(wide),
            "second_moment": torch.zeros_like(wide),
            "steps": torch.zeros(1, dtype=torch.int64),
        }

    def move(self, state: Vectors, x: Tensor, direction: Tensor, lr: float) -> None:
        (beta1, beta2), g = self.betas, at_least_float32(direction)
        state["steps"] += 1
        t = int(state["steps"])
        m = state["first_moment"].lerp_(g, 1 - beta1)
        v = state["second_moment"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
        root = v.sqrt().div_(math.sqrt(1 - beta2**t)).add_(self.eps)
        x.addcdiv_(m, root, value=-lr / (1 - beta1**t))


ClientOptimiser = Annotated[LocalSGD | LocalMomentum | AdamW, Field(discriminator="kind"), by_name]
