"""Momentum approximation (Yu et al.), Eqs. 9 to 15, against dense matrices and lists of all past means.

The naive computation solves for all weights of all rows anew at every step, with the means stored.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from problem import (
    BOUND,
    BUFFER,
    LOCAL_LR,
    LOCAL_STEPS,
    X0,
    assert_same,
    gradient,
    run_package,
    schedule,
)
from pydantic import ValidationError

import tardigrad as td
from tardigrad.core.events import ModelMoved
from tardigrad.core.momentum import EMA
from tardigrad.core.momentum_approximation import (
    Approximation,
    LightApproximation,
    batch_weights,
    momentum_matrix,
)
from tardigrad.core.situation import Situation
from tardigrad.core.step import Step
from tardigrad.core.upload import Member, WeightedSum

# -- the paper, naively ------------------------------------------------------------------------------


def target(t, beta):
    """Row t of M, Eq. 4, counted from 0."""
    return (1 - beta) * beta ** (t - np.arange(t + 1.0))


def naive_weights(W, beta, ridge):
    """a_t of Eq. 11 with a ridge, by least squares on W' stacked on sqrt(ridge) I: no normal equations."""
    t = len(W) - 1
    stacked = np.vstack([W.T, math.sqrt(ridge) * np.eye(t + 1)])
    return np.linalg.lstsq(stacked, np.append(target(t, beta), np.zeros(t + 1)), rcond=None)[0]


def naive_light_weights(W, beta, before):
    """a_t of Eq. 12 with (u, v) of Eq. 15; `before` is a_{t-1}. The columns are as long as W."""
    t = len(W) - 1
    fresh, past = np.eye(t + 1)[t], np.append(before, 0.0)
    columns = np.stack([fresh @ W, past @ W], axis=1)
    u, v = np.linalg.lstsq(columns, target(t, beta), rcond=1e-9)[0]
    return u * fresh + v * past


def error_of(a, W, beta):
    """|a' W - M_t|^2 / |M_t|^2."""
    goal = target(len(W) - 1, beta)
    return np.sum((a @ W - goal) ** 2) / np.sum(goal**2)


def naive_directions(W, means, beta, ridge=None):
    """m_t and the error for every t, from all of W and all means."""
    a, directions, errors = np.zeros(0), [], []
    for t in range(len(W)):
        square = W[: t + 1, : t + 1]
        a = naive_light_weights(square, beta, a) if ridge is None else naive_weights(square, beta, ridge)
        directions.append(a @ np.array(means[: t + 1]))
        errors.append(error_of(a, square, beta))
    return directions, errors


def naive_fedbuff(lr, beta, ridge, exponent, adam, bound=BOUND):
    """Every model and every error, with W as a list of dicts and every mean kept."""
    models, means, rows, errors, buffer, row, a = [X0], [], [], [], [], {}, np.zeros(0)
    for arrival in schedule(bound=bound):
        if not arrival.accepted:
            continue  # counts neither in C nor in W
        y = models[arrival.start_version].copy()
        for _ in range(LOCAL_STEPS):
            y = y - LOCAL_LR * gradient(arrival.client, y)
        weight = (1 + arrival.staleness) ** -exponent
        buffer.append(weight * (models[arrival.start_version] - y))
        row[arrival.start_version] = row.get(arrival.start_version, 0.0) + weight / BUFFER
        if len(buffer) < BUFFER:
            continue
        means.append(sum(buffer) / BUFFER)
        rows.append(row)
        buffer, row = [], {}
        W = np.array([[past.get(s, 0.0) for s in range(len(rows))] for past in rows])
        a = naive_light_weights(W, beta, a) if ridge is None else naive_weights(W, beta, ridge)
        m = sum(weight * r for weight, r in zip(a, means))
        if adam:
            v = sum(0.1 * 0.9 ** (len(means) - 1 - s) * r**2 for s, r in enumerate(means))  # of r, not of m
            m = m / (np.sqrt(v) + 0.01)
        models.append(models[-1] - lr * m)
        errors.append(error_of(a, W, beta))
    return models, errors


# -- through the whole package -----------------------------------------------------------------------

MOMENTA = {"full": (Approximation(beta=0.8, ridge=1e-2), 1e-2), "light": (LightApproximation(beta=0.8), None)}
LAWS = {"scaled": (td.FedBuff().staleness, 0.5), "unscaled": (td.Constant(), 0.0)}


def fedbuff(kind, law="scaled", adam=False):
    return td.FedBuff(
        lr=0.05 if adam else 0.5,
        momentum=MOMENTA[kind][0],
        staleness=LAWS[law][0],
        preconditioner=td.Adam(beta2=0.9, adaptivity=0.01) if adam else td.NoPreconditioner(),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("adam", [False, True], ids=["plain", "adam"])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", MOMENTA)
def test_momentum_approximation_follows_the_paper(kind, law, adam, dtype):
    algorithm = fedbuff(kind, law, adam)
    models, simulation = run_package(algorithm, dtype)
    naive, errors = naive_fedbuff(algorithm.lr, 0.8, MOMENTA[kind][1], LAWS[law][1], adam)
    assert_same(models, naive, dtype)
    assert simulation.engine.refused["too stale"] > 0
    assert simulation.aggregator.state["least_squares_error"] == pytest.approx(errors[-1], abs=1e-12)


@pytest.mark.parametrize("kind", MOMENTA)
def test_the_error_of_every_step_is_in_the_events(kind):
    clients = {
        n: (torch.randn(8, 3, generator=torch.Generator().manual_seed(n)), [0, 1] * 4) for n in range(9)
    }
    seen = []

    class Watch:
        def begin(self, config, events): ...
        def see(self, events):
            seen.extend(events)

        def end(self): ...

    td.run(
        algorithm=fedbuff(kind),
        model=torch.nn.Linear(3, 2),
        clients=clients,
        pace=td.Asynchronous(concurrency=6),
        stop=td.Stop(steps=7),
        buffer=td.Buffer(size=2),
        observers=(Watch(),),
    )
    steps = [event for event in seen if isinstance(event, ModelMoved)]
    assert len(steps) == 7
    assert all(0 <= event.metrics["least_squares_error"] <= 1 for event in steps)


@pytest.mark.parametrize("kind", MOMENTA)
def test_the_staleness_bound_is_20_where_none_is_given(kind):
    _, simulation = run_package(fedbuff(kind), torch.float32, bound=None)
    assert simulation.config.buffer.staleness_bound == 20


@pytest.mark.parametrize("momentum", [Approximation(ridge=0.0), LightApproximation()])
def test_a_version_without_uploads_is_left_out_as_with_ema(momentum):
    def models(momentum):
        pace, stop = td.Poisson(probability=0.15), td.Stop(steps=30)
        algorithm = td.FedBuff(lr=0.5, momentum=momentum)
        return run_package(algorithm, torch.float64, size=None, pace=pace, stop=stop)[0]

    ours, plain = models(momentum), models(EMA(beta=0.9))
    assert any(np.array_equal(one, other) for one, other in pairwise(plain)), "some step had nobody"
    assert_same(ours, plain, torch.float64)


# -- the step alone, on long random staleness --------------------------------------------------------


def random_buffers(steps, bound, size=4, seed=0, scaled=True):
    """Uploads of random staleness: many means without a fresh one, all of version 0 at first."""
    random = np.random.default_rng(seed)
    buffers = []
    for t in range(steps):
        members = []
        for _ in range(size):
            staleness = int(min(t, bound if t <= 3 else random.integers(0, bound + 1)))
            mass = float(random.integers(1, 9))
            members.append(Member(t - staleness, staleness, mass * (1 + staleness) ** (-0.5 * scaled), mass))
        buffers.append((tuple(members), sum(member.mass for member in members)))
    return buffers


def dense(buffers):
    W = np.zeros((len(buffers), len(buffers)))
    for t, (members, divisor) in enumerate(buffers):
        for start_version, _, weight, _ in members:
            W[t, start_version] += weight / divisor
    return W


def stream(momentum, buffers, means, bound):
    """m_t and the error for every t, from the package's step; and the last state."""
    step = Step(momentum=momentum)
    model = torch.zeros(means.shape[1], dtype=torch.float64)
    state = {"model": model} | step.begin(model, Situation(population=10, staleness_bound=bound))
    directions, errors = [], []
    for t, (members, divisor) in enumerate(buffers):
        r = torch.tensor(means[t])
        before = state["model"]
        state["model"] = step.move(state, r, WeightedSum({"delta": r * divisor}, members, t, divisor))
        directions.append((before - state["model"]).numpy())
        errors.append(momentum.metrics(state).get("least_squares_error"))
    return directions, errors, state


@pytest.mark.parametrize("bound", [0, 1, 2, 7, 20])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("beta", "ridge"), [(0.9, 1e-3), (0.5, 1e-6), (0.0, 1e-2), (0.99, 1e-4)])
def test_streaming_equals_the_batch_solution(beta, ridge, scaled, bound):
    steps = 220
    buffers = random_buffers(steps, bound, seed=bound, scaled=scaled)
    means = np.random.default_rng(1).normal(size=(steps, 5))
    directions, errors, _ = stream(Approximation(beta=beta, ridge=ridge), buffers, means, bound)
    naive, naive_errors = naive_directions(dense(buffers), means, beta, ridge)
    scale = np.abs(naive).max()
    assert np.abs(np.array(directions) - naive).max() / scale < 1e-9
    assert np.abs(np.array(errors) - naive_errors).max() < 1e-9
    weights = batch_weights(dense(buffers), beta, ridge)
    assert np.abs(weights @ means - naive).max() / scale < 1e-9
    assert np.all(np.triu(weights, 1) == 0)


@pytest.mark.parametrize("bound", [0, 1, 2, 7, 20])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("beta", [0.9, 0.5, 0.0, 0.99])
def test_light_form_represents_its_tail_exactly(beta, scaled, bound):
    steps = 220
    buffers = random_buffers(steps, bound, seed=bound, scaled=scaled)
    means = np.random.default_rng(1).normal(size=(steps, 5))
    directions, errors, _ = stream(LightApproximation(beta=beta), buffers, means, bound)
    naive, naive_errors = naive_directions(dense(buffers), means, beta)
    assert np.abs(np.array(directions) - naive).max() / np.abs(naive).max() < 1e-9
    assert np.abs(np.array(errors) - naive_errors).max() < 1e-9


@pytest.mark.parametrize("momentum", [Approximation(beta=0.9, ridge=0.0), LightApproximation(beta=0.9)])
@pytest.mark.parametrize("bound", [0, 3])
def test_without_staleness_the_approximation_is_momentum(momentum, bound):
    buffers = [((Member(t, 0, 1.0, 1.0),) * 3, 3.0) for t in range(100)]
    means = np.random.default_rng(2).normal(size=(100, 5))
    ours, errors, _ = stream(momentum, buffers, means, bound)
    plain, _, _ = stream(EMA(beta=0.9), buffers, means, bound)
    assert np.abs(np.array(ours) - plain).max() < 1e-14
    assert max(errors) < 1e-14


def test_without_ridge_momentum_is_exact_while_every_buffer_has_a_fresh_upload():
    buffers = [((Member(t, 0, 2.0, 2.0), Member(max(0, t - 3), min(t, 3), 1.0, 1.0)), 3.0) for t in range(60)]
    updates = np.random.default_rng(3).normal(size=(60, 5))  # d_s: the means are W d
    directions, errors, _ = stream(Approximation(beta=0.9, ridge=0.0), buffers, dense(buffers) @ updates, 3)
    assert np.abs(np.array(directions) - momentum_matrix(60, 0.9) @ updates).max() < 1e-12
    assert max(errors) < 1e-12


def test_without_ridge_a_stale_buffer_is_an_error_that_names_the_ridge():
    buffers = [((Member(0, t, 1.0, 1.0),), 1.0) for t in range(3)]
    with pytest.raises(td.RunError, match=r"version 1: .*algorithm\.momentum\.ridge"):
        stream(Approximation(ridge=0.0), buffers, np.ones((3, 2)), 5)


def test_the_cold_start_takes_the_smallest_pair():
    buffers = [((Member(0, t, 1.0, 1.0),), 1.0) for t in range(2)]
    directions, _, _ = stream(LightApproximation(beta=0.5), buffers, np.array([[1.0], [0.0]]), 5)
    # p = 0.5 e_0, W_1 = e_0, target 0.25 e_0: u + 0.5 v = 0.25, the smallest is (0.2, 0.1); m = v 0.5.
    assert directions[1][0] == pytest.approx(0.1 * 0.5)


@pytest.mark.parametrize("beta", [0.3, 0.7, 0.9])
def test_columns_that_are_collinear_but_for_rounding_count_as_collinear(beta):
    # Six fresh steps make p = M_5; then W_6 is c M_5, give or take its last digits: u c + v = beta.
    c, digits = 0.6, 1 + 1e-13 * np.random.default_rng(4).normal(size=6)
    weights = c * target(5, beta) * digits
    buffers = [((Member(t, 0, 1.0, 1.0),), 1.0) for t in range(6)]
    buffers.append((tuple(Member(s, 6 - s, float(weights[s]), 1.0) for s in range(6)), 1.0))
    means = np.zeros((7, 1))
    means[6] = 1.0
    directions, _, _ = stream(LightApproximation(beta=beta), buffers, means, 7)
    assert directions[6][0] == pytest.approx(beta * c / (c**2 + 1), rel=1e-6)


@pytest.mark.parametrize("kind", MOMENTA)
def test_state_does_not_grow_with_the_steps(kind):
    def size(steps):
        buffers = random_buffers(steps, 7)
        _, _, state = stream(MOMENTA[kind][0], buffers, np.ones((steps, 3)), 7)
        vectors = sum(value.numel() for value in state.values() if isinstance(value, torch.Tensor)) / 3
        return vectors, sum(len(value) for value in state.values() if isinstance(value, list))

    assert size(10) == size(100)
    _, _, state = stream(MOMENTA[kind][0], random_buffers(9, 7), np.ones((9, 1000)), 7)
    long = [value for value in state.values() if isinstance(value, torch.Tensor) and value.shape[-1] == 1000]
    assert sum(value.numel() for value in long) / 1000 == (9 if kind == "full" else 2)  # with the model


# -- settings, resume --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ({"kind": "approximation", "beta": 1.0}, "beta"),
        ({"kind": "approximation", "beta": -0.1}, "beta"),
        ({"kind": "approximation", "ridge": -1e-9}, "ridge"),
        ({"kind": "approximation", "ridge": float("inf")}, "ridge"),
        ({"kind": "light_approximation", "beta": 1.0}, "beta"),
        ({"kind": "light_approximation", "beta": -0.1}, "beta"),
        ({"kind": "light_approximation", "ridge": 0.1}, "ridge"),
    ],
)
def test_bad_settings_are_named(setting, key):
    with pytest.raises(ValidationError, match=rf"momentum\.{key}"):
        td.FedBuff(momentum=setting)


@pytest.mark.parametrize("momentum", [Approximation(), LightApproximation()])
def test_a_missing_staleness_bound_is_named(momentum):
    with pytest.raises(td.ConfigError, match=r"buffer\.staleness_bound"):
        momentum.start(torch.zeros(3), Situation(population=10))
