"""FedAsync, Algorithm 1: x = (1 - a) x + a x_new with a = alpha s(staleness), at every upload."""

import math

import numpy as np
import pytest
import torch
from problem import (
    BOUND,
    CLIENTS,
    LOCAL_LR,
    LOCAL_STEPS,
    ROWS,
    SCRIPT,
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
from tardigrad.experiments.runs.simulation_assembly import build

DTYPES = [torch.float32, torch.float64]


def naive_fedasync(alpha, s, rho=0.0, bound=BOUND):
    """`alpha(t)`: the mixing weight of the t-th step, counted from 1; `s(staleness)`: the discount."""
    models = [X0]
    for arrival in schedule(size=1, bound=bound):
        if not arrival.accepted:
            continue
        start = models[arrival.start_version]
        x = start
        for _ in range(LOCAL_STEPS):  # option I, or option II with the pull rho (x - start)
            x = x - LOCAL_LR * (gradient(arrival.client, x) + rho * (x - start))
        a = alpha(len(models)) * s(arrival.staleness)
        models.append((1 - a) * models[-1] + a * x)
    return models


LAWS = {
    "constant": (td.Constant(), lambda s: 1.0),
    "linear": (td.Linear(a=2.0), lambda s: 1 / (2 * s + 1)),
    "polynomial": (td.Polynomial(a=0.5), lambda s: 1 / math.sqrt(s + 1)),
    "exponential": (td.Exponential(a=0.4), lambda s: math.exp(-0.4 * s)),
    "hinge": (td.Hinge(a=10.0, b=4.0), lambda s: 1.0 if s <= 4 else 1 / (10 * (s - 4) + 1)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("law", LAWS)
def test_fedasync_follows_the_paper_with_every_law(law, dtype):
    ours, s = LAWS[law]
    models, _ = run_package(td.FedAsync(alpha=0.6, staleness=ours), dtype, size=1)
    assert_same(models, naive_fedasync(lambda t: 0.6, s), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_defaults_are_a_polynomial_of_one_half_and_option_one(dtype):
    models, _ = run_package(td.FedAsync(), dtype, size=1)
    assert_same(models, naive_fedasync(lambda t: 0.6, LAWS["polynomial"][1]), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rho", [0.05, 3.0])
def test_option_two_is_pulled_back_to_its_start(rho, dtype):
    models, _ = run_package(td.FedAsync(rho=rho), dtype, size=1)
    assert_same(models, naive_fedasync(lambda t: 0.6, LAWS["polynomial"][1], rho), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bound", [0, 6, None])
def test_uploads_beyond_the_bound_do_not_count(bound, dtype):
    models, _ = run_package(td.FedAsync(), dtype, size=1, bound=bound)
    naive = naive_fedasync(lambda t: 0.6, LAWS["polynomial"][1], bound=bound)
    if bound == 0:
        assert 3 < len(models) == len(naive)
        assert np.array(models) == pytest.approx(np.array(naive), rel=1e-4, abs=1e-4)
    else:
        assert_same(models, naive, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_alpha_falls_with_the_root_of_the_step(dtype):
    algorithm = td.FedAsync(alpha=0.9, alpha_schedule="inverse_sqrt")
    models, _ = run_package(algorithm, dtype, size=1)
    assert_same(models, naive_fedasync(lambda t: 0.9 / math.sqrt(t), LAWS["polynomial"][1]), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_alpha_1_without_discount_takes_the_newest_upload(dtype):
    models, _ = run_package(td.FedAsync(alpha=1.0, staleness=td.Constant()), dtype, size=1)
    assert_same(models, naive_fedasync(lambda t: 1.0, lambda s: 1.0), dtype)


def make():
    """A run of option II, not begun."""
    config = td.Config(
        algorithm=td.FedAsync(rho=0.1),
        pace=td.Scripted(trips=tuple(SCRIPT)),
        buffer=td.Buffer(staleness_bound=BOUND),
        local=td.Local(steps=LOCAL_STEPS, batch_size=ROWS, lr=LOCAL_LR),
        stop=td.Stop(trips=len(SCRIPT)),
    )
    clients = {i: (A[i], B[i]) for i in range(CLIENTS)}
    return build(config, model=Quadratic(torch.tensor(X0).float()), clients=clients, head=SquaredError())


def test_the_events_tell_alpha():
    events = [event for events in records(make().engine.run()) for event in events]
    staleness = [e["staleness"] for e in events if e["event"] == "upload" and e["accepted"]]
    told = [e["alpha"] for e in events if e["event"] == "step"]
    assert told == pytest.approx([0.6 / math.sqrt(1 + s) for s in staleness])
    assert len(set(told)) > 3


@pytest.mark.parametrize(
    "bad",
    [
        {"alpha": 0.0}, {"alpha": 1.1}, {"alpha": float("nan")}, {"rho": -1.0}, {"alpha_schedule": "sqrt"},
        {"lr": 1.0},
    ],
)  # fmt: skip
def test_bad_settings_name_the_key(bad):
    with pytest.raises(ValidationError) as caught:
        td.FedAsync(**bad)
    assert [problem["loc"] for problem in caught.value.errors()] == [tuple(bad)]


def test_a_bad_law_names_the_key():
    with pytest.raises(ValidationError) as caught:
        td.FedAsync(staleness={"kind": "hinge", "b": -1})
    assert [problem["loc"] for problem in caught.value.errors()] == [("staleness", "hinge", "b")]


def test_the_buffer_is_one_upload():
    with pytest.raises(td.ConfigError, match=r"buffer\.size: fedasync moves the model at every upload"):
        run_package(td.FedAsync(), torch.float32, size=3)
