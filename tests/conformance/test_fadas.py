"""FADAS: AMSGrad on the mean delta; a smaller step when the buffer's largest staleness is above tau_c."""

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
from event_records import records
from tardigrad.algorithms.fadas import FADAS
from tardigrad.core.preconditioner import AMSGrad
from tardigrad.experiments.runs.simulation_assembly import build


def step_size(rule, lr, largest, threshold):
    if largest <= threshold:
        return lr
    return {"divide": lr / largest, "cap": min(lr, 1 / largest), "keep": lr}[rule]


def naive_fadas(
    lr=1e-3, beta1=0.9, beta2=0.99, eps=1e-8, rule="divide", threshold=1, corrected=True, size=BUFFER, bound=6
):
    """Lists of all means; m, v and the largest v from the whole list at every step. The paper adds
    end - start."""
    models, means, buffer, rates = [X0], [], [], []
    for arrival in schedule(size=size, bound=bound):
        if not arrival.accepted:
            continue
        start = models[arrival.start_version]
        y = start
        for _ in range(LOCAL_STEPS):
            y = y - LOCAL_LR * gradient(arrival.client, y)
        buffer.append((y - start, arrival.staleness))
        if len(buffer) < size:
            continue
        means.append(sum(change for change, _ in buffer) / size)
        t = len(means)
        m = (1 - beta1) * sum(beta1 ** (t - 1 - s) * r for s, r in enumerate(means))
        all_v = [
            (1 - beta2) * sum(beta2 ** (u - 1 - s) * means[s] ** 2 for s in range(u)) for u in range(1, t + 1)
        ]
        v = np.max(all_v, axis=0)
        if corrected:
            m, v = m / (1 - beta1**t), v / (1 - beta2**t)
        rates.append(step_size(rule, lr, max(staleness for _, staleness in buffer), threshold))
        models.append(models[-1] + rates[-1] * m / (np.sqrt(v) + eps))
        buffer = []
    return models, rates


CASES = {
    "divide": ({"lr": 0.1}, {"lr": 0.1}),
    "cap": ({"lr": 0.4, "stale_lr": "cap"}, {"lr": 0.4, "rule": "cap"}),
    "keep": ({"lr": 0.05, "stale_lr": "keep"}, {"lr": 0.05, "rule": "keep"}),
    "threshold": ({"lr": 0.1, "threshold": 3}, {"lr": 0.1, "threshold": 3}),
    "no bias correction": ({"lr": 0.05, "bias_correction": False}, {"lr": 0.05, "corrected": False}),
    "other moments": (
        {"lr": 0.1, "beta1": 0.5, "beta2": 0.8, "adaptivity": 0.01},
        {"lr": 0.1, "beta1": 0.5, "beta2": 0.8, "eps": 0.01},
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_fadas_follows_the_paper(case, dtype):
    settings, numbers = CASES[case]
    models, _ = run_package(FADAS(**settings), dtype)
    x, rates = naive_fadas(**numbers)
    if case != "keep":
        assert len(set(rates)) > 1, "the staleness never mattered"
    assert_same(models, x, dtype)


def test_default_settings():
    models, simulation = run_package(FADAS(), torch.float64, size=None)
    assert simulation.config.buffer.size == 5
    x, _ = naive_fadas(size=5, bound=6)
    for version, (ours, theirs) in enumerate(zip(models, x, strict=True)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, err_msg=str(version))


def naive_amsgrad(means, beta2, adaptivity):
    v, largest = np.zeros_like(means[0]), np.zeros_like(means[0])
    for r in means:
        v = beta2 * v + (1 - beta2) * r**2
        largest = np.where(v > largest, v, largest)
    return np.sqrt(largest) + adaptivity


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_amsgrad_serves_fedbuff_too(dtype):
    algorithm = td.FedBuff(
        lr=0.05, staleness="constant", preconditioner={"kind": "amsgrad", "beta2": 0.6, "adaptivity": 0.01}
    )
    assert algorithm.preconditioner == AMSGrad(beta2=0.6, adaptivity=0.01)
    models, _ = run_package(algorithm, dtype)
    x, means, buffer = [X0], [], []
    for arrival in schedule():
        if not arrival.accepted:
            continue
        y = x[arrival.start_version]
        for _ in range(LOCAL_STEPS):
            y = y - LOCAL_LR * gradient(arrival.client, y)
        buffer.append(x[arrival.start_version] - y)
        if len(buffer) == BUFFER:
            means.append(sum(buffer) / BUFFER)
            x.append(x[-1] - 0.05 * means[-1] / naive_amsgrad(means, 0.6, 0.01))
            buffer = []
    assert_same(models, x, dtype)


def test_amsgrad_before_the_first_step_divides_by_its_adaptivity():
    for preconditioner in (AMSGrad(adaptivity=0.5), AMSGrad(adaptivity=0.5, bias_correction=True)):
        state = preconditioner.start(torch.zeros(2))
        assert preconditioner.divide(state, torch.ones(2)).tolist() == [2.0, 2.0]


def test_each_step_tells_its_learning_rate():
    running = simulation(FADAS(lr=0.1))
    told = [event for events in records(running.engine.run()) for event in events if event["event"] == "step"]
    assert {0.1} < {event["lr"] for event in told} <= {0.1, 0.1 / 2, 0.1 / 3, 0.1 / 4, 0.1 / 5, 0.1 / 6}


def simulation(algorithm):
    config = td.Config(
        algorithm=algorithm, local=td.Local(steps=LOCAL_STEPS, batch_size=2, lr=LOCAL_LR),
        pace=td.Asynchronous(concurrency=7), buffer=td.Buffer(size=2, staleness_bound=6),
        stop=td.Stop(steps=25),
    )  # fmt: skip
    module = Quadratic(torch.tensor(X0, dtype=torch.float32))
    return build(config, module, {i: (A[i], B[i]) for i in range(CLIENTS)}, head=SquaredError())


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("lr", 0.0),
        ("beta1", 1.0),
        ("beta2", -0.1),
        ("adaptivity", 0.0),
        ("stale_lr", "halve"),
        ("threshold", -1),
        ("bias_correction", "perhaps"),
        ("tau_c", 1),
    ],
)
def test_bad_settings_are_named(setting, value):
    with pytest.raises(ValidationError) as raised:
        FADAS(**{setting: value})
    assert raised.value.errors()[0]["loc"] == (setting,)
