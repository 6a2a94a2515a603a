"""SGD: one client has all data, and the model is its model: plain gradient descent, trip after trip."""

import numpy as np
import pytest
import torch
from problem import CLIENTS, X0, A, B, Quadratic, SquaredError, assert_same
from pydantic import ValidationError

import tardigrad as td
from event_records import records
from tardigrad.experiments.runs.simulation_assembly import build

ALL_A, ALL_B = np.concatenate(A), np.concatenate(B)
LR, STEPS, TRIPS = 0.01, 3, 15


def make(dtype=torch.float64, clients=None, **settings):
    options = {
        "pace": td.Asynchronous(concurrency=1),
        "local": td.Local(steps=STEPS, batch_size=len(ALL_B), lr=LR),
        "stop": td.Stop(trips=TRIPS),
        "evaluation": td.Evaluation(every_steps=10**6),
    } | settings
    module = Quadratic(torch.tensor(X0, dtype=dtype))
    clients = clients or {"all": (ALL_A, ALL_B)}
    return build(td.Config(algorithm=td.SGD(), **options), model=module, clients=clients, head=SquaredError())


def run(simulation):
    models = [simulation.aggregator.state["model"].double().numpy()]
    for events in records(simulation.engine.run()):
        for event in events:
            if event["event"] == "step":
                models.append(simulation.aggregator.state["model"].double().numpy())
    return models


def descent(lr_at, decay=0.0):
    """Gradient descent on all rows; `lr_at(trip)`. The model after every trip."""
    x, models = X0, [X0]
    for trip in range(TRIPS):
        for _ in range(STEPS):
            x = x - lr_at(trip) * (ALL_A.T @ (ALL_A @ x - ALL_B) + decay * x)
        models.append(x)
    return models


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sgd_is_plain_gradient_descent(dtype):
    assert_same(run(make(dtype)), descent(lambda trip: LR), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sgd_with_weight_decay_and_a_falling_rate(dtype):
    schedule = td.StepDecay(at=(5, 10), factor_at_each=0.5)
    local = td.Local(steps=STEPS, batch_size=len(ALL_B), lr=LR, weight_decay=0.7, schedule=schedule)
    expected = descent(lambda trip: LR * 0.5 ** ((trip >= 5) + (trip >= 10)), decay=0.7)
    assert_same(run(make(dtype, local=local)), expected, dtype)


def test_sgd_finds_the_least_squares_solution():
    solution = np.linalg.lstsq(ALL_A, ALL_B, rcond=None)[0]
    models = run(make(stop=td.Stop(trips=300)))
    assert models[-1] == pytest.approx(solution, abs=1e-6)


def test_more_than_one_client_is_refused():
    clients = {i: (A[i], B[i]) for i in range(CLIENTS)}
    with pytest.raises(td.ConfigError, match=rf"algorithm\.kind 'sgd'.*there are {CLIENTS} clients"):
        make(clients=clients)


def test_the_buffer_is_one_upload():
    with pytest.raises(td.ConfigError, match=r"buffer\.size: sgd moves the model at every upload"):
        make(buffer=td.Buffer(size=2))


def test_sgd_has_no_settings():
    with pytest.raises(ValidationError, match="lr"):
        td.SGD(lr=1.0)
