"""Robust FedBuff: uploads of some clients are not finite, others are too long, late ones have fewer votes.

Robust means as Yin et al. define them, on the schedule of the other conformance tests, with momentum.
"""

import numpy as np
import pytest
import torch
from problem import (
    BOUND,
    BUFFER,
    LOCAL_LR,
    LOCAL_STEPS,
    SIZE,
    X0,
    assert_same,
    gradient,
    run_package,
    schedule,
)

import tardigrad as td

NORM_BOUND = 0.8


def is_broken(client, start_version):
    """Whether an upload is not finite: of some clients, not always."""
    return client in (0, 3) and start_version % 3 == 1


class BrokenRule(td.Rule):
    def __init__(self, task, memory, lr):
        super().__init__(task, memory, lr)
        self.broken = is_broken(task.client, task.version)

    def finish(self, end, steps, lr_sum):
        upload = super().finish(end, steps, lr_sum)
        if self.broken:
            upload["delta"][1] = float("nan")
        return upload


class Attacked(td.RobustFedBuff):
    def rule(self, task, memory, lr):
        return BrokenRule(task, memory, lr)


def median(values, votes):
    """The middle of all minima of the sum of votes times distances."""
    cost = [sum(vote * abs(value - other) for other, vote in zip(values, votes)) for value in values]
    best = [value for value, one in zip(values, cost) if one <= min(cost) + 1e-9 * max(cost)]
    return (min(best) + max(best)) / 2


def trimmed(values, votes, share=0.3):
    """The mean without a share of the votes at each end."""
    left, right = share * sum(votes), (1 - share) * sum(votes)
    total = seen = 0.0
    for value, vote in sorted(zip(values, votes)):
        total += value * max(0.0, min(seen + vote, right) - max(seen, left))
        seen += vote
    return total / (right - left)


def no_momentum(means, W):
    return means[-1]


def ema(means, W):
    return sum(0.3 * 0.7 ** (len(means) - 1 - s) * r for s, r in enumerate(means))


def approximation(means, W):
    """The a of which |a' W - M_t|^2 + ridge |a|^2 is least, where M_t weighs versions as `ema` does."""
    M = [0.3 * 0.7 ** (len(means) - 1 - s) for s in range(len(means))]
    W = np.array(W)[:, : len(means)]
    a = np.linalg.solve(W @ W.T + 0.01 * np.eye(len(W)), W @ np.array(M))
    return sum(weight * r for weight, r in zip(a, means))


def naive(lr, robust, momentum):
    models, means, W, buffer = [X0], [], [], []
    shortened = dropped = 0
    for arrival in schedule():
        if not arrival.accepted:
            continue
        start = y = models[arrival.start_version]
        for _ in range(LOCAL_STEPS):
            y = y - LOCAL_LR * gradient(arrival.client, y)
        buffer.append((arrival, start - y))
        if len(buffer) < BUFFER:
            continue
        deltas, votes, row = [], [], [0.0] * 100
        for one, delta in buffer:
            if is_broken(one.client, one.start_version):
                dropped += 1
                continue
            length = np.sqrt(delta @ delta)
            shortened += length > NORM_BOUND
            deltas.append(delta * min(1.0, NORM_BOUND / length))
            votes.append(1 / np.sqrt(1 + one.staleness))
            row[one.start_version] += votes[-1] / BUFFER
        r = np.zeros(SIZE)
        if votes:
            r = np.array([robust([delta[k] for delta in deltas], votes) for k in range(SIZE)])
        means.append(r * sum(votes) / BUFFER)
        W.append(row)
        models.append(models[-1] - lr * momentum(means, W))
        buffer = []
    assert shortened > 3
    assert dropped > 3
    return models


MEANS = {"median": (td.Median(), median), "trimmed mean": (td.TrimmedMean(fraction=0.3), trimmed)}
MOMENTA = {
    "none": (td.NoMomentum(), no_momentum),
    "ema": (td.EMA(beta=0.7), ema),
    "approximation": (td.Approximation(beta=0.7, ridge=0.01), approximation),
}


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("momentum", MOMENTA)
def test_a_robust_mean_of_finite_uploads_takes_the_place_of_the_mean(mean, momentum):
    (robust, naive_robust), (kind, naive_momentum) = MEANS[mean], MOMENTA[momentum]
    algorithm = Attacked(lr=0.7, mean=robust, norm_bound=NORM_BOUND, momentum=kind)
    models, simulation = run_package(algorithm, torch.float64)
    assert simulation.config.buffer.staleness_bound == BOUND
    assert_same(models, naive(0.7, naive_robust, naive_momentum), torch.float64)
