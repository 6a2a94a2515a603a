"""Momentum approximation as the paper has it: no ridge, and every mean is stored."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from tardigrad.core.momentum_approximation import AnyApproximation, momentum_row
from tardigrad.core.situation import Situation
from tardigrad.core.state import State, tensor_of
from tardigrad.core.upload import WeightedSum


class MinimumNormApproximation(AnyApproximation):
    """m_t = sum of a_t[s] r_s, where a_t minimises |a' W - M_t|^2; of all that do, the shortest (Eqs. 9, 11).

    W may be singular: a buffer without a fresh upload is no problem. The shortest solution is not a sum that
    goes on from step to step, so that all means are kept: T vectors after T steps, and as much work at each.
    It is for studies of short runs; `approximation` is for all others.

    W is nearly singular in general, and its smallest singular values make weights of 1e8 and more. Those
    below `cutoff` times the largest count as 0, which takes the place of the ridge.
    """

    kind: Literal["minimum_norm_approximation"] = "minimum_norm_approximation"
    cutoff: float = Field(default=0.01, gt=0, lt=1)
    """Singular values of W below this share of the largest count as 0."""

    def start(self, model: Tensor, situation: Situation) -> State:
        return {
            "means": model.new_zeros(0, *model.shape),
            "W": torch.zeros(0, self._window(situation) + 1, dtype=torch.float64),
            "momentum": model.new_zeros(model.shape),
        }

    def direction(self, state: State, r: Tensor, buffer: WeightedSum) -> Tensor:
        band = tensor_of(state, "W")  # row t at the versions t - window, ..., t
        row = torch.tensor([buffer.by_version(band.shape[1] - 1)], dtype=torch.float64)
        state["W"] = band = torch.cat([band, row])
        state["means"] = means = torch.cat([tensor_of(state, "means"), r[None]])
        steps, window = len(band), band.shape[1] - 1
        W = np.zeros((steps, window + steps))
        for t, values in enumerate(band.numpy()):
            W[t, t : t + window + 1] = values
        W = W[:, window:]  # versions before 0 do not exist
        M = momentum_row(self.beta, steps - 1)
        a = np.linalg.lstsq(W.T, M, rcond=self.cutoff)[0]
        state["least_squares_error"] = float(((a @ W - M) ** 2).sum() / (M @ M))
        state["momentum"] = m = torch.tensordot(torch.from_numpy(a).to(means), means, dims=1)
        return m
