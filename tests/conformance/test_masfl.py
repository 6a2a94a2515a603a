"""MasFL and AdaMasFL, Algorithms 1 to 4: momentum g and control variates c, c_i, from the slides."""

import math

import numpy as np
import pytest
import torch
from problem import (
    BUFFER,
    CLIENTS,
    LOCAL_LR,
    LOCAL_STEPS,
    ROWS,
    SCRIPT,
    X0,
    Arrival,
    assert_same,
    gradient,
    run_package,
    schedule,
)
from pydantic import ValidationError

import tardigrad as td
from tardigrad.algorithms.masfl import AdaMasFL, MasFL
from tardigrad.core.event_log import to_record
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Task
from tardigrad.simulation.engine import Engine

T = len(SCRIPT) // BUFFER
WORK = BUFFER * LOCAL_STEPS
"""S K."""


def naive(arrivals, beta, gamma, eta, adaptive, first_pass=False):
    """A server that keeps every model, every g, every c and a table of all c_i, in float64.

    Returns the models, the last c and the table."""
    models, g, c = [X0], [np.zeros_like(X0)], [np.zeros_like(X0)]
    table = np.zeros((CLIENTS, len(X0)))
    if first_pass:  # line 1: K gradients of everybody at the first model
        opening, arrivals = arrivals[:CLIENTS], arrivals[CLIENTS:]
        assert sorted(arrival.client for arrival in opening) == list(range(CLIENTS))
        table = np.array([gradient(i, X0) for i in range(CLIENTS)])
        models, g, c = [X0, X0], [None, table.mean(axis=0)], [None, table.mean(axis=0)]
    before, changes, deltas = table.copy(), [], []
    for arrival in arrivals:
        if not arrival.accepted:
            continue
        i, t = arrival.client, arrival.start_version
        y, raw = models[t], []
        for _ in range(LOCAL_STEPS):
            raw.append(gradient(i, y))
            d = beta * (raw[-1] - table[i] + c[t]) + (1 - beta) * g[t]
            y = y - eta * (d / np.sqrt(np.sum(d**2)) if adaptive else d)
        deltas.append((models[t] - y) / (eta * LOCAL_STEPS))
        changes.append(sum(raw) / LOCAL_STEPS - table[i])
        table[i] = sum(raw) / LOCAL_STEPS
        if len(changes) == BUFFER:
            np.testing.assert_allclose(sum(changes), (table - before).sum(axis=0), atol=1e-9)
            g.append(beta * (sum(changes) / BUFFER + c[-1]) + (1 - beta) * g[-1])
            models.append(models[-1] - gamma * (sum(deltas) / BUFFER if adaptive else g[-1]))
            c.append(table.mean(axis=0))
            before, changes, deltas = table.copy(), [], []
    return models, c[-1], table


THEOREM_BETA = math.sqrt(WORK / T)
CASES = {
    "the theorem's": (
        MasFL(smoothness=8.0),
        {"beta": THEOREM_BETA, "gamma": THEOREM_BETA / 32, "eta": LOCAL_LR, "adaptive": False},
    ),
    "set by hand": (
        MasFL(beta=0.3, gamma=0.05), {"beta": 0.3, "gamma": 0.05, "eta": LOCAL_LR, "adaptive": False},
    ),
    "gamma from beta": (
        MasFL(beta=0.4, smoothness=2.5), {"beta": 0.4, "gamma": 0.04, "eta": LOCAL_LR, "adaptive": False},
    ),
    "no momentum": (
        MasFL(beta=1.0, gamma=0.03), {"beta": 1.0, "gamma": 0.03, "eta": LOCAL_LR, "adaptive": False},
    ),
    "adaptive, the theorem's": (
        AdaMasFL(),
        {
            "beta": THEOREM_BETA, "gamma": WORK**0.25 / T**0.75,
            "eta": 1 / (LOCAL_STEPS * math.sqrt(T)), "adaptive": True,
        },
    ),
    "adaptive, set by hand": (
        AdaMasFL(beta=0.5, gamma=0.2, eta=0.03), {"beta": 0.5, "gamma": 0.2, "eta": 0.03, "adaptive": True},
    ),
}  # fmt: skip


def assert_controls(simulation, c, table, dtype):
    """The server's c and every client's c_i."""
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    np.testing.assert_allclose(simulation.aggregator.state["control"], c, rtol=tolerance, atol=tolerance)
    for client, memory in simulation.engine.memories.items():
        np.testing.assert_allclose(memory["control"], table[client], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_masfl_and_adamasfl_follow_their_algorithms(case, dtype):
    algorithm, numbers = CASES[case]
    models, simulation = run_package(algorithm, dtype)
    x, c, table = naive(schedule(), **numbers)
    assert_same(models, x, dtype)
    assert_controls(simulation, c, table, dtype)


@pytest.fixture
def events(monkeypatch):
    """Everything that the engine tells."""
    seen, run = [], Engine.run

    def told(engine):
        for group in run(engine):
            seen.extend(map(to_record, group))
            yield group

    monkeypatch.setattr(Engine, "run", told)
    return seen


PACES = {
    "asynchronous": {"pace": td.Asynchronous(concurrency=4), "size": BUFFER},
    "synchronous": {"pace": td.Synchronous(cohort=BUFFER), "size": None},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("pace", PACES)
def test_first_pass_takes_one_trip_of_every_client(pace, adaptive, dtype, events):
    algorithm = AdaMasFL(first_pass=True) if adaptive else MasFL(first_pass=True, smoothness=8.0)
    steps = 19
    models, simulation = run_package(
        algorithm, dtype, bound=None, delay=td.UniformDelay(low=0.2, high=3.0), stop=td.Stop(steps=steps),
        **PACES[pace],
    )  # fmt: skip
    uploads = [event for event in events if event["event"] == "upload"]
    first_step = next(event for event in events if event["event"] == "step")
    assert first_step["trips"] == CLIENTS
    assert all(upload["start_version"] == 0 for upload in uploads[:CLIENTS])
    assert all(upload["start_version"] > 0 for upload in uploads[CLIENTS:])
    np.testing.assert_array_equal(models[0], models[1])
    beta = math.sqrt(WORK / (steps - 1))
    numbers = {"beta": beta, "gamma": beta / 32, "eta": LOCAL_LR, "adaptive": False}
    if adaptive:
        gamma, eta = WORK**0.25 / (steps - 1) ** 0.75, 1 / (LOCAL_STEPS * math.sqrt(steps - 1))
        numbers = {"beta": beta, "gamma": gamma, "eta": eta, "adaptive": True}
    arrivals = [
        Arrival(int(event["client"]), event["start_version"], event["version"], event["accepted"])
        for event in uploads
    ]
    x, c, table = naive(arrivals, **numbers, first_pass=True)
    assert_same(models, x, dtype)
    assert_controls(simulation, c, table, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_delta_is_divided_by_the_rates_that_were_taken(dtype):
    """Minibatches half as large as asked for: every step is half as long, and the mean direction the same."""
    local = td.Local(steps=LOCAL_STEPS, batch_size=2 * ROWS, lr_normalisation=True)
    models, _ = run_package(AdaMasFL(beta=0.5, gamma=0.2, eta=0.06), dtype, local=local)
    x, _, _ = naive(schedule(), beta=0.5, gamma=0.2, eta=0.03, adaptive=True)
    assert_same(models, x, dtype)


def test_adamasfl_does_not_depend_on_the_clients_learning_rate():
    ours = [
        run_package(AdaMasFL(), torch.float32, local=td.Local(steps=LOCAL_STEPS, batch_size=ROWS, lr=lr))[0]
        for lr in (0.05, 0.5)
    ]
    np.testing.assert_array_equal(ours[0], ours[1])


def test_a_direction_of_length_0_is_no_step():
    vectors = {name: torch.zeros(3) for name in ("model", "drift")}
    vectors |= {"beta": torch.tensor([0.5]), "eta": torch.tensor([0.1])}
    rule = AdaMasFL().rule(Task(0, 0, 0, vectors), {}, 1.0)
    assert rule.lr == pytest.approx(0.1)
    assert rule.direction(torch.zeros(3), torch.zeros(3)).tolist() == [0.0] * 3
    upload = rule.finish(torch.zeros(3), 1, 0.1)
    assert upload["delta"].tolist() == upload["control"].tolist() == [0.0] * 3


def test_the_first_pass_uploads_a_delta_of_0():
    vectors = {"model": torch.ones(3), "drift": torch.zeros(3)}
    vectors |= {"beta": torch.tensor([0.5]), "eta": torch.tensor([0.1])}
    for version, lr in ((0, 0.0), (1, 0.1)):
        assert AdaMasFL(first_pass=True).rule(Task(0, 0, version, vectors), {}, 1.0).lr == pytest.approx(lr)
    rule = AdaMasFL(first_pass=True).rule(Task(0, 0, 0, vectors), {}, 1.0)
    rule.direction(torch.full((3,), 4.0), torch.ones(3))
    upload = rule.finish(torch.ones(3), 1, 0.0)
    assert upload["delta"].tolist() == [0.0] * 3
    assert upload["control"].tolist() == rule.memory["control"].tolist() == [4.0] * 3


def test_beta_is_at_most_1():
    situation = Situation(population=CLIENTS, buffer=30, steps=20, local_steps=3.0)
    for algorithm in (MasFL(), AdaMasFL()):
        assert algorithm.start(torch.zeros(2), situation)["beta"] == 1.0
    assert MasFL(smoothness=2.0).start(torch.zeros(2), situation)["gamma"] == 1 / 8


@pytest.mark.parametrize("algorithm", [MasFL(), AdaMasFL(beta=0.1), AdaMasFL(beta=0.1, gamma=0.1)])
def test_without_a_horizon_the_missing_key_is_named(algorithm):
    with pytest.raises(td.ConfigError, match=r"stop\.steps"):
        run_package(algorithm, torch.float32, stop=td.Stop(virtual_time=5.0))


@pytest.mark.parametrize("algorithm", [MasFL(), AdaMasFL(beta=0.1)])
def test_without_a_buffer_size_the_missing_key_is_named(algorithm):
    with pytest.raises(td.ConfigError, match=r"buffer\.size"):
        run_package(
            algorithm, torch.float32, size=None, pace=td.Poisson(probability=0.5), stop=td.Stop(steps=5)
        )


@pytest.mark.parametrize("algorithm", [MasFL(beta=0.3), AdaMasFL(beta=0.3, gamma=0.1, eta=0.01)])
def test_step_sizes_that_are_set_need_no_horizon(algorithm):
    models, _ = run_package(algorithm, torch.float32, stop=td.Stop(virtual_time=8.0))
    assert len(models) > 3


@pytest.mark.parametrize(
    ("algorithm", "setting", "value"),
    [
        (MasFL, "beta", 0.0),
        (MasFL, "beta", 1.1),
        (MasFL, "gamma", 0.0),
        (MasFL, "smoothness", 0.0),
        (MasFL, "eta", 0.1),
        (MasFL, "first_pass", "sometimes"),
        (AdaMasFL, "beta", float("nan")),
        (AdaMasFL, "gamma", -1.0),
        (AdaMasFL, "eta", 0.0),
        (AdaMasFL, "smoothness", 1.0),
    ],
)
def test_bad_settings_are_named(algorithm, setting, value):
    with pytest.raises(ValidationError) as raised:
        algorithm(**{setting: value})
    assert raised.value.errors()[0]["loc"] == (setting,)


def theorem(steps, bound, smoothness, beta=None):
    """The largest eta of Theorem 1: 1 - 4 a - sqrt(S K / T) = 0, a = tau^2 beta^2 + 20 e^2 eta^2 K^2 L^2."""
    root = math.sqrt(WORK / steps)
    beta = root if beta is None else beta
    a = (1 - root) / 4
    return math.sqrt((a - bound**2 * beta**2) / 20) / (math.e * LOCAL_STEPS * smoothness)


def test_eta_of_the_theorem():
    """As many steps as the theorem wants cannot be run here; the run has step sizes of a longer one."""
    steps, bound = 2000, 4
    situation = Situation(CLIENTS, BUFFER, bound, steps, LOCAL_STEPS)
    algorithm = MasFL(eta="theorem", smoothness=0.1)
    state = algorithm.start(torch.tensor(X0), situation)
    assert state["eta"] == pytest.approx(theorem(steps, bound, 0.1))
    task = Task(0, 0, 1, algorithm.broadcast(state))
    assert algorithm.rule(task, {}, lr=99.0).lr == pytest.approx(state["eta"])
    beta, gamma = state["beta"], state["gamma"]

    class Longer(MasFL):
        def _step_sizes(self, _):
            return {"beta": beta, "gamma": gamma, "eta": state["eta"]}

    models, _ = run_package(Longer(eta="theorem"), torch.float64)
    assert_same(models, naive(schedule(), beta, gamma, state["eta"], adaptive=False)[0], torch.float64)


@pytest.mark.parametrize(
    ("bound", "steps", "says"),
    [(None, 2000, "buffer.staleness_bound: .* give a bound"), (10, 100, "algorithm.eta: .* allows no step")],
)
def test_eta_of_the_theorem_may_not_exist(bound, steps, says):
    with pytest.raises(td.ConfigError, match=says):
        MasFL(eta="theorem").start(torch.tensor(X0), Situation(CLIENTS, BUFFER, bound, steps, LOCAL_STEPS))


def test_eta_of_the_theorem_follows_a_beta_that_was_set():
    situation = Situation(CLIENTS, BUFFER, 4, 2000, LOCAL_STEPS)
    state = MasFL(eta="theorem", beta=0.1).start(torch.tensor(X0), situation)
    assert state["eta"] == pytest.approx(theorem(2000, 4, 1.0, beta=0.1))
    with pytest.raises(td.ConfigError, match=r"a beta of 0.9; .*lower .*algorithm\.beta"):
        MasFL(eta="theorem", beta=0.9).start(torch.tensor(X0), situation)


def test_a_learning_rate_beyond_the_theorem_is_told(caplog):
    options = {"pace": td.Asynchronous(concurrency=4), "stop": td.Stop(steps=40)}
    largest = theorem(40, 0, 0.1)
    for lr, told in ((largest * 1.01, 1), (largest * 0.99, 0)):
        caplog.clear()
        local = td.Local(steps=LOCAL_STEPS, batch_size=ROWS, lr=lr)
        run_package(MasFL(smoothness=0.1), torch.float64, bound=0, local=local, **options)
        said = [record.getMessage() for record in caplog.records if "theorem" in record.getMessage()]
        assert len(said) == told
    assert MasFL().caution(Situation(CLIENTS, BUFFER, None, 40, LOCAL_STEPS), lr=1.0) is None
