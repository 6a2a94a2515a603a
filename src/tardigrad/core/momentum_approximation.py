"""Momentum approximation: "Momentum Approximation in Asynchronous Private Federated Learning" (Yu et al.).

The mean r_t of a buffer mixes the updates d_s of several versions: r_t is about the sum of W[t, s] d_s,
where W[t, s] is the weight over the divisor (staleness discount and all) of the uploads that started from
version s. Momentum would weigh d_s with M[t, s] = (1 - beta) beta^(t - s). So find weights a_t of the means
r_0, ..., r_t that bring a_t' W near M_t, and move along m_t, the sum of a_t[s] r_s.

Rows and columns count steps. A version without uploads (Poisson pace) is left out, as `ema` does.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from tardigrad.core.momentum import MomentumKind
from tardigrad.core.situation import Situation
from tardigrad.core.state import State, tensor_of
from tardigrad.core.upload import WeightedSum
from tardigrad.errors import ConfigError, RunError

Matrix = NDArray[np.float64]

SINGULAR = 1e-12
"""A row of W is a combination of the earlier ones if less than this share of its square is new."""
MOST_VECTORS = 10_000
"""The longest staleness bound."""
COLLINEAR = 1e-9
"""Two columns are collinear if the ratio of their singular values is below this."""


class AnyApproximation(MomentumKind):
    """The settings that all forms of momentum approximation share."""

    uses_versions: ClassVar[bool] = True
    default_staleness_bound: ClassVar[int | None] = 20
    beta: float = Field(default=0.9, ge=0, lt=1)
    """Share of the past: the value that is good in synchronous training."""

    def metrics(self, state: State) -> dict[str, float]:
        """Return |a_t' W - M_t|^2 / |M_t|^2 of this step (the paper's Table 4 has it for all rows
        together)."""
        return {"least_squares_error": float(state["least_squares_error"])}

    def _window(self, situation: Situation) -> int:
        """Return how many versions back a row of W reaches."""
        if situation.staleness_bound is None:
            raise ConfigError(
                "buffer.staleness_bound: momentum approximation keeps as many vectors as the bound; "
                f"none was given, {self.default_staleness_bound} is the paper's"
            )
        if situation.staleness_bound > MOST_VECTORS:
            raise ConfigError(
                "buffer.staleness_bound: momentum approximation keeps as many vectors as the bound; at most "
                f"{MOST_VECTORS:,} are possible, {situation.staleness_bound:,} was given"
            )
        return max(1, situation.staleness_bound)


class Approximation(AnyApproximation):
    """m_t = sum of a_t[s] r_s, where a_t minimises |a' W - M_t|^2 + ridge |a|^2 (Eqs. 9 and 11).

    The paper has no ridge and stores every mean. But W is nearly singular: without a ridge |a_t| grows to 1e8
    and more, and m_t is noise. With a ridge, there is an exact streaming form that keeps m and as many
    vectors as the staleness bound. Let L L' = W W' + ridge I with L lower triangular; L[t, j] is 0 for j < t
    - bound. Then, with sums over j < t,

        z_t = (r_t - sum of L[t, j] z_j) / L[t, t]
        y_t = (W_t . M_t - sum of L[t, j] beta^(t - j) y_j) / L[t, t]
        m_t = beta m_{t-1} + y_t z_t

    because W_j . M_t = beta^(t - j) W_j . M_j, so that L' a_t = (beta^(t - j) y_j)_j.
    """

    kind: Literal["approximation"] = "approximation"
    ridge: NonNegativeFloat = 1e-3
    """A smaller value is nearer to momentum, a larger one amplifies the noise of the means less. 0 works only
    if every buffer has a fresh upload."""

    def start(self, model: Tensor, situation: Situation) -> State:
        window = self._window(situation)
        return {
            "momentum": model.new_zeros(model.shape),
            "z": model.new_zeros(window, *model.shape),  # a ring: z_t has the index t mod window
            # Rows and columns t - window, ..., t - 1, the oldest first:
            "W": torch.zeros(window, window, dtype=torch.float64),
            "L": torch.eye(window, dtype=torch.float64),
            "y": torch.zeros(window, dtype=torch.float64),  # beta^(t - 1 - j) y_j
            "gram": torch.zeros(window + 1, window + 1, dtype=torch.float64),  # see _measure
            "explained": 0.0,  # |L' a_{t-1}|^2
            "target": 0.0,  # |M_{t-1}|^2
            "rows": 0,  # t
        }

    def direction(self, state: State, r: Tensor, buffer: WeightedSum) -> Tensor:
        z, W, L = (tensor_of(state, name) for name in ("z", "W", "L"))
        y = self.beta * tensor_of(state, "y")
        window, t = len(z), int(state["rows"])
        w = torch.tensor(buffer.by_version(window), dtype=torch.float64)
        target = float(w @ torch.from_numpy(momentum_row(self.beta, window)))  # W_t . M_t

        # Cholesky, row t: the part left of the diagonal solves L row = (W_j . W_t)_j.
        row = torch.linalg.solve_triangular(L, (W @ w[:-1])[:, None], upper=False)[:, 0]
        square = float(w @ w) + self.ridge
        pivot = square - float(row @ row)
        if pivot <= SINGULAR * square:
            raise RunError(
                f"version {buffer.version}: a ridge of {self.ridge:g} does not determine the weights of "
                "momentum approximation (no fresh upload in the buffer); raise algorithm.momentum.ridge, "
                "0.001 is the default, or use algorithm.momentum.kind 'minimum_norm_approximation', which "
                "needs none"
            )
        diagonal = math.sqrt(pivot)

        y_t = (target - float(row @ y)) / diagonal
        shifted = row.roll(t % window).to(r)
        z_t = torch.addmv(r, z.T, shifted, beta=1 / diagonal, alpha=-1 / diagonal)
        m = torch.add(self.beta * state["momentum"], z_t, alpha=y_t)

        self._measure(state, row, diagonal, y_t)
        z[t % window] = z_t  # in place, because it is never broadcast
        state["momentum"] = m
        state["W"] = _slide(W, w[1:])
        state["L"] = _slide(L, _shift(row, diagonal))
        state["y"] = _shift(y, y_t)
        state["rows"] = t + 1
        return m

    def _measure(self, state: State, row: Tensor, diagonal: float, y_t: float) -> None:
        """Put the error of this step into the state.

        |a_t' W - M_t|^2 = |M_t|^2 - |L' a_t|^2 - ridge |a_t|^2, because a_t is optimal. For |a_t|: the z_j
        and m are weighted sums of all means. `gram` has the inner products of the weights of z_{t-window},
        ..., z_{t-1}, m_{t-1}; they follow the recursions of z_t and m_t, where r_t is new.
        """
        turn = torch.diag(torch.ones(len(row), dtype=torch.float64), diagonal=1)
        turn[-2] = torch.cat([-row / diagonal, row.new_zeros(1)])
        turn[-1] = y_t * turn[-2]
        turn[-1, -1] = self.beta
        new = row.new_zeros(len(turn))
        new[-2], new[-1] = 1 / diagonal, y_t / diagonal
        state["gram"] = gram = turn @ tensor_of(state, "gram") @ turn.T + torch.outer(new, new)
        state["explained"] = explained = self.beta**2 * float(state["explained"]) + y_t**2
        state["target"] = target = self.beta**2 * float(state["target"]) + (1 - self.beta) ** 2
        error = target - explained - self.ridge * float(gram[-1, -1])
        state["least_squares_error"] = max(0.0, error / target)


class LightApproximation(AnyApproximation):
    """m_t = u r_t + v m_{t-1}, with the u and v that bring a_t' W nearest to M_t (Eqs. 12 to 15).

    Of the past, only m and p = a_{t-1}' W are needed. The entries of p that are older than the staleness
    bound (its tail) change only by the factor v, so that |tail|^2 and tail . M_t represent them exactly.
    While every upload is of version 0, W_t and p are collinear; then the smallest (u, v) is used.
    """

    kind: Literal["light_approximation"] = "light_approximation"

    def start(self, model: Tensor, situation: Situation) -> State:
        return {
            "momentum": model.new_zeros(model.shape),
            "p": torch.zeros(
                self._window(situation) + 1, dtype=torch.float64
            ),  # at the versions t - 1 - window, ..., t - 1
            "tail_square": 0.0,
            "tail_target": 0.0,  # tail . M_{t-1}
            "target": 0.0,  # |M_{t-1}|^2
        }

    def direction(self, state: State, r: Tensor, buffer: WeightedSum) -> Tensor:
        oldest, *younger = torch.as_tensor(
            state["p"], dtype=torch.float64
        ).tolist()  # a list in old snapshots
        window = len(younger)
        w, M = np.array(buffer.by_version(window)), momentum_row(self.beta, window)
        p = np.array([*younger, 0.0])
        tail_square = float(state["tail_square"]) + oldest**2
        tail_target = self.beta * (float(state["tail_target"]) + oldest * float(M[0]))

        # Eq. 15. |v tail - M_t|^2 on the tail is (v |tail| - tail . M_t / |tail|)^2 and a constant: one row.
        tail = math.sqrt(tail_square)
        columns = np.stack([np.append(w, 0.0), np.append(p, tail)], axis=1)
        goal = np.append(M, tail_target / tail if tail > 0 else 0.0)
        u, v = np.linalg.lstsq(columns, goal, rcond=COLLINEAR)[0].tolist()
        state["momentum"] = m = torch.add(u * r, tensor_of(state, "momentum"), alpha=v)  # Eq. 14

        p = u * w + v * p
        state["p"] = torch.from_numpy(p)
        state["tail_square"] = tail_square = v**2 * tail_square
        state["tail_target"] = tail_target = v * tail_target
        state["target"] = target = self.beta**2 * float(state["target"]) + (1 - self.beta) ** 2
        error = target - 2 * (p @ M + tail_target) + p @ p + tail_square
        state["least_squares_error"] = max(0.0, float(error / target))
        return m


def momentum_matrix(steps: int, beta: float) -> Matrix:
    """Return M of Eq. 4: (1 - beta) beta^(t - s) in row t and column s, where s <= t.

    >>> momentum_matrix(2, beta=0.5)
    array([[0.5 , 0.  ],
           [0.25, 0.5 ]])
    """
    age = np.subtract.outer(np.arange(steps), np.arange(steps))
    return np.tril((1 - beta) * beta ** np.maximum(age, 0.0))


def batch_weights(W: Matrix, beta: float, ridge: float) -> Matrix:
    """Return A, whose rows are the a_t of `Approximation`, from the whole W at once, for plots and tests.

    >>> A = batch_weights(np.eye(3), beta=0.9, ridge=0.0)
    >>> np.allclose(A, momentum_matrix(3, beta=0.9))
    True
    """
    L = np.linalg.cholesky(W @ W.T + ridge * np.eye(len(W)))
    y = np.linalg.solve(L, W @ momentum_matrix(len(W), beta).T)  # column t, as far as row t, is L' a_t
    return np.linalg.solve(L.T, np.triu(y)).T


def momentum_row(beta: float, window: int) -> Matrix:
    """Return M_t at the versions t - window, ..., t."""
    return (1 - beta) * beta ** np.arange(window, -1, -1.0)


def _shift(vector: Tensor, newest: float) -> Tensor:
    """Return the vector without its oldest entry and with `newest` at the end."""
    return torch.cat([vector[1:], vector.new_tensor([newest])])


def _slide(matrix: Tensor, newest: Tensor) -> Tensor:
    """Return the matrix without its oldest row and column and with `newest` as the last row."""
    moved = torch.zeros_like(matrix)
    moved[:-1, :-1] = matrix[1:, 1:]
    moved[-1] = newest
    return moved
