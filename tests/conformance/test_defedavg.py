"""DeFedAvg-nIID: x -= gamma times the mean of the first n deltas, of whatever version, in full; the newest
model goes to uniformly drawn clients, who train from what they are given one after the other."""

import json
from collections import Counter, defaultdict

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
    Arrival,
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
from tardigrad.algorithms.defedavg import DeFedAvg
from tardigrad.core.events import UploadReceived, to_record
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.simulation.engine import Engine

TASKS = 5
QUEUED = td.Queued(concurrency=TASKS)
UNEQUAL = td.HalfNormal(device_spread=1.5)
"""Some devices are many times slower than others, for good."""


def naive_defedavg(arrivals, lr):
    """Every version of the model in a list."""
    models, deltas = [X0], []
    for arrival in arrivals:
        if not arrival.accepted:
            continue
        start = models[arrival.start_version]
        y = start
        for _ in range(LOCAL_STEPS):
            y = y - LOCAL_LR * gradient(arrival.client, y)
        deltas.append(start - y)
        if len(deltas) == BUFFER:
            models.append(models[-1] - lr * sum(deltas) / BUFFER)
            deltas = []
    return models


@pytest.fixture
def uploads(monkeypatch):
    """Every upload that the engine tells of."""
    seen, run = [], Engine.run

    def told(engine):
        for group in run(engine):
            seen.extend(to_record(event) for event in group if isinstance(event, UploadReceived))
            yield group

    monkeypatch.setattr(Engine, "run", told)
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lr", [1.0, 0.6])
def test_late_uploads_count_in_full(lr, dtype):
    models, _ = run_package(DeFedAvg(lr=lr), dtype)
    assert_same(models, naive_defedavg(schedule(), lr), dtype)


def test_default_settings():
    models, _ = run_package(DeFedAvg(), torch.float64)
    assert_same(models, naive_defedavg(schedule(), 1.0), torch.float64)


def run_queued(dtype, delay, steps):
    return run_package(
        DeFedAvg(lr=0.6), dtype, bound=None, pace=QUEUED, delay=delay, stop=td.Stop(steps=steps)
    )[0]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_its_own_pace(dtype, uploads):
    models = run_queued(dtype, UNEQUAL, 40)
    arrivals = [Arrival(int(u["client"]), u["start_version"], u["version"], u["accepted"]) for u in uploads]
    assert len({arrival.staleness for arrival in arrivals}) > 3
    assert_same(models, naive_defedavg(arrivals, 0.6), dtype)


def test_busy_clients_do_it_afterwards(uploads, tmp_path):
    """A trip of client i takes so long after it was given, or after the client's one before."""
    durations = [0.3, 1.0, 1.3, 1.7, 2.2, 3.1, 11.0]
    rows = [f"{client},0,{duration}" for client, duration in enumerate(durations)]
    (tmp_path / "trace.csv").write_text("\n".join(["client,start,duration", *rows]))
    run_queued(torch.float64, td.Trace(file=tmp_path / "trace.csv"), 40)
    free, waited = [0.0] * CLIENTS, 0
    for upload in sorted(uploads, key=lambda upload: upload["trip"]):
        client, given = int(upload["client"]), upload["start_time"]
        waited += free[client] > given
        free[client] = max(free[client], given) + durations[client]
        assert upload["time"] == pytest.approx(free[client])
    assert waited > 10


def test_each_step_gives_its_model_to_so_many_different_clients(uploads):
    run_queued(torch.float64, td.HalfNormal(), 60)
    given = defaultdict(list)
    for upload in uploads:
        given[upload["start_version"]].append(upload["client"])
    assert all(len(set(clients)) == len(clients) for clients in given.values()), "drawn twice at one version"
    assert len(given[0]) == TASKS
    assert {len(given[version]) for version in range(1, 20)} == {BUFFER}
    assert {client for clients in given.values() for client in clients} == set(range(CLIENTS))
    moved = [upload["time"] for upload in uploads][BUFFER - 1 :: BUFFER]  # when the model moved
    for upload in uploads:
        assert upload["start_version"] == sum(time <= upload["start_time"] for time in moved)


def test_slow_clients_count_as_often_as_quick_ones(uploads):
    """That is what the queue is for."""
    run_queued(torch.float64, UNEQUAL, 700)
    share = np.array(list(Counter(upload["client"] for upload in uploads).values())) / len(uploads)
    assert len(share) == CLIENTS
    np.testing.assert_allclose(share, 1 / CLIENTS, rtol=0.2)


def test_who_gives_up_is_replaced_at_once(uploads):
    run_queued(torch.float64, td.HalfNormal(give_up=0.3), 30)
    assert len(uploads) == 30 * BUFFER


def test_resumed_is_the_same_to_the_bit():
    def simulation():
        config = td.Config(
            algorithm=DeFedAvg(lr=0.6), local=td.Local(steps=LOCAL_STEPS, batch_size=2, lr=LOCAL_LR),
            pace=QUEUED, delay=UNEQUAL, buffer=td.Buffer(size=BUFFER, staleness_bound=9),
            stop=td.Stop(steps=25),
        )  # fmt: skip
        module = Quadratic(torch.tensor(X0, dtype=torch.float32))
        return build(config, module, {i: (A[i], B[i]) for i in range(CLIENTS)}, head=SquaredError())

    def finished(simulation):
        events = [event for group in records(simulation.engine.run()) for event in group]
        return simulation.engine.snapshot()[0], events[-1]

    final, end = finished(simulation())
    for stop_after in (1, 17, 40, 71):
        first = simulation()
        for _, _ in zip(range(stop_after), first.engine.run()):
            pass
        tensors, document = first.engine.snapshot()
        second = simulation()
        second.engine.restore(
            {name: tensor.clone() for name, tensor in tensors.items()}, json.loads(json.dumps(document))
        )
        resumed, resumed_end = finished(second)
        assert resumed_end == end
        assert resumed.keys() == final.keys()
        assert all(torch.equal(resumed[name], final[name]) for name in final), stop_after


@pytest.mark.parametrize(("setting", "value"), [("lr", 0.0), ("lr", float("nan")), ("momentum", "ema")])
def test_bad_settings_are_named(setting, value):
    with pytest.raises(ValidationError) as raised:
        DeFedAvg(**{setting: value})
    assert raised.value.errors()[0]["loc"] == (setting,)
