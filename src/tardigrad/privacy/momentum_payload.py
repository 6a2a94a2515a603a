"""Private versions for momentum approximation: "Momentum Approximation in Asynchronous Private Federated
Learning" (Yu et al.), Eqs. 16 to 19.

The version that an upload started from reveals when its client took part, so it is protected together with
the delta. The payload of an upload is its clipped delta followed by one coordinate for each possible
staleness, 0 first; the coordinate of the upload's own staleness is gamma and the others are 0. The paper has
a coordinate for each version, but those beyond the staleness bound are always 0. Weights are at most 1 and
multiply the whole payload, so its norm is at most S = sqrt(S_D^2 + gamma^2), where S_D is the clip (Eq. 16).
The layers `clip` and `private_versions` build the payload; this module has its formulas.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tardigrad.errors import ConfigError


def gamma_from_overhead(clip: float, overhead: float) -> float:
    """Return the gamma with S = overhead S_D; with 1.1 the deltas get 10 % more noise (Appendix B.2).

    >>> round(gamma_from_overhead(clip=1.0, overhead=1.1), 7)
    0.4582576
    """
    if not overhead > 1:
        raise ConfigError(f"overhead = {overhead:g}: versions cost some noise, so it must be above 1, as 1.1")
    return clip * math.sqrt(overhead**2 - 1)


def xi_from_gamma(clip: float, sigma: float, gamma: float) -> float:
    """Return xi = sigma S / gamma, the standard deviation of the noise in the count of one version (Eq. 17).

    >>> round(xi_from_gamma(clip=1.0, sigma=0.723238, gamma=gamma_from_overhead(1.0, 1.1)), 5)
    1.73606
    """
    return sigma * math.hypot(clip, gamma) / gamma


def gamma_from_xi(clip: float, sigma: float, xi: float) -> float:
    """Return the gamma with which the noise in the count of one version has the standard deviation xi.

    >>> round(gamma_from_xi(clip=1.0, sigma=0.723238, xi=1.73606), 5)
    0.45826
    """
    if not xi > sigma > 0:
        raise ConfigError(
            f"privacy.version_noise: versions get at least the noise of the noise multiplier, which is "
            f"{sigma:g}, so it must be above that (and that above 0); {xi:g} was given"
        )
    return sigma * clip / math.sqrt((xi - sigma) * (xi + sigma))  # xi = sigma sqrt(clip^2 + gamma^2) / gamma


def noisy_row(versions: Tensor, gamma: float, divisor: float, step: int) -> Tensor:
    """Return W_t at the versions t - window, ..., t, from the versions' part of a noisy sum (Eq. 19).

    The order is that of momentum approximation, the oldest version first. Versions before 0 do not exist, so
    their weight is set to 0.
    """
    row = versions.double().flip(0) / (gamma * divisor)
    row[: max(0, len(row) - 1 - step)] = 0
    return row


def nearest_row(row: Tensor, weights: Tensor, total: float | None) -> Tensor:
    """Return the possible row that is nearest to a noisy one.

    It is never farther from the true row than the noisy one is, and it is post-processing: nothing private is
    used. No entry of a possible row is negative. `weights` are the weights of an upload of each version, in
    the order of `row`. Where a buffer has a fixed number K of uploads, the sum of row / weights is known:
    `total` is K over the divisor. `total` is None where the number of uploads is itself private (Poisson
    sampling).

    >>> nearest_row(torch.tensor([-0.1, 0.3, 1.0]), torch.ones(3), total=1.0)
    tensor([0.0000, 0.1500, 0.8500])
    """
    if total is None:
        return row.clamp(min=0)
    # Lagrange: max(0, row - theta / weights) for the theta that gives the right sum. As theta grows, entries
    # become 0 in ascending order of row * weights.
    order = torch.argsort(row * weights, descending=True)
    r, w = row[order], weights[order]
    thetas = (torch.cumsum(r / w, 0) - total) / torch.cumsum(1 / w**2, 0)
    kept = int((r * w > thetas).nonzero().max())
    return (row - thetas[kept] / weights).clamp(min=0)
