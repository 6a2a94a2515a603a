"""An auditor's observations of a run, and the score of each canary that follows from them.

For each canary, the auditor projects every released sum, less the other clients' contributions, onto the
canary's direction. The result s_t is noise with a known covariance between steps, plus the canary's weight
a_t if it is included, plus a small part of the other canaries, whose directions are nearly orthogonal and
half of which are included. The best linear test is a' covariance^-1 (s - h), where h is half of what all
canaries together contribute along this direction. (h uses the length that contributions appear to have,
because the clip may be broken.) `audit` turns these scores into guesses and a lower bound on epsilon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tardigrad.errors import ConfigError
from tardigrad.privacy.accounting import BySampling
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.noise import Noise

Matrix = NDArray[np.float64]


@dataclass
class Observations:
    """The auditor's observations, step by step. The unit of length is the clip."""

    weights: list[Matrix] = field(default_factory=list)
    """The weight of each canary's contribution; 0 where it took no part."""
    along: list[Matrix] = field(default_factory=list)
    """The released sum without the other clients, along each canary's direction."""
    of_all: list[Matrix] = field(default_factory=list)
    """The same projection of what the canaries would have sent if all of them were included."""
    of_included: list[Matrix] = field(default_factory=list)
    """The same projection of what the included canaries sent, clipped as promised."""
    noise: dict[str, list[Matrix]] = field(default_factory=dict)
    """Sampled coordinates of each released vector, without any client's contribution, by the vector's
    name."""
    broken: dict[str, str] = field(default_factory=dict)
    """Promises that were seen to be broken, each described when it was first broken."""


def canary_scores(
    record: Observations, included: list[bool], guarantee: Guarantee
) -> tuple[list[float], list[bool]]:
    """Return, for each canary that may be visible, how much it seems to be included, and whether it is.

    Where sampling is trusted, the steps in which a canary took part are secret, and the scores do not use
    them.
    """
    along, weights = np.array(record.along).T, np.array(record.weights).T  # canaries x steps
    truth = np.array(included)
    if isinstance(guarantee.mode, BySampling):
        likelihoods = log_likelihoods(along, guarantee.mode.rate, noise_scale(guarantee))
        return likelihoods.tolist(), truth.tolist()
    present = weights.any(axis=1)
    if present.sum() < 2:
        raise ConfigError(
            f"canaries: only {present.sum()} of them took part; give more of them, or more steps"
        )
    of_all = np.array(record.of_all).T
    whitened = np.linalg.solve(noise_covariance(guarantee, len(record.weights)), weights.T).T
    length = max(1.0, 2 * float((whitened * along).sum() / (whitened * of_all).sum()))
    scores = (whitened * (along - length * of_all / 2)).sum(axis=1)
    return scores[present].tolist(), truth[present].tolist()


def noise_scale(guarantee: Guarantee) -> float:
    """Return the factor of the noise in a released sum, in clips."""
    return guarantee.noise_multiplier * guarantee.overhead


def noise_covariance(guarantee: Guarantee, steps: int) -> Matrix:
    """Return the covariance of the noise of the first steps, for a multiplier of 1."""
    k, b = promised_limits(guarantee)
    mixing = mixing_matrix(guarantee.noise, steps, guarantee.steps, k, b)
    return mixing @ mixing.T


def promised_limits(guarantee: Guarantee) -> tuple[int, int]:
    """Return how often a client may take part, and the smallest distance in steps."""
    limits = guarantee.limits
    return (limits.participations, limits.separation) if limits else (guarantee.steps, 1)


def log_likelihoods(along: Matrix, rate: float, sigma: float) -> Matrix:
    """Return the log-likelihood ratio of included against excluded, for canaries sampled at this rate.

    If the canary is included, a step's number is normal around 1 with probability `rate`, and otherwise
    around 0.
    """
    joined = math.log(rate) + (along - 0.5) / sigma**2
    stayed = math.log1p(-rate) if rate < 1 else -math.inf
    total: Matrix = np.logaddexp(joined, stayed).sum(axis=1)
    return total


def mixing_matrix(noise: Noise, steps: int, planned: int, k: int, b: int) -> Matrix:
    """Return the coefficients of the normal vectors in the noise of each step, found with unit vectors."""
    drawn = 0

    def unit(dimension: int) -> Tensor:
        nonlocal drawn
        vector = torch.zeros(dimension)
        vector[drawn] = 1.0
        drawn += 1
        return vector

    state = noise.start(2 * steps + 1, planned, k, b)  # a tree has fewer nodes than twice its leaves
    return np.array([noise.draw(state, unit).double().numpy() for _ in range(steps)])
