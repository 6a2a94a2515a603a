"""FedBuff, Algorithm 1: w = w - eta_g (1/K) sum of s(tau) delta, with momentum and preconditioners."""

import numpy as np
import pytest
import torch
from problem import BUFFER, LOCAL_LR, LOCAL_STEPS, X0, assert_same, gradient, run_package, schedule

import tardigrad as td


def naive_fedbuff(lr, direction, bound=6):
    """Lists of everything; `direction(means)` turns all means so far into the newest direction."""
    models, means, buffer = [X0], [], []
    for arrival in schedule(bound=bound):
        if not arrival.accepted:
            continue
        y = models[arrival.start_version].copy()
        for _ in range(LOCAL_STEPS):
            y = y - LOCAL_LR * gradient(arrival.client, y)
        delta = models[arrival.start_version] - y
        buffer.append(delta / np.sqrt(1 + arrival.staleness))
        if len(buffer) == BUFFER:
            means.append(sum(buffer) / BUFFER)
            models.append(models[-1] - lr * direction(means))
            buffer = []
    return models


def ema(means, beta):
    return (1 - beta) * sum(beta ** (len(means) - 1 - s) * r for s, r in enumerate(means))


def adam(means, beta2, adaptivity):
    v = (1 - beta2) * sum(beta2 ** (len(means) - 1 - s) * r**2 for s, r in enumerate(means))
    return np.sqrt(v) + adaptivity


def yogi(means, beta2, adaptivity, v0=0.0):
    v = np.full_like(means[0], v0)
    for r in means:
        v = v - (1 - beta2) * r**2 * np.sign(v - r**2)
    return np.sqrt(v) + adaptivity


CASES = {
    "plain": (td.FedBuff(lr=0.7), 0.7, lambda means: means[-1]),
    "ema": (td.FedBuff(lr=0.7, momentum=td.EMA(beta=0.8)), 0.7, lambda means: ema(means, 0.8)),
    "negative ema": (td.FedBuff(lr=0.7, momentum=td.EMA(beta=-0.5)), 0.7, lambda means: ema(means, -0.5)),
    "heavy ball": (
        td.FedBuff(lr=0.3, momentum=td.HeavyBall(beta=0.8)), 0.3, lambda means: ema(means, 0.8) / 0.2,
    ),
    "nesterov": (
        td.FedBuff(lr=0.7, momentum=td.Nesterov(beta=0.8)), 0.7,
        lambda means: 0.8 * ema(means, 0.8) + 0.2 * means[-1],
    ),
    "ema and adam": (
        td.FedBuff(lr=0.05, momentum=td.EMA(beta=0.6), preconditioner=td.Adam(beta2=0.9, adaptivity=0.01)),
        0.05, lambda means: ema(means, 0.6) / adam(means, 0.9, 0.01),
    ),
    "adagrad": (
        td.FedBuff(lr=0.1, preconditioner=td.AdaGrad(adaptivity=0.01)), 0.1,
        lambda means: means[-1] / (np.sqrt(sum(r**2 for r in means)) + 0.01),
    ),
    "yogi": (
        td.FedBuff(lr=0.05, preconditioner=td.Yogi(beta2=0.9, adaptivity=0.01)), 0.05,
        lambda means: means[-1] / yogi(means, 0.9, 0.01),
    ),
    "yogi, v0": (
        td.FedBuff(lr=0.05, preconditioner=td.Yogi(beta2=0.9, adaptivity=0.01, v0=0.2)), 0.05,
        lambda means: means[-1] / yogi(means, 0.9, 0.01, 0.2),
    ),
    "sum": (td.FedBuff(lr=0.2, combine="sum"), 0.2, lambda means: BUFFER * means[-1]),
    "sum, ema and adam": (
        td.FedBuff(
            lr=0.05, momentum=td.EMA(beta=0.6), combine="sum",
            preconditioner=td.Adam(beta2=0.9, adaptivity=0.01),
        ),
        0.05, lambda means: ema(summed(means), 0.6) / adam(summed(means), 0.9, 0.01),
    ),
}  # fmt: skip


def summed(means):
    return [BUFFER * r for r in means]


def test_a_sum_by_examples_is_refused():
    with pytest.raises(td.ConfigError, match=r"algorithm\.combine: .* use 'mean'"):
        td.Config(algorithm=td.FedBuff(combine="sum"), buffer=td.Buffer(weights="examples")).resolved(20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_fedbuff_follows_the_paper(case, dtype):
    algorithm, lr, direction = CASES[case]
    models, _ = run_package(algorithm, dtype)
    assert_same(models, naive_fedbuff(lr, direction), dtype)
