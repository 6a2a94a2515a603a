"""FedAC, Equations 4 to 17, with the gaps of Equation 4 closed as the docs say."""

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
    assert_same,
    gradient,
    run_package,
    schedule,
)
from pydantic import ValidationError

import tardigrad as td
from tardigrad.algorithms.fedac import FedAC
from tardigrad.core.event_log import to_record
from tardigrad.core.events import ModelMoved
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Member, Received, Upload
from tardigrad.simulation.engine import Engine


def as_the_docs_say(cosine):
    """Return r of Equation 4 for uploads with these cosines, None for a fresh one."""
    return [1.0 if angle is None else max(angle, 0.0) for angle in cosine]


def signed(cosine):
    return [1.0 if angle is None else angle for angle in cosine]


def absolute(cosine):
    return [1.0 if angle is None else np.sqrt(angle**2) for angle in cosine]


def shifted(cosine):
    return [1.0 if angle is None else 0.5 + 0.5 * angle for angle in cosine]


def fresh_at_mean(cosine):
    others = [max(angle, 0.0) for angle in cosine if angle is not None]
    return [np.mean(others or [1.0]) if angle is None else max(angle, 0.0) for angle in cosine]


def softmax(cosine):
    return np.exp([1.0 if angle is None else angle for angle in cosine]).tolist()


def naive_fedac(
    lr, reading=as_the_docs_say, nadam=True, correction=True, population=False, beta1=0.6, beta2=0.9
):
    """Every x, c, g and c_i in lists; end - start, and added, as the paper writes it. Also what Equation 4
    met at each step."""
    x, c, gs, met = [X0], [np.zeros_like(X0)], [], []
    c_i = {i: [np.zeros_like(X0)] for i in range(CLIENTS)}
    buffer = []
    for arrival in schedule():
        if not arrival.accepted:
            continue
        i, start, c_start = arrival.client, x[arrival.start_version], c[arrival.start_version]
        h = c_start - c_i[i][-1] if correction else np.zeros_like(X0)  # 13
        y = start.copy()
        for _ in range(LOCAL_STEPS):
            y = y - LOCAL_LR * (gradient(i, y) + h)  # 12
        c_hat = (start - y) / (LOCAL_STEPS * LOCAL_LR) - h  # 14
        buffer.append((start, y - start, c_hat - c_i[i][-1]))  # 6, 15
        c_i[i].append(c_hat)  # 16
        if len(buffer) < BUFFER:
            continue
        angles, met_now = [], {"fresh": 0, "negative": 0, "cosines": []}
        for start, change, _ in buffer:
            moved = x[-1] - start
            if not moved.any():
                angles.append(None)
                met_now["fresh"] += 1
                continue
            angle = moved @ change / np.sqrt((moved @ moved) * (change @ change))  # 4
            angles.append(angle)
            met_now["negative"] += int(angle < 0)
            met_now["cosines"].append(angle)
        r = reading(angles)
        met_now["fallback"] = int(sum(r) <= 1e-6 * BUFFER)
        met.append(met_now)
        if sum(r) <= 1e-6 * BUFFER:
            r = [1.0] * BUFFER
        w = np.array(r) / sum(r)  # 5
        gs.append(sum(w_i * change for w_i, (_, change, _) in zip(w, buffer)))  # 7
        if nadam:
            age = np.arange(len(gs))[::-1]
            m = (1 - beta1) * sum(beta1**a * g for a, g in zip(age, gs))  # 8
            v = (1 - beta2) * sum(beta2**a * g**2 for a, g in zip(age, gs))  # 9
            m_hat = beta1 * m + (1 - beta1) * gs[-1]  # 10
            x.append(x[-1] + lr * m_hat / (np.sqrt(v) + 1e-8))  # 11
        else:
            x.append(x[-1] + lr * gs[-1])
        scale = BUFFER / CLIENTS if population else 1.0
        c.append(c[-1] + scale * sum(w_i * dc for w_i, (_, _, dc) in zip(w, buffer)))  # 17
        buffer = []
    return x, c, c_i, met


NORMALISED = td.Local(steps=LOCAL_STEPS, batch_size=2 * ROWS, lr=2 * LOCAL_LR, lr_normalisation=True)
"""Minibatches half as large as asked for, so the rate of every step is half of lr: LOCAL_LR again."""


def equal(cosine):
    return [1.0] * len(cosine)


READINGS = {
    "signed": signed,
    "absolute": absolute,
    "shifted": shifted,
    "fresh_at_mean": fresh_at_mean,
    "softmax": softmax,
}
CASES = {
    "all three": (FedAC(lr=0.02), {"lr": 0.02}, {}),
    "other settings": (
        FedAC(lr=0.1, beta1=0.8, beta2=0.5), {"lr": 0.1, "beta1": 0.8, "beta2": 0.5}, {},
    ),
    "uniform weights": (FedAC(lr=0.02, weights="uniform"), {"lr": 0.02, "reading": equal}, {}),
    "no momentum": (FedAC(lr=0.4, momentum="none"), {"lr": 0.4, "nadam": False}, {}),
    "no correction": (FedAC(lr=0.02, correction=False), {"lr": 0.02, "correction": False}, {}),
    "weights only": (
        FedAC(lr=0.4, momentum="none", correction=False),
        {"lr": 0.4, "nadam": False, "correction": False}, {},
    ),
    "correction only": (
        FedAC(lr=0.4, momentum="none", weights="uniform"), {"lr": 0.4, "nadam": False, "reading": equal}, {},
    ),
    "scaled by the population": (
        FedAC(lr=0.02, control_scale="population"), {"lr": 0.02, "population": True}, {},
    ),
    "by the rates that were taken": (FedAC(lr=0.02), {"lr": 0.02}, {"local": NORMALISED}),
}  # fmt: skip
for name, reading in READINGS.items():
    CASES[f"weights {name}"] = FedAC(lr=0.02, weights=name), {"lr": 0.02, "reading": reading}, {}
    CASES[f"weights {name} only"] = (
        FedAC(lr=0.4, weights=name, momentum="none", correction=False),
        {"lr": 0.4, "reading": reading, "nadam": False, "correction": False}, {},
    )  # fmt: skip


@pytest.fixture
def steps(monkeypatch):
    """What the engine tells of every step."""
    seen, run = [], Engine.run

    def told(engine):
        for group in run(engine):
            seen.extend(to_record(event) for event in group if isinstance(event, ModelMoved))
            yield group

    monkeypatch.setattr(Engine, "run", told)
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_fedac_follows_the_paper(case, dtype, steps):
    algorithm, options, settings = CASES[case]
    models, simulation = run_package(algorithm, dtype, **settings)
    x, c, c_i, met = naive_fedac(**options)
    assert_same(models, x, dtype)
    tolerance = 1e-8 if dtype == torch.float64 else 1e-3  # controls divide by the learning rate
    state, memories = simulation.aggregator.state, simulation.engine.memories
    if algorithm.correction:
        np.testing.assert_allclose(state["control"], c[-1], rtol=tolerance, atol=tolerance)
        for i, memory in memories.items():
            np.testing.assert_allclose(memory["control"], c_i[i][-1], rtol=tolerance, atol=tolerance)
    else:
        assert "control" not in simulation.aggregator.broadcast()
        assert not any(memories.values())
    assert ("second_moment" in state) == (algorithm.momentum == "nadam")
    assert len(steps) == len(met)
    for told, expected in zip(steps, met):
        if algorithm.weights == "uniform":
            assert "fresh" not in told
            continue
        assert [told[k] for k in ("fresh", "negative", "fallback")] == [
            expected[k] for k in ("fresh", "negative", "fallback")
        ]
        assert told["unchanged"] == 0
        assert ("cosine" in told) == bool(expected["cosines"])
        if expected["cosines"]:
            assert told["cosine"] == pytest.approx(np.mean(expected["cosines"]), abs=tolerance)


def test_the_script_meets_fresh_and_negative_uploads_and_a_fallback():
    met = {case: naive_fedac(**options)[3] for case, (_, options, _) in CASES.items()}
    for steps_of_case in met.values():
        assert sum(step["fresh"] for step in steps_of_case) >= 3
        assert sum(step["negative"] for step in steps_of_case) >= 1
    assert sum(step["negative"] for step in met["other settings"]) >= 3
    assert sum(step["negative"] for step in met["weights only"]) >= 10
    assert sum(step["fallback"] for step in met["weights only"]) >= 1


# -- Equation 4 where the paper leaves it open: steps by hand -----------------------------------------

NOW = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
START = torch.zeros(4, dtype=torch.float64)  # since then the model moved along +1st axis


def received(change, start=START, mass=1.0, control=(0.0, 0.0, 0.0, 0.0)):
    """An upload of end - start = `change`."""
    vectors = {
        "delta": -torch.tensor(change, dtype=torch.float64),
        "control": torch.tensor(control, dtype=torch.float64),
    }
    return Received(Upload(vectors, 10, 3, 0.0), Member(0, 0 if start is NOW else 1, mass, mass), start)


def step_by_hand(buffer, **settings):
    algorithm = FedAC(**{"lr": 1.0, "momentum": "none"} | settings)
    state = algorithm.start(NOW, Situation(population=10))
    metrics = algorithm.step(state, buffer, 1)
    assert NOW.tolist() == [1.0, 0.0, 0.0, 0.0], "the old model was changed in place"
    return (state["model"] - NOW).tolist(), state, metrics


def test_a_negative_cosine_weighs_nothing():
    against, along = received([-3.0, 4.0, 0.0, 0.0]), received([0.6, 0.0, 0.8, 0.0])
    fresh = received([0.0, 0.0, 0.0, 2.0], start=NOW)
    move, _, metrics = step_by_hand([against, along, fresh])  # r = 0, 0.6, 1
    assert move == pytest.approx([0.36 / 1.6, 0.0, 0.48 / 1.6, 2 / 1.6])
    assert metrics == {"fresh": 1, "unchanged": 0, "negative": 1, "fallback": 0, "cosine": pytest.approx(0.0)}


@pytest.mark.parametrize(
    ("weights", "r"),
    [
        ("cosine", (0.0, 0.6, 0.0, 1.0)),
        ("signed", (-0.6, 0.6, 0.0, 1.0)),
        ("absolute", (0.6, 0.6, 0.0, 1.0)),
        ("shifted", (0.2, 0.8, 0.5, 1.0)),
        ("fresh_at_mean", (0.0, 0.6, 0.0, 0.2)),
        ("softmax", (np.exp(-0.6), np.exp(0.6), 1.0, np.exp(1.0))),
        ("uniform", (1.0, 1.0, 1.0, 1.0)),
    ],
)
def test_readings_differ_in_negative_cosines_fresh_uploads_and_clients_that_did_not_move(weights, r):
    against, along = received([-3.0, 4.0, 0.0, 0.0]), received([0.6, 0.0, 0.8, 0.0])
    still, fresh = received([0.0, 0.0, 0.0, 0.0]), received([0.0, 0.0, 0.0, 2.0], start=NOW)
    move, _, _ = step_by_hand([against, along, still, fresh], weights=weights)
    w = np.array(r) / sum(r)
    assert move == pytest.approx([-3 * w[0] + 0.6 * w[1], 4 * w[0], 0.8 * w[1], 2 * w[3]], abs=1e-12)


def test_signed_cosines_whose_weighted_sum_is_negative_weigh_the_same():
    """Dividing by a negative sum would turn all signs around."""
    against, along = received([-3.0, 4.0, 0.0, 0.0], mass=30.0), received([0.8, 0.0, 0.6, 0.0], mass=10.0)
    move, _, metrics = step_by_hand([against, along], weights="signed")  # 30 * -0.6 + 10 * 0.8 < 0
    assert move == pytest.approx([(30 * -3 + 10 * 0.8) / 40, 3.0, 0.15, 0.0])
    assert metrics["fallback"] == 1


def test_all_uploads_weigh_the_same_if_no_cosine_is_positive():
    buffer = [
        received([-3.0, 4.0, 0.0, 0.0]),
        received([0.0, 0.0, 0.0, 0.0]),
        received([-1.0, 0.0, 0.0, 0.0]),
    ]
    move, _, metrics = step_by_hand(buffer)
    assert move == pytest.approx([-4 / 3, 4 / 3, 0.0, 0.0])
    assert metrics == {
        "fresh": 0,
        "unchanged": 1,
        "negative": 2,
        "fallback": 1,
        "cosine": pytest.approx(-0.8),
    }


@pytest.mark.parametrize(
    ("cosines", "uniform"),
    [
        ((1e-12, 3e-12, -0.5), True),
        ((1e-300, 0.0, 0.0), True),
        ((2.9e-6, 0.0, -0.1), True),  # a mean below 1e-6, although the largest is above
        ((3.1e-6, 0.0, -0.1), False),
        ((1e-3, 3e-3, -0.5), False),
    ],
)
def test_all_uploads_weigh_the_same_if_cosines_are_almost_0(cosines, uniform):
    """Each client moves by 1, along an axis of its own but for the cosine."""
    buffer = []
    for axis, cosine in enumerate(cosines, start=1):
        change = [cosine, 0.0, 0.0, 0.0]
        change[axis] = float(np.sqrt(1 - cosine**2))
        buffer.append(received(change))
    r = [1.0] * 3 if uniform else [max(cosine, 0.0) for cosine in cosines]
    w = [r_i / sum(r) for r_i in r]
    move, _, metrics = step_by_hand(buffer)
    assert move[1:] == pytest.approx([w_i * float(np.sqrt(1 - c**2)) for w_i, c in zip(w, cosines)], abs=1e-9)
    assert metrics["fallback"] == int(uniform)


def test_a_client_that_did_not_move_weighs_nothing_unless_fresh():
    still, along = received([0.0, 0.0, 0.0, 0.0]), received([0.5, 0.0, 0.0, 0.0])
    move, _, metrics = step_by_hand([still, along])
    assert move == pytest.approx([0.5, 0.0, 0.0, 0.0])
    assert (metrics["unchanged"], metrics["fallback"]) == (1, 0)
    move, _, metrics = step_by_hand([received([0.0, 0.0, 0.0, 0.0], start=NOW), along])
    assert move == pytest.approx([0.25, 0.0, 0.0, 0.0])
    assert (metrics["fresh"], metrics["unchanged"]) == (1, 0)


def test_all_fresh_is_a_plain_mean_without_a_cosine():
    buffer = [received([1.0, 0.0, 0.0, 0.0], start=NOW), received([0.0, 3.0, 0.0, 0.0], start=NOW)]
    move, _, metrics = step_by_hand(buffer)
    assert move == pytest.approx([0.5, 1.5, 0.0, 0.0])
    assert metrics == {"fresh": 2, "unchanged": 0, "negative": 0, "fallback": 0}


@pytest.mark.parametrize("weights", ["cosine", "uniform"])
def test_clients_may_weigh_by_examples_too(weights):
    buffer = [received([1.0, 0.0, 0.0, 0.0], mass=30.0), received([3.0, 4.0, 0.0, 0.0], mass=10.0)]
    move, _, _ = step_by_hand(buffer, weights=weights)
    r = (30.0, 10.0 * 0.6) if weights == "cosine" else (30.0, 10.0)
    assert move == pytest.approx([(r[0] + 3 * r[1]) / sum(r), 4 * r[1] / sum(r), 0.0, 0.0])


@pytest.mark.parametrize(("scale", "factor"), [("paper", 1.0), ("population", 2 / 10)])
def test_the_control_moves_by_the_same_weights(scale, factor):
    buffer = [
        received([0.6, 0.8, 0.0, 0.0], control=(1.0, 0.0, 0.0, 0.0)),  # r = 0.6
        received([0.0, 0.0, 0.0, 1.0], start=NOW, control=(0.0, 4.0, 0.0, 0.0)),  # r = 1
    ]
    _, state, _ = step_by_hand(buffer, control_scale=scale)
    assert state["control"].tolist() == pytest.approx([factor * 0.6 / 1.6, factor * 4 / 1.6, 0.0, 0.0])


def test_the_first_nadam_step_moves_every_coordinate_about_twice_lr():
    move, _, _ = step_by_hand([received([1e-3, -20.0, 5.0, -7.0], start=NOW)], lr=0.01, momentum="nadam")
    size = 0.01 * (1 - 0.6**2) / np.sqrt(1 - 0.9)
    assert size == pytest.approx(0.0202, abs=1e-4)
    assert move == pytest.approx([size, -size, size, -size], rel=1e-4)


# -- what it must equal, and how it goes on ------------------------------------------------------------


def test_fedac_without_its_three_parts_is_fedbuff():
    nadam = {"momentum": td.Nesterov(beta=0.6), "preconditioner": td.Adam(beta2=0.9, adaptivity=1e-8)}
    for momentum, parts in (("none", {}), ("nadam", nadam)):
        bare = FedAC(lr=0.02, weights="uniform", momentum=momentum, correction=False)
        ours, _ = run_package(bare, torch.float64)
        theirs, _ = run_package(td.FedBuff(lr=0.02, staleness="constant", **parts), torch.float64)
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_scaled_by_the_population_the_control_is_the_mean_of_the_clients():
    algorithm = FedAC(lr=0.02, weights="uniform", control_scale="population")
    stop = td.Stop(steps=15)  # just after a step: every control that is kept has counted
    _, simulation = run_package(algorithm, torch.float64, stop=stop)
    mean = sum(memory["control"] for memory in simulation.engine.memories.values()) / CLIENTS
    torch.testing.assert_close(simulation.aggregator.state["control"], mean, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("lr", 0),
        ("lr", float("inf")),
        ("weights", "cosines"),
        ("momentum", "ema"),
        ("beta1", 1.0),
        ("beta1", -0.1),
        ("beta2", 1.0),
        ("adaptivity", 0),
        ("correction", "maybe"),
        ("control_scale", "buffer"),
        ("staleness", "constant"),
    ],
)
def test_bad_settings_are_named(setting, value):
    with pytest.raises(ValidationError) as raised:
        FedAC(**{setting: value})
    assert raised.value.errors()[0]["loc"] == (setting,)


def test_a_fresh_upload_is_fresh_although_the_broadcast_rounded_its_start(tmp_path):
    td.run(
        data={"kind": "digits", "partition": {"kind": "iid", "clients": 4}}, broadcast="bfloat16",
        algorithm="fedac", buffer={"size": 1}, pace={"kind": "asynchronous", "concurrency": 1},
        stop={"trips": 6}, evaluation={"every_trips": 6}, out=tmp_path / "run",
    )  # fmt: skip
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert [event["fresh"] for event in events if event["event"] == "step"] == [1] * 6
