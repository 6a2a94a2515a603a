"""Poisson sampling: each client joins each step with probability q, and nobody knows who did.

That amplifies privacy. The package dp-accounting does the accounting: by Renyi divergences ("rdp", fast) or
by the privacy loss distribution ("pld", tight, takes seconds; results are cached). Two runs are adjacent if
one client is added or removed.
"""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Literal, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from tardigrad.core.extras import pip_install
from tardigrad.errors import ConfigError
from tardigrad.privacy.gaussian import LARGEST, check_delta, gaussian_epsilon

By = Literal["rdp", "pld"]


class _Accountant(Protocol):
    """The methods that are used of an accountant of dp-accounting."""

    def get_epsilon(self, target_delta: float) -> float: ...

    def get_delta(self, target_epsilon: float) -> float: ...

    def compose(self, event: object, count: int) -> _Accountant: ...


def poisson_epsilon(sigma: float, q: float, steps: int, delta: float, by: By = "rdp") -> float:
    """Return the epsilon of `steps` steps with a noise multiplier of `sigma` and a sampling rate of `q`.

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
    if q == 1 and by == "pld":  # everybody joins every step: one Gaussian mechanism
        return gaussian_epsilon(math.sqrt(steps) / sigma, delta)
    return _rdp_epsilon(sigma, q, steps, delta) if by == "rdp" else _pld_epsilon(sigma, q, steps, delta)


def poisson_delta(sigma: float, q: float, steps: int, epsilon: float, by: By = "rdp") -> float:
    """Return the smallest delta at this epsilon."""
    if q == 0 or steps == 0:
        return 0.0
    return float(_composed(sigma, q, steps, by).get_delta(epsilon))


def poisson_sigma(epsilon: float, q: float, steps: int, delta: float, by: By = "rdp") -> float:
    """Return the least noise for this epsilon, to six digits; its `poisson_epsilon` is at most epsilon."""
    if not epsilon > 0:
        raise ConfigError(f"epsilon = {epsilon:g}: it must be above 0")
    if q == 0 or steps == 0:
        return 0.0
    return least_noise(lambda sigma: poisson_epsilon(sigma, q, steps, delta, by), epsilon)


def least_noise(epsilon_of: Callable[[float], float], target: float) -> float:
    """Return the smallest noise at which epsilon, which falls with it, is at most `target`.

    It is exact to a millionth, and never too small.
    """
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
    # On a log-log scale epsilon is nearly linear here, so few of these costly evaluations are needed.
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
    """Return the orders and the Renyi divergences of one step."""
    dp = _dp_accounting()
    accountant = dp.rdp.RdpAccountant().compose(_event(dp, sigma, q), 1)
    return np.asarray(accountant.orders), np.asarray(accountant.rdp)


def _rdp_epsilon(sigma: float, q: float, steps: int, delta: float) -> float:
    orders, divergences = _rdp_of_a_step(sigma, q)  # they add up over steps
    epsilon, _ = _dp_accounting().rdp.compute_epsilon(orders, steps * divergences, delta)
    return float(epsilon)


@lru_cache(maxsize=4096)
def _pld_epsilon(sigma: float, q: float, steps: int, delta: float) -> float:
    return float(_composed(sigma, q, steps, "pld").get_epsilon(delta))


def _composed(sigma: float, q: float, steps: int, by: By) -> _Accountant:
    """Return an accountant to which so many steps were added."""
    dp = _dp_accounting()
    accountant: _Accountant = dp.rdp.RdpAccountant() if by == "rdp" else dp.pld.PLDAccountant()
    return accountant.compose(_event(dp, sigma, q), steps)


def _event(dp: ModuleType, sigma: float, q: float) -> object:
    """Return one step as dp-accounting describes it."""
    gaussian = dp.GaussianDpEvent(sigma)
    return dp.PoissonSampledDpEvent(q, gaussian) if q < 1 else gaussian


def _is_relevant(record: logging.LogRecord) -> bool:
    """Return False for messages about excluded orders: epsilon is the minimum over those that remain."""
    return "Excluding this order" not in str(record.msg)


def _dp_accounting() -> ModuleType:
    try:
        logging.getLogger("absl").addFilter(_is_relevant)
        return importlib.import_module("dp_accounting")
    except ImportError as error:
        raise ConfigError(
            f"accounting for Poisson sampling needs dp-accounting: {pip_install('privacy')}"
        ) from error
