"""SCAFFOLD, Algorithm 1 with option II: x -= eta_g mean delta, c += (1/N) sum of the controls' changes."""

import json

import numpy as np
import pytest
import torch
from problem import (
    BUFFER,
    CLIENTS,
    LOCAL_LR,
    LOCAL_STEPS,
    ROWS,
    X0,
    A,
    B,
    Quadratic,
    SquaredError,
    assert_same,
    gradient,
    run_package,
)
from pydantic import ValidationError

import tardigrad as td
from tardigrad.algorithms.scaffold import SCAFFOLD
from tardigrad.core.events import to_record
from tardigrad.core.upload import Task
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.simulation.engine import Engine

ROUNDS = 20
IN_ROUNDS = {
    "pace": td.Synchronous(cohort=BUFFER),
    "buffer": td.Buffer(),
    "delay": td.UniformDelay(low=0.5, high=1.5),
    "stop": td.Stop(steps=ROUNDS),
}
OVER_SELECTED = IN_ROUNDS | {"pace": td.Synchronous(cohort=BUFFER, selected=5)}
NORMALISED = {
    "local": td.Local(steps=LOCAL_STEPS, batch_size=2 * ROWS, lr=2 * LOCAL_LR, lr_normalisation=True)
}
"""Minibatches half as large as asked for, so the rate of every step is half of lr: LOCAL_LR again."""


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


def cohorts(events):
    """The clients of each round that counted, in the order they came back."""
    rounds = [[] for _ in range(ROUNDS)]
    for event in events:
        if event["event"] == "upload" and event["accepted"]:
            rounds[event["start_version"]].append(int(event["client"]))
    return rounds


def naive_scaffold(rounds, lr, local_lr=lambda version: LOCAL_LR):
    """Every x, every c and every c_i in lists, from the paper's Algorithm 1 (which adds y - x)."""
    x, c = [X0], [np.zeros_like(X0)]
    c_i = [[np.zeros_like(X0)] for _ in range(CLIENTS)]
    for version, clients in enumerate(rounds):
        dy, dc, eta = [], [], local_lr(version)
        for i in clients:
            y = x[-1].copy()
            for _ in range(LOCAL_STEPS):
                y = y - eta * (gradient(i, y) - c_i[i][-1] + c[-1])
            c_plus = c_i[i][-1] - c[-1] + (x[-1] - y) / (LOCAL_STEPS * eta)
            dy.append(y - x[-1])
            dc.append(c_plus - c_i[i][-1])
            c_i[i].append(c_plus)
        x.append(x[-1] + lr * np.mean(dy, axis=0))
        c.append(c[-1] + len(clients) / CLIENTS * np.mean(dc, axis=0))
    return x, c, c_i


CASES = {
    "plain": (IN_ROUNDS, {}),
    "over-selection": (OVER_SELECTED, {}),
    "by the rates that were taken": (IN_ROUNDS | NORMALISED, {}),
    "falling rate": (
        IN_ROUNDS
        | {
            "local": td.Local(
                steps=LOCAL_STEPS, batch_size=ROWS, lr=LOCAL_LR, schedule=td.StepDecay(at=(4, 9))
            )
        },
        {"local_lr": lambda version: LOCAL_LR * 0.5 ** ((version >= 4) + (version >= 9))},
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_scaffold_follows_the_paper(case, dtype, events):
    settings, options = CASES[case]
    models, simulation = run_package(SCAFFOLD(lr=0.6), dtype, size=None, bound=None, **settings)
    rounds = cohorts(events)
    assert [len(clients) for clients in rounds] == [BUFFER] * ROUNDS
    assert len({i for clients in rounds for i in clients}) == CLIENTS
    x, c, c_i = naive_scaffold(rounds, 0.6, **options)
    assert_same(models, x, dtype)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3  # controls divide by the learning rate
    np.testing.assert_allclose(simulation.aggregator.state["control"], c[-1], rtol=tolerance, atol=tolerance)
    for i in range(CLIENTS):
        kept = simulation.engine._memories[i]["control"]
        np.testing.assert_allclose(kept, c_i[i][-1], rtol=tolerance, atol=tolerance)


def test_late_clients_are_refused_and_remember_nothing(events):
    _, simulation = run_package(SCAFFOLD(), torch.float64, size=None, bound=None, **OVER_SELECTED)
    assert any(event["event"] == "upload" and not event["accepted"] for event in events)
    mean = sum(memory["control"] for memory in simulation.engine._memories.values()) / CLIENTS
    torch.testing.assert_close(simulation.aggregator.state["control"], mean, rtol=1e-12, atol=1e-12)


def test_without_controls_the_first_round_is_fedavg():
    once = {"stop": td.Stop(steps=1)}
    ours, _ = run_package(SCAFFOLD(lr=0.6), torch.float64, size=None, bound=None, **IN_ROUNDS | once)
    theirs, _ = run_package(td.FedAvg(lr=0.6), torch.float64, size=None, bound=None, **IN_ROUNDS | once)
    np.testing.assert_array_equal(ours[1], theirs[1])


def test_a_learning_rate_of_nothing_leaves_the_control():
    vectors = {"model": torch.ones(3), "control": torch.full((3,), 0.5)}
    rule = SCAFFOLD().rule(Task(0, 0, 0, vectors), {"control": torch.full((3,), 2.0)}, 0.0)
    upload = rule.finish(torch.ones(3), 4, 0.0)
    assert upload["delta"].tolist() == upload["control"].tolist() == [0.0] * 3
    assert rule.memory["control"].tolist() == [2.0] * 3


def test_resumed_is_the_same_to_the_bit():
    def simulation():
        config = td.Config(
            algorithm=SCAFFOLD(lr=0.6), local=td.Local(steps=LOCAL_STEPS, batch_size=2), **OVER_SELECTED
        )
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


@pytest.mark.parametrize(("setting", "value"), [("lr", 0), ("lr", float("nan")), ("eta", 1.0)])
def test_bad_settings_are_named(setting, value):
    with pytest.raises(ValidationError) as raised:
        SCAFFOLD(**{setting: value})
    assert raised.value.errors()[0]["loc"] == (setting,)


def test_it_works_in_rounds_only():
    with pytest.raises(td.ConfigError, match=r"pace\.kind: scaffold works in rounds"):
        run_package(SCAFFOLD(), torch.float64, pace=td.Asynchronous(concurrency=3))
