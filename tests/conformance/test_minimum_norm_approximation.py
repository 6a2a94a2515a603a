"""Momentum approximation without a ridge (Yu et al., Eqs. 9, 11), W singular: the shortest weights."""

import numpy as np
import pytest
import torch
from problem import BUFFER, assert_same, naive_models, run_package

import tardigrad as td


def naive(lr, beta, cutoff, size, singular):
    """W and all means as lists; weights by a singular value decomposition whose small values are cut."""
    rows, means = [], []

    def move(x, buffer):
        t = len(means)
        means.append(sum(delta / np.sqrt(1 + arrival.staleness) for arrival, _, delta in buffer) / size)
        row = np.zeros(100)
        for arrival, _, _ in buffer:
            row[arrival.start_version] += 1 / np.sqrt(1 + arrival.staleness) / size
        rows.append(row)
        W = np.array(rows)[:, : t + 1]
        M = (1 - beta) * beta ** np.arange(t, -1.0, -1.0)
        left, values, right = np.linalg.svd(W)
        singular.append(values[-1] < 1e-12)
        a = np.zeros(t + 1)
        for k, value in enumerate(values):
            if value > cutoff * values[0]:
                a += (right[k] @ M) / value * left[:, k]
        return x - lr * (a @ np.array(means))

    return naive_models(move, size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "cutoff"), [(BUFFER, 0.01), (1, 0.2)])
def test_shortest_weights_of_a_singular_matrix(size, cutoff, dtype):
    singular = []
    theirs = naive(0.2, 0.7, cutoff, size, singular)
    momentum = td.MinimumNormApproximation(beta=0.7, cutoff=cutoff)
    models, simulation = run_package(td.FedBuff(lr=0.2, momentum=momentum), dtype, size=size)
    assert_same(models, theirs, dtype)
    assert any(singular), "else this shows nothing"
    assert len(simulation.aggregator.state["means"]) == len(models) - 1


def test_without_staleness_it_is_plain_momentum():
    """In rounds W is the identity."""
    rounds = {"pace": td.Synchronous(cohort=3), "delay": td.ConstantDelay(), "stop": td.Stop(steps=12)}
    rounds |= {"buffer": td.Buffer(staleness_bound=3)}
    ours, plain = (
        run_package(td.FedBuff(lr=0.2, momentum=momentum), torch.float64, **rounds)[0]
        for momentum in (td.MinimumNormApproximation(beta=0.7), td.EMA(beta=0.7))
    )
    assert_same(ours, plain, torch.float64)
