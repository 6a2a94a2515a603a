"""ACE (Chang et al.), against a server that keeps the last upload of every client itself."""

import numpy as np
import pytest
import torch
from problem import CLIENTS, LOCAL_LR, LOCAL_STEPS, SIZE, X0, assert_same, gradient, naive_models, run_package

import tardigrad as td


def naive(lr, size):
    table = np.zeros((CLIENTS, SIZE))

    def move(x, buffer):
        for arrival, _, delta in buffer:
            table[arrival.client] = delta
        return x - lr * table.mean(axis=0)

    return naive_models(move, size), table


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 3])
def test_clients_that_keep_their_upload_equal_a_server_that_keeps_all(size, dtype):
    models, simulation = run_package(td.ACE(lr=0.2), dtype, size=size)
    x, table = naive(0.2, size)
    assert_same(models, x, dtype)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    cache = simulation.aggregator.state["cache"]
    np.testing.assert_allclose(cache, table.mean(axis=0), rtol=tolerance, atol=tolerance)
    if size == 1:  # else the open buffer has uploads that their clients remember
        for client, memory in simulation.engine.memories.items():
            np.testing.assert_allclose(memory["delta"], table[client], rtol=tolerance, atol=tolerance)


def test_a_first_pass_begins_with_the_mean_of_all_clients():
    settings = {
        "pace": td.Asynchronous(concurrency=CLIENTS),
        "delay": td.HalfNormal(),
        "stop": td.Stop(steps=12),
    }
    models, _ = run_package(td.ACE(lr=0.2, first_pass=True), torch.float64, size=1, bound=None, **settings)
    deltas = []
    for client in range(CLIENTS):
        y = X0
        for _ in range(LOCAL_STEPS):
            y = y - LOCAL_LR * gradient(client, y)
        deltas.append(X0 - y)
    np.testing.assert_allclose(models[1], X0 - 0.2 * sum(deltas) / CLIENTS, rtol=1e-9)
    assert len(models) == 13
