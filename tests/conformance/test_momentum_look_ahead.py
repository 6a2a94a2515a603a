"""Momentum look-ahead (Ajanthan et al.): m = beta m + (1 - beta) delta, x = x - lr (delta + beta m)."""

import numpy as np
import pytest
import torch
from problem import SIZE, assert_same, naive_models, run_package

import tardigrad as td


def naive(lr, beta, size, ahead, s=lambda tau: 1.0):
    means = []

    def momentum():
        weights = [(1 - beta) * beta ** (len(means) - 1 - k) for k in range(len(means))]
        return sum((w * r for w, r in zip(weights, means)), np.zeros(SIZE))

    def move(x, buffer):
        means.append(sum(s(arrival.staleness) * delta for arrival, _, delta in buffer) / size)
        return x - lr * means[-1] - lr * beta * momentum()

    return naive_models(move, size, ahead=lambda x: x - lr * beta * momentum() if ahead else x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ahead", [False, True])
def test_momentum_look_ahead_follows_the_paper(ahead, dtype):
    algorithm = td.MomentumLookAhead(lr=0.2, beta=0.7, start_ahead=ahead)
    models, _ = run_package(algorithm, dtype, size=1)
    assert_same(models, naive(0.2, 0.7, 1, ahead), dtype)


def test_a_buffer_of_several_uploads_and_a_staleness_law():
    algorithm = td.MomentumLookAhead(lr=0.2, beta=0.7, staleness="polynomial", start_ahead=True)
    models, _ = run_package(algorithm, torch.float64, size=3)
    assert_same(models, naive(0.2, 0.7, 3, True, s=lambda tau: (1 + tau) ** -0.5), torch.float64)


def test_without_momentum_it_is_fedbuff():
    ours, _ = run_package(td.MomentumLookAhead(lr=0.2, beta=0.0, start_ahead=True), torch.float64)
    theirs, _ = run_package(td.FedBuff(lr=0.2, staleness="constant"), torch.float64)
    assert_same(ours, theirs, torch.float64)
