"""Momentum approximation: the five matrices of "Momentum Approximation in Asynchronous Private Federated
Learning" (Yu et al., Figure 2), computed from the uploads on record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from pydantic import TypeAdapter

from tardigrad.core.momentum_approximation import (
    COLLINEAR,
    Approximation,
    LightApproximation,
    Matrix,
    batch_weights,
    momentum_matrix,
)
from tardigrad.core.step import Momentum
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.reading import parse_config
from tardigrad.experiments.report.chart import BLUE, ORANGE, Chart, faint, panel, slug
from tardigrad.experiments.report.sources import RunSource, Series

STEPS = 60
"""The matrices show this many steps, from the first."""


@dataclass(frozen=True)
class Matrices:
    """The weights that momentum should have, and those that it has."""

    M: Matrix
    """The weights of momentum without staleness."""
    W: Matrix
    """Row t: how much of step t started from each version."""
    A: Matrix
    """The weights of the steps that bring AW near M."""

    @property
    def MW(self) -> Matrix:
        """The weights of plain momentum with these uploads."""
        return self.M @ self.W

    @property
    def AW(self) -> Matrix:
        """The weights of momentum approximation with these uploads."""
        return self.A @ self.W

    def error(self, of: Matrix) -> float:
        """Return the squared distance from M, over the squared norm of M."""
        return float(np.sum((of - self.M) ** 2) / np.sum(self.M**2))


def matrix_charts(entries: list[Series]) -> list[Chart]:
    """Return five charts of the first seed of each entry that approximates momentum."""
    charts = []
    for number, entry in enumerate(entries):
        found = rebuild(entry.first)
        if found is None:
            continue
        top = float(found.M.max())
        meanings = {
            "M": (found.M, top, "what momentum should weigh: the newest updates most"),
            "MW": (found.MW, top, f"what plain momentum comes to: {found.error(found.MW):.0%} off"),
            "AW": (found.AW, top, f"what the approximation comes to: {found.error(found.AW):.1%} off"),
            "W": (found.W, _high(found.W), "how much of a step started from which version"),
            "A": (found.A, _high(found.A), "the weights of the steps that do it"),
        }
        for name, (matrix, full, meaning) in meanings.items():
            negative = "; orange is negative" if matrix.min() < -1e-6 * full else ""
            says = f"{name} is {meaning} (full colour: {full:.2g} and more{negative})."
            title = f"{entry.label}: {name}"
            figure = _draw(matrix, full, "step" if name == "A" else "version")
            charts.append(Chart(f"matrix-{number}-{slug(entry.label)}-{name.lower()}", title, says, figure))
    return charts


def rebuild(run: RunSource) -> Matrices | None:
    """Return the matrices of a run; None without momentum approximation, or if a step has no mass."""
    momentum = _momentum(run)
    trips = run.record.trips
    made = int(run.record.steps["version"].max(initial=0))
    steps = min(made, STEPS)
    if momentum is None or steps < 2:
        return None
    counted = trips.accepted & (trips.step <= steps)
    W = np.zeros((steps, steps))
    mass = np.zeros(steps)
    law = parse_config(run.settings, str(run.folder / "config.toml")).algorithm.law
    for step, version, staleness, weight in zip(
        trips.step[counted] - 1,
        trips.start_version[counted],
        trips.staleness[counted],
        trips.weight[counted],
    ):
        W[step, version] += weight
        discount = law(int(staleness))
        if discount == 0:
            return None  # such an upload does not say how much it weighs otherwise
        mass[step] += weight / discount  # the discount does not enter the divisor
    if (mass == 0).any():
        return None
    W /= mass[:, None]
    M = momentum_matrix(steps, momentum.beta)
    if isinstance(momentum, LightApproximation):
        return Matrices(M, W, light_weights(W, M))
    return Matrices(M, W, batch_weights(W, momentum.beta, momentum.ridge))


def light_weights(W: Matrix, M: Matrix) -> Matrix:
    """Return A of the light form: a_t = u e_t + v a_{t-1} (Eqs. 12 and 15)."""
    A = np.zeros_like(W)
    for t in range(len(W)):
        past = A[t - 1] if t else np.zeros(len(W))
        u, v = np.linalg.lstsq(np.stack([W[t], past @ W], axis=1), M[t], rcond=COLLINEAR)[0]
        A[t] = v * past
        A[t, t] += u
    return A


def _momentum(run: RunSource) -> Approximation | LightApproximation | None:
    setting = run.settings.get("algorithm", {}).get("momentum")
    if not isinstance(setting, dict) or "least_squares_error" not in run.record.steps:
        return None
    try:
        momentum = TypeAdapter(Momentum).validate_python(setting)
    except (ValueError, ConfigError):
        return None
    return momentum if isinstance(momentum, Approximation | LightApproximation) else None


def _high(matrix: Matrix) -> float:
    """Return the 98 % quantile of the entries: a few large ones would make the others too faint to see."""
    return float(np.quantile(np.abs(matrix[matrix != 0]), 0.98))


def _draw(matrix: Matrix, full: float, across: str) -> Figure:
    with panel(210, 200) as (figure, axis):
        extent = (-0.5, len(matrix) - 0.5, len(matrix) - 0.5, -0.5)
        for sign, colour in ((1, BLUE), (-1, ORANGE)):
            axis.imshow(
                np.maximum(sign * matrix, 0), cmap=faint(colour), vmin=0, vmax=full, extent=extent,
                interpolation="none",
            )  # fmt: skip
        axis.grid(visible=False)
        axis.set_xlabel(across)
        axis.set_ylabel("step")
        axis.locator_params(nbins=4, integer=True)
    return figure
