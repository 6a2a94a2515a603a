"""Weight prediction (Yu et al.), Algorithm 2: clients start from theta - tau eta x_h / H."""

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
from tardigrad.algorithms.weight_prediction import WeightPrediction
from tardigrad.core.situation import Situation
from tardigrad.core.snapshot import read_snapshot, write_snapshot
from tardigrad.core.upload import Task
from tardigrad.experiments.runs.simulation_assembly import build


def averaged(means, share):
    """The running average of all means, from 0."""
    return (1 - share) * sum(share ** (len(means) - 1 - s) * r for s, r in enumerate(means))


def naive_weight_prediction(lr, decay, beta, beta2, expected):
    """Every model, with the list of all means; H is 1 without beta2."""
    models, means, buffer = [X0], [], []
    drifts = [np.zeros_like(X0)]
    for arrival in schedule():
        if not arrival.accepted:
            continue
        tau = arrival.staleness if expected is None else expected
        start = models[arrival.start_version] - tau * drifts[arrival.start_version]
        y = start.copy()
        for _ in range(LOCAL_STEPS):
            y = y - LOCAL_LR * gradient(arrival.client, y)
        buffer.append((start - y) / np.sqrt(1 + arrival.staleness))
        if len(buffer) == BUFFER:
            means.append(sum(buffer) / BUFFER)
            buffer = []
            H = 1.0 if beta2 is None else np.sqrt(averaged([r**2 for r in means], beta2)) + 0.01
            models.append(models[-1] - lr * averaged(means, beta) / H)
            drifts.append(lr * averaged(means, decay) / H)
    return models


ADAM = td.Adam(beta2=0.9, adaptivity=0.01)
CASES = {
    "plain": (WeightPrediction(lr=0.5, decay=0.7), (0.5, 0.7, 0.0, None, None)),
    "ema": (WeightPrediction(lr=0.5, momentum=td.EMA(beta=0.6)), (0.5, 0.9, 0.6, None, None)),
    "ema and adam": (
        WeightPrediction(lr=0.05, decay=0.8, momentum=td.EMA(beta=0.6), preconditioner=ADAM),
        (0.05, 0.8, 0.6, 0.9, None),
    ),
    "expected": (WeightPrediction(lr=0.5, expected_staleness=1.5), (0.5, 0.9, 0.0, None, 1.5)),
    "expected, ema and adam": (
        WeightPrediction(lr=0.05, expected_staleness=2, momentum=td.EMA(beta=0.6), preconditioner=ADAM),
        (0.05, 0.9, 0.6, 0.9, 2),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_weight_prediction_follows_the_paper(case, dtype):
    algorithm, numbers = CASES[case]
    models, simulation = run_package(algorithm, dtype)
    assert_same(models, naive_weight_prediction(*numbers), dtype)
    assert simulation.engine.refused["too stale"] > 0


def test_expecting_no_staleness_is_fedbuff():
    models, _ = run_package(WeightPrediction(lr=0.5, expected_staleness=0), torch.float32)
    plain, _ = run_package(td.FedBuff(lr=0.5), torch.float32)
    for ours, theirs in zip(models, plain, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_it_is_an_oracle_unless_the_staleness_is_set():
    assert WeightPrediction().oracle
    assert not WeightPrediction(expected_staleness=0).oracle
    assert not td.FedBuff().oracle


def test_there_is_no_drift_at_version_0():
    algorithm = WeightPrediction(preconditioner=ADAM)
    _, simulation = run_package(algorithm, torch.float32, stop=td.Stop(trips=BUFFER))
    fresh_state = algorithm.start(torch.ones(3), Situation(population=3))
    assert torch.equal(algorithm.broadcast(fresh_state)["drift"], torch.zeros(3))
    assert simulation.aggregator.broadcast()["drift"].abs().min() > 0


def test_outside_a_simulation_the_staleness_must_be_set():
    vectors = {"model": torch.ones(3), "drift": torch.ones(3)}
    task = Task(trip=0, client="ann", version=4, vectors=vectors)
    with pytest.raises(td.ConfigError, match=r"algorithm\.expected_staleness"):
        WeightPrediction().rule(task, {}, 0.1)
    rule = WeightPrediction(expected_staleness=3).rule(task, {}, 0.1)
    assert torch.equal(rule.start, torch.full((3,), -2.0))
    assert torch.equal(vectors["model"], torch.ones(3)), "others start from it too"


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ({"decay": 1.0}, "decay"),
        ({"decay": -0.1}, "decay"),
        ({"expected_staleness": -1}, "expected_staleness"),
        ({"expected_staleness": float("nan")}, "expected_staleness"),
        ({"lr": 0.0}, "lr"),
    ],
)
def test_bad_settings_are_named(setting, key):
    with pytest.raises(ValidationError, match=key):
        WeightPrediction(**setting)


def fresh(config):
    clients = {n: (A[n], B[n]) for n in range(CLIENTS)}
    return build(config, Quadratic(torch.tensor(X0, dtype=torch.float32)), clients, head=SquaredError())


@pytest.mark.parametrize("case", ["plain", "expected, ema and adam"])
def test_resume_gives_the_same_bits(case, tmp_path):
    _, whole = run_package(CASES[case][0], torch.float32)
    interrupted = fresh(whole.config)
    for _, _ in zip(range(70), interrupted.engine.run()):
        pass
    assert 5 < interrupted.engine.version < whole.engine.version - 5
    assert interrupted.aggregator._open.members, "the interruption is amid a buffer"
    write_snapshot(tmp_path / "snapshot", *interrupted.engine.snapshot())
    resumed = fresh(whole.config)
    resumed.engine.restore(*read_snapshot(tmp_path / "snapshot"))
    for _ in resumed.engine.run():
        pass
    ours, theirs = resumed.aggregator.state, whole.aggregator.state
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name
