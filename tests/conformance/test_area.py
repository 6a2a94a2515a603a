"""AREA (Iakovidou, Kim), against a server that averages the last local models of all clients."""

import numpy as np
import pytest
import torch
from problem import CLIENTS, X0, assert_same, naive_models, run_package

import tardigrad as td


def naive(size):
    table = np.tile(X0, (CLIENTS, 1))

    def move(x, buffer):
        for arrival, start, delta in buffer:
            table[arrival.client] = start - delta
        return table.mean(axis=0)

    return naive_models(move, size), table


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 3])
def test_the_model_is_the_mean_of_the_last_local_models_of_all_clients(size, dtype):
    models, simulation = run_package(td.AREA(), dtype, size=size)
    x, table = naive(size)
    assert_same(models, x, dtype)
    if size == 1:  # else the open buffer has uploads that their clients remember
        tolerance = 1e-9 if dtype == torch.float64 else 1e-4
        for client, memory in simulation.engine.memories.items():
            np.testing.assert_allclose(memory["end"], table[client], rtol=tolerance, atol=tolerance)
