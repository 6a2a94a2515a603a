"""Private versions for momentum approximation: "Momentum Approximation in Asynchronous Private Federated
Learning" (Yu et al.), Eqs. 16 to 19.

Which version an upload started from tells when its client took part, so it is protected with the delta: the
payload is the clipped delta and, behind it, gamma at the place of its version. Places count staleness, 0
first: the paper has one for each version, but those beyond the staleness bound are empty for all to see.
Weights are at most 1 and multiply the whole payload, so they leave the norm within S.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tardigrad.errors import ConfigError


def joint_sensitivity(clip: float, gamma: float) -> float:
    """S = sqrt(S_D^2 + gamma^2): the norm of a payload whose delta was clipped to S_D (Eq. 16).

    >>> round(joint_sensitivity(clip=1.0, gamma=0.4582576), 6)
    1.1
    """
    return math.hypot(clip, gamma)


def gamma_from_overhead(clip: float, overhead: float) -> float:
    """The gamma with S = overhead S_D; with 1.1 the deltas get 10 % more noise for it (Appendix B.2).

    >>> round(gamma_from_overhead(clip=1.0, overhead=1.1), 7)
    0.4582576
    """
    if not overhead > 1:
        raise ConfigError(f"overhead = {overhead:g}: versions cost some noise, so it must be above 1, as 1.1")
    return clip * math.sqrt(overhead**2 - 1)


def gamma_from_xi(clip: float, sigma: float, xi: float) -> float:
    """gamma = sigma / sqrt(xi^2 - sigma^2) S_D, with which the counts of versions get noise xi (Eq. 17)."""
    if not xi > sigma:
        raise ConfigError(f"xi = {xi:g}: the noise of the versions must be above sigma, which is {sigma:g}")
    return sigma / math.sqrt(xi**2 - sigma**2) * clip


def xi_from_gamma(clip: float, sigma: float, gamma: float) -> float:
    """xi = sigma S / gamma: standard deviation of the noise in the count of one version (Eq. 17).

    >>> round(xi_from_gamma(clip=1.0, sigma=0.723238, gamma=gamma_from_overhead(1.0, 1.1)), 5)
    1.73606
    """
    return sigma * joint_sensitivity(clip, gamma) / gamma


def payload(delta: Tensor, staleness: int, window: int, clip: float, gamma: float) -> Tensor:
    """clip(delta, S_D) and gamma at the place of the staleness, of 0, ..., window (Eq. 16)."""
    if not 0 <= staleness <= window:
        raise ConfigError(f"staleness {staleness}: the payload has places for 0 to {window}")
    joint = delta.new_zeros(len(delta) + window + 1)
    norm = float(torch.linalg.vector_norm(delta, dtype=torch.float64))
    torch.mul(delta, min(1.0, clip / norm) if norm > 0 else 1.0, out=joint[: len(delta)])
    joint[len(delta) + staleness] = gamma
    return joint


def split(total: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """A noisy sum of payloads: the deltas' part (Eq. 18, before the division by C) and the versions'."""
    return total[: -window - 1], total[-window - 1 :]


def noisy_row(versions: Tensor, gamma: float, divisor: float, step: int) -> Tensor:
    """W_t at the versions t - window, ..., t, from the versions' part of a noisy sum (Eq. 19).

    The order is momentum approximation's, the oldest first. Versions before 0 do not exist: their weight
    is 0, not noise.
    """
    row = versions.double().flip(0) / (gamma * divisor)
    row[: max(0, len(row) - 1 - step)] = 0
    return row


def nearest_row(row: Tensor, weights: Tensor, total: float | None) -> Tensor:
    """The possible row nearest to a noisy one: never farther from the true one, and nothing private is used.

    No entry is negative. `weights` are those of an upload of each version, in the order of `row`; where
    each of a fixed number K of uploads has that weight, the sum of row / weights is K over the divisor:
    `total`. None where the number of uploads is itself unknown (Poisson sampling).

    >>> nearest_row(torch.tensor([-0.1, 0.3, 1.0]), torch.ones(3), total=1.0)
    tensor([0.0000, 0.1500, 0.8500])
    """
    if total is None:
        return row.clamp(min=0)
    # Lagrange: max(0, row - theta / weights) for the theta with the right sum. Entries leave as theta
    # grows, the one with the smallest row * weights first.
    order = torch.argsort(row * weights, descending=True)
    r, w = row[order], weights[order]
    thetas = (torch.cumsum(r / w, 0) - total) / torch.cumsum(1 / w**2, 0)
    kept = int((r * w > thetas).nonzero().max())
    return (row - thetas[kept] / weights).clamp(min=0)
