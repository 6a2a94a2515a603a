"""Poisson sampling: each client joins each step with probability q, and nobody knows who did.

That amplifies privacy. dp-accounting does the sums: by Renyi divergences ("rdp", fast) or by the privacy
loss distribution ("pld", tight, seconds a time; what was computed once is remembered). Adjacency is to add
or to remove one client.
"""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from tardigrad.errors import ConfigError
from tardigrad.privacy.gaussian import LARGEST, check_delta, gaussian_epsilon

By = Literal["rdp", "pld"]


def poisson_epsilon(sigma: float, q: float, steps: int, delta: float, by: By = "rdp") -> float:
    """The epsilon of so many steps with noise sigma (over the clip).

    >>> round(poisson_epsilon(sigma=1.0, q=5e-4, steps=2000, delta=1e-7), 4)
    0.9133
    """
    check_delta(delta)
    if not 0 <= q <= 1:
        raise ConfigError(f"q = {q:g}: a sampling rate lies between 0 and 1")
    if not sigma >= 0:
        raise ConfigError(f"noise multiplier {sigma:g}: it must be at least 0")
    if q == 0 or steps == 0:
        return 0.0
    if sigma == 0:
        return math.inf
    if q == 1 and by == "pld":  # nobody is left out: one Gaussian mechanism
        return gaussian_epsilon(math.sqrt(steps) / sigma, delta)
    return _rdp_epsilon(sigma, q, steps, delta) if by == "rdp" else _pld_epsilon(sigma, q, steps, delta)


def rdp_epsilon(mu: float, delta: float) -> float:
    """Of one Gaussian release by Renyi divergences: looser than `gaussian_epsilon`, to compare with papers.

    >>> round(rdp_epsilon(mu=12**0.5 / 8, delta=1e-7), 4)
    2.2681
    """
    return poisson_epsilon(1 / mu, 1.0, 1, delta, "rdp") if mu > 0 else 0.0


def poisson_delta(sigma: float, q: float, steps: int, epsilon: float, by: By = "rdp") -> float:
    """The smallest delta at this epsilon."""
    if q == 0 or steps == 0:
        return 0.0
    return float(_composed(sigma, q, steps, by).get_delta(epsilon))


def poisson_sigma(epsilon: float, q: float, steps: int, delta: float, by: By = "rdp") -> float:
    """The least noise for this epsilon, to six digits; `poisson_epsilon` of it is not above epsilon."""
    if not epsilon > 0:
        raise ConfigError(f"epsilon = {epsilon:g}: it must be above 0")
    if q == 0 or steps == 0:
        return 0.0
    return least_noise(lambda sigma: poisson_epsilon(sigma, q, steps, delta, by), epsilon)


def least_noise(epsilon_of: Callable[[float], float], target: float) -> float:
    """The smallest noise at which a falling epsilon is at most `target`, to a millionth, from above."""
    high = 1.0
    while epsilon_of(high) > target:
        high *= 2
        if high > LARGEST:
            raise ConfigError(f"epsilon = {target:g}: no noise is large enough; raise epsilon or delta")
    low = high / 2
    while epsilon_of(low) <= target:
        high, low = low, low / 2
        if low < 1 / LARGEST:
            raise ConfigError(f"epsilon = {target:g}: no noise is needed for it; lower epsilon")
    # In logarithms epsilon is nearly straight there, so few of these costly values are needed.
    sigma = math.exp(
        scipy.optimize.brentq(
            lambda x: math.log(max(epsilon_of(math.exp(x)), 1e-300) / target),
            math.log(low),
            math.log(high),
            xtol=1e-7,
        )
    )
    while epsilon_of(sigma) > target:
        sigma *= 1 + 2e-7
    return sigma


@lru_cache(maxsize=1024)
def _rdp_of_a_step(sigma: float, q: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    accountant = _composed(sigma, q, 1, "rdp")
    return np.asarray(accountant.orders), np.asarray(accountant.rdp)


def _rdp_epsilon(sigma: float, q: float, steps: int, delta: float) -> float:
    orders, divergences = _rdp_of_a_step(sigma, q)  # they add up over steps
    epsilon, _ = _dp_accounting().rdp.compute_epsilon(orders, steps * divergences, delta)
    return float(epsilon)


@lru_cache(maxsize=4096)
def _pld_epsilon(sigma: float, q: float, steps: int, delta: float) -> float:
    return float(_composed(sigma, q, steps, "pld").get_epsilon(delta))


def _composed(sigma: float, q: float, steps: int, by: By) -> Any:
    dp = _dp_accounting()
    accountant = dp.rdp.RdpAccountant() if by == "rdp" else dp.pld.PLDAccountant()
    step = dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(sigma)) if q < 1 else dp.GaussianDpEvent(sigma)
    return accountant.compose(step, steps)


def _worth_saying(record: logging.LogRecord) -> bool:
    """Nobody needs to hear of an order that was left out: epsilon is the least over those that are left."""
    return "Excluding this order" not in str(record.msg)


def _dp_accounting() -> Any:
    try:
        logging.getLogger("absl").addFilter(_worth_saying)
        return importlib.import_module("dp_accounting")
    except ImportError as error:
        raise ConfigError(
            "accounting for Poisson sampling needs dp-accounting: pip install 'tardigrad[privacy]'"
        ) from error
