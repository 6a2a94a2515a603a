"""Uploads that are far too long do not count, once and for all; private runs judge nobody by values."""

import asyncio
import contextlib
import logging
import random
import shutil
from dataclasses import replace

import pytest
import torch
from service_harness import Memory, Puppet, app_of, serving, settled
from test_recovery import Stopped

import tardigrad as td
from tardigrad.core.outcomes import Reason
from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.monitor.status import status_of
from tardigrad.service.server.norm_limits import ENOUGH, WINDOW, Admission, largest_norm

SERVICE = {"requests_per_second": 10_000, "poll_seconds": 0.2, "linger_seconds": 0.0}
CONFIG = td.Config(
    data=td.Digits(partition=td.IID(clients=6)), model=td.MLP(hidden=(8,)), algorithm=td.FedBuff(),
    pace=td.Asynchronous(concurrency=6), buffer=td.Buffer(size=3), stop=td.Stop(trips=10_000),
    local=td.Local(steps=2, batch_size=16, lr=0.1), service=SERVICE,
)  # fmt: skip
SIMULATION = build(CONFIG)


def changed(config, **tables):
    return td.Config(**(dict(config) | tables))


class Sender(Puppet):
    """A client that may change what it has trained before it delivers it."""

    def __init__(self, connection, name, app, folder):
        super().__init__(connection, ClientTrainer(name, app), folder / f"{name}.state")

    async def trip(self, change=lambda vector: vector, **fields):
        """One whole trip; the answer."""
        return await self.send(await self.fetch(), change, **fields)

    async def send(self, trip, change=lambda vector: vector, **fields):
        trained = self.trainee.train(self.holding.pop(trip), self.remembering.memory)
        vectors = {name: change(vector) for name, vector in trained.upload.vectors.items()}
        upload = replace(trained.upload, vectors=vectors)
        report = {name: fields.pop(name) for name in ("metrics", "evaluated") if name in fields}
        return await self.connection.deliver(replace(trained, upload=replace(upload, **fields), **report))


@contextlib.asynccontextmanager
async def senders(running, count, folder):
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for number in range(count):
            connection = await stack.enter_async_context(running.connect(str(number)))
            found.append(Sender(connection, str(number), app_of(SIMULATION, number), folder))
        yield found


async def values_of(running):
    """The model and what else the values thread has made of all that counts until now."""
    values = running.coordinator.model_state
    return await running.coordinator._threads.in_model_thread(
        lambda: (values.aggregator.version, values.aggregator.evaluated_model.clone(), values.discarded)
    )


def lies(value):
    return lambda vector: torch.full_like(vector, value)


def longer(factor):
    return lambda vector: factor * vector


def test_uploads_of_1e30_do_not_count_and_the_model_stays_finite(tmp_path, caplog):
    async def scene():
        async with serving(CONFIG, tmp_path) as running, senders(running, 2, tmp_path) as (ann, liar):
            answers = [await liar.trip(lies(1e30)) for _ in range(4)]
            assert {(answer.accepted, answer.reason) for answer in answers} == {(False, "norm too large")}
            assert list((tmp_path / "uploads").iterdir()) == []
            for _ in range(3):
                assert (await ann.trip()).accepted
            version, model, _ = await values_of(running)
            assert version == 1
            assert bool(torch.isfinite(model).all())
            assert running.refusals == {}
            status = status_of(running.coordinator, running.server.servicer)
            assert status.uploads_refused == {"norm too large": 4}
            return running.record.events

    events = asyncio.run(scene())
    told = [event for event in events if event["event"] == "upload"]
    assert [(event["accepted"], event["reason"]) for event in told[:4]] == [(False, "norm too large")] * 4
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert any("its norm is" in record.getMessage() for record in warned)


def test_no_buffer_of_admitted_uploads_overflows():
    for size, weights, examples in ((1, "equal", 5), (1000, "examples", 2**31), (10**6, "equal", 1)):
        buffer = td.Buffer(size=size, weights=weights)
        norm = largest_norm(buffer, 0, examples)
        weight = examples if weights == "examples" else 1
        total = torch.tensor(norm, dtype=torch.float32) * weight * size
        assert bool(torch.isfinite(total))
        assert bool(torch.isfinite((total / weight / size) ** 2))
        assert Admission(norm).refusal(1.01 * norm) is Reason.NORM
        assert Admission(norm).refusal(float("inf")) is Reason.NORM
        assert Admission(norm).refusal(0.99 * norm) is None


def test_the_limit_follows_the_median_of_the_last_accepted_uploads():
    admission = Admission(1e18, multiple=100.0)
    for number in range(ENOUGH - 1):
        admission.accepted(1.0 + number % 2)
        assert admission.refusal(1e6) is None  # too few are known
    admission.accepted(1.0)
    assert (admission.refusal(99.0), admission.refusal(201.0)) == (None, Reason.OUTLIER)
    for _ in range(WINDOW):
        admission.accepted(50.0)
    assert (admission.refusal(4999.0), admission.refusal(5001.0)) == (None, Reason.OUTLIER)
    again = Admission(1e18, multiple=100.0)
    again.restore(admission.state())
    assert (again.refusal(4999.0), again.refusal(5001.0)) == (None, Reason.OUTLIER)
    idle = Admission(1e18, multiple=100.0)
    for _ in range(ENOUGH):
        idle.accepted(0.0)
    assert idle.refusal(1.0) is None  # nothing can be said while most uploads are zero
    assert Admission(1e18, bound=5.0).refusal(5.1) is Reason.NORM


@pytest.mark.parametrize(
    ("service", "reason"),
    [
        ({}, "norm far above the others"),
        ({"norm_multiple": 0.0}, ""),
        ({"norm_bound": 100.0}, "norm too large"),
    ],
)
def test_an_upload_far_longer_than_the_others_does_not_count(service, reason, tmp_path):
    config = changed(CONFIG, service=SERVICE | service)

    async def scene():
        async with serving(config, tmp_path) as running, senders(running, 2, tmp_path) as (ann, liar):
            assert (await liar.trip(longer(50))).accepted
            for _ in range(ENOUGH):
                assert (await ann.trip()).accepted
            answer = await liar.trip(longer(1e5))
            assert (answer.accepted, answer.reason) == (not reason, reason)
            assert (await liar.trip(longer(5))).accepted

    asyncio.run(scene())


@pytest.mark.parametrize("multiple", [-1.0, 0.5, float("inf")])
def test_norm_multiple_below_one_is_refused(multiple):
    with pytest.raises(ValueError, match="norm_multiple"):
        td.Config(service={"norm_multiple": multiple})


def test_a_step_that_would_not_be_finite_leaves_the_model_as_it_was(tmp_path, caplog):
    """With such a learning rate a mean that is itself finite is too large."""
    config = changed(CONFIG, algorithm=td.FedBuff(lr=1e28, momentum=td.Approximation(beta=0.8, ridge=0.01)))

    async def scene(folder, record, snapshot, deltas):
        async with serving(config, folder, record, snapshot) as running:
            async with senders(running, 1 if deltas else 0, tmp_path) as found:
                for delta in deltas:
                    assert (await found[0].trip(lies(delta))).accepted
            found = await values_of(running)
            await running.coordinator._threads.in_model_thread(running.coordinator.model_state.settle)
            shutil.copytree(folder, tmp_path / f"copy of {folder.name}")
            status = status_of(running.coordinator, running.server.servicer)
            return found, running.record, running.coordinator.model_state.broadcasts, status

    (version, model, discarded), record, broadcasts, status = asyncio.run(
        scene(tmp_path / "run", Memory(), None, [0.0] * 3 + [0.0, 1e15, 0.0] + [1e-30] * 3)
    )
    assert (version, discarded, status.steps_discarded) == (3, 1, 1)
    steps = [event for event in record.events if event["event"] == "step"]
    assert [event["version"] for event in steps] == [1, 2, 3]
    assert [event.get("discarded", False) for event in steps] == [False, True, False]
    start = build(config).model
    assert bool(torch.isfinite(model).all())
    assert not torch.equal(model, start)  # the third step has moved it
    assert torch.equal(broadcasts[3].vectors["model"], model)
    assert any("is discarded" in record.getMessage() for record in caplog.records)

    # a run that never saw the bad buffer, but for an empty step, comes to the same model
    (_, other, _), *_ = asyncio.run(scene(tmp_path / "other", Memory(), None, [0.0] * 3 + [1e-30] * 3))
    assert torch.equal(model, other)

    (again, same, number), recovered, _, _ = asyncio.run(scene(tmp_path / "copy of run", Memory(), None, []))
    assert (again, number) == (3, 1)
    assert torch.equal(same, model)
    assert [event for event in recovered.events if event["event"] == "step"] == steps


@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_with_refused_uploads_is_recovered_at_any_point(seed, tmp_path):
    print("seed", seed)
    chance = random.Random(seed)
    config = changed(
        CONFIG, algorithm=td.RobustFedBuff(momentum="ema"),
        buffer=td.Buffer(size=3, staleness_bound=3, most_per_client=2),
    )  # fmt: skip
    copies = []

    async def straight():
        async with serving(config, tmp_path / "run") as running, senders(running, 4, tmp_path) as clients:
            coordinator = running.coordinator
            refused = coordinator.run_state.refused
            for number in range(110):
                if number == 60:
                    await coordinator.recovery.snapshot()
                client = clients[chance.randrange(4)]
                if not client.holding:
                    if coordinator.run_state.book.objection(str(clients.index(client))) is None:
                        await client.fetch()
                    continue
                change = chance.choice([longer(1.0)] * 4 + [longer(1e4), lies(1e30), lies(1e17)])
                await client.send(next(iter(client.holding)), change)
                if chance.random() < 0.2:  # as if the power failed here
                    folder = tmp_path / f"copy-{number}"
                    await settled(running)
                    shutil.copytree(tmp_path / "run", folder)
                    state = coordinator.run_state.state()
                    copies.append((folder, Stopped(running.record), state, await values_of(running)))
            assert refused[Reason.NORM] > 0
            assert refused[Reason.OUTLIER] > 0
            return coordinator.run_state.state()["norms"]

    async def recovered(folder, record, state, values):
        limits = {"norm_multiple": 1.0, "norm_bound": 1e-9}  # for later uploads: these are not judged again
        other = changed(config, service=SERVICE | limits)
        async with serving(other, folder, record, record.last) as running:
            assert running.coordinator.run_state.state() == state
            version, model, discarded = await values_of(running)
            assert (version, discarded) == (values[0], values[2])
            assert torch.equal(model, values[1])

    norms = asyncio.run(straight())
    assert len(norms) > ENOUGH
    assert len(copies) > 4
    assert any(record.last for _, record, _, _ in copies)
    assert not all(record.last for _, record, _, _ in copies)
    for copy in copies:
        asyncio.run(recovered(*copy))


LIARS = {
    "1e30": lies(1e30),
    "50 times the norm, the other way": longer(-50.0),
}


def test_a_robust_mean_learns_among_liars(tmp_path):
    """Two clients of twelve lie in every trip; the order of deliveries is drawn."""
    clients = td.Digits(partition=td.IID(clients=12))
    config = changed(
        CONFIG, data=clients, model=td.MLP(hidden=(16,)), algorithm=td.RobustFedBuff(),
        pace=td.Asynchronous(concurrency=12), buffer=td.Buffer(size=10, most_per_client=2),
        local=td.Local(epochs=3, batch_size=16, lr=0.3), evaluation=td.Evaluation(every_steps=1000),
    )  # fmt: skip
    simulation = build(config)

    async def scene(name, liars, lie):
        async with (
            serving(config, tmp_path / name) as running,
            contextlib.AsyncExitStack() as stack,
        ):
            puppets = []
            for number in range(12):
                connection = await stack.enter_async_context(running.connect(str(number)))
                app = app_of(simulation, number)
                puppets.append(Sender(connection, f"{name}-{number}", app, tmp_path))
            chance = random.Random(3)
            for _ in range(5):
                trips = [await one.fetch() for one in puppets]
                for number in chance.sample(range(12), 12):
                    change = lie if number < liars else longer(1.0)
                    await puppets[number].send(trips[number], change)
            _, model, discarded = await values_of(running)
            assert discarded == 0
            return running.run.plan.evaluate(model, 0)["accuracy"]

    honest = asyncio.run(scene("honest", 0, None))
    assert honest > 0.9
    for name, lie in LIARS.items():
        assert asyncio.run(scene(name, 2, lie)) > honest - 0.05, name


PRIVATE = td.Config(
    data=td.Digits(partition=td.IID(clients=6)), model=td.MLP(hidden=(8,)),
    pace=td.Asynchronous(concurrency=6), buffer=td.Buffer(size=2, staleness_bound=5), stop=td.Stop(steps=20),
    local=td.Local(steps=2, batch_size=16, lr=0.1),
    privacy=td.Participation(epsilon=20.0, participations=9, separation=1, noise_from="seed"),
    service=SERVICE,
)  # fmt: skip
ODD = {
    "1e30": {"change": lies(1e30)},
    "no examples": {"examples": 0},
    "many examples": {"examples": 2**40},
    "no steps": {"steps": 0},
    "a loss that is none": {"loss": float("nan")},
    "metrics": {"metrics": {"accuracy": 1.0, "[/]": float("inf")}, "evaluated": 2**40},
    "not a number": {"change": lies(float("nan"))},
}


@pytest.mark.parametrize("what", ODD)
def test_a_private_run_counts_every_upload_and_keeps_nothing_of_what_it_says(what, tmp_path):
    async def scene():
        async with serving(PRIVATE, tmp_path) as running, senders(running, 2, tmp_path) as (ann, odd):
            # what the mechanism makes of numbers that are not finite is tested with it
            running.coordinator.ended.add_done_callback(lambda ended: ended.exception())
            assert (await ann.trip()).accepted
            assert (await odd.trip(**ODD[what])).accepted
            assert running.refusals == {}
            return [entry for _, entry in running.coordinator._store.entries(0) if entry.kind == "deliver"]

    entries = asyncio.run(scene())
    assert len(entries) == 2
    for entry in entries:
        assert (entry.examples, entry.steps, entry.loss, entry.evaluated) == (1, 1, 0.0, 0)
        assert (entry.metrics, entry.norm, entry.refusal) == ("{}", 0.0, "")


@pytest.mark.parametrize("limit", ["norm_bound", "examples_bound"])
def test_a_private_run_takes_no_limit_on_values(limit, tmp_path):
    config = changed(PRIVATE, service=SERVICE | {limit: 100})

    async def scene():
        async with serving(config, tmp_path):
            pass

    with pytest.raises(ConfigError, match=rf"service\.{limit}: with privacy"):
        asyncio.run(scene())
