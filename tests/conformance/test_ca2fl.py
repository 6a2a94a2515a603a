"""CA2FL: x -= eta (h + (1/M) sum of delta_i - h_i), against a server that keeps every client's h_i itself."""

import json

import numpy as np
import pytest
import torch
from problem import (
    BUFFER,
    CLIENTS,
    LOCAL_LR,
    LOCAL_STEPS,
    X0,
    A,
    B,
    Quadratic,
    SquaredError,
    assert_same,
    gradient,
    run_package,
    schedule,
)
from pydantic import ValidationError

import tardigrad as td
from tardigrad.algorithms.ca2fl import CA2FL
from tardigrad.experiments.runs.simulation_assembly import build


def naive_ca2fl(lr, bound=6):
    """The paper's server: a table of the newest delta of all clients, and h its mean. The paper adds
    end - start; here the sign is turned at the end. Returns the models, h and the table."""
    models, table = [X0], np.zeros((CLIENTS, len(X0)))
    h, differences = np.zeros_like(X0), []
    for arrival in schedule(bound=bound):
        if not arrival.accepted:
            continue
        i, start = arrival.client, models[arrival.start_version]
        y = start
        for _ in range(LOCAL_STEPS):
            y = y - LOCAL_LR * gradient(i, y)
        differences.append((y - start) - table[i])
        table[i] = y - start
        if len(differences) == BUFFER:
            models.append(models[-1] + lr * (h + sum(differences) / BUFFER))
            h = table.mean(axis=0)
            differences = []
    return models, -h, -table


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lr", [1.0, 0.4])
def test_clients_that_keep_their_cache_equal_a_server_that_keeps_all(lr, dtype):
    models, simulation = run_package(CA2FL(lr=lr), dtype)
    x, h, table = naive_ca2fl(lr)
    assert_same(models, x, dtype)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    state = simulation.aggregator.state
    np.testing.assert_allclose(state["cache"], h, rtol=tolerance, atol=tolerance)
    memories = simulation.engine._memories
    for client in range(CLIENTS):
        if client in memories:
            kept = memories[client]["delta"]
            np.testing.assert_allclose(kept, table[client], rtol=tolerance, atol=tolerance)
        else:
            assert not table[client].any()
    assert len(memories) >= CLIENTS - 1


def test_default_settings():
    models, _ = run_package(CA2FL(), torch.float64)
    assert_same(models, naive_ca2fl(lr=1.0)[0], torch.float64)


def test_with_everybody_in_every_buffer_the_cache_cancels():
    """M = N, once each: h + mean(delta) - mean(h_i) is the mean delta, so it is FedAvg."""
    rounds = {"pace": td.Synchronous(cohort=CLIENTS), "delay": td.ConstantDelay(), "stop": td.Stop(steps=12)}
    ours, _ = run_package(CA2FL(lr=0.5), torch.float64, size=None, bound=None, **rounds)
    theirs, _ = run_package(td.FedAvg(lr=0.5), torch.float64, size=None, bound=None, **rounds)
    assert_same(ours, theirs, torch.float64)


def test_resumed_is_the_same_to_the_bit():
    def simulation():
        config = td.Config(
            algorithm=CA2FL(lr=0.5), local=td.Local(steps=LOCAL_STEPS, batch_size=2, lr=LOCAL_LR),
            pace=td.Asynchronous(concurrency=4), buffer=td.Buffer(size=BUFFER, staleness_bound=2),
            stop=td.Stop(steps=15),
        )  # fmt: skip
        module = Quadratic(torch.tensor(X0, dtype=torch.float32))
        return build(config, module, {i: (A[i], B[i]) for i in range(CLIENTS)}, head=SquaredError())

    whole = simulation()
    list(whole.engine.run())
    final, _ = whole.engine.snapshot()
    assert any(name.startswith("memory/") for name in final)
    for stop_after in (1, 17, 40, 71):
        first = simulation()
        for _, _ in zip(range(stop_after), first.engine.run()):
            pass
        tensors, document = first.engine.snapshot()
        second = simulation()
        second.engine.restore(
            {name: tensor.clone() for name, tensor in tensors.items()}, json.loads(json.dumps(document))
        )
        list(second.engine.run())
        resumed, _ = second.engine.snapshot()
        assert resumed.keys() == final.keys()
        assert all(torch.equal(resumed[name], final[name]) for name in final), stop_after


@pytest.mark.parametrize(("setting", "value"), [("lr", 0), ("lr", float("inf")), ("staleness", "constant")])
def test_bad_settings_are_named(setting, value):
    with pytest.raises(ValidationError) as raised:
        CA2FL(**{setting: value})
    assert raised.value.errors()[0]["loc"] == (setting,)
