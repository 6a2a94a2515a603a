"""Operators steer a run that clients take part in: the bits stay, nothing hangs, and all acts survive."""

import asyncio
import json
import shutil
import threading

import grpc
import pytest
import torch
from service_harness import (
    PATIENCE,
    Memory,
    Puppet,
    comparable,
    fetched,
    replay,
    serving,
    settled,
    trace_of,
    two_puppets,
)
from test_participant import participant

import tardigrad as td
from tardigrad.errors import RunError
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import RetryLater
from tardigrad.service.protocol.refusals import PAUSED, Cause
from tardigrad.service.server.steering import STOPPED
from tardigrad.service.store.audit_verification import verified

SERVICE = {"requests_per_second": 10_000, "snapshot_seconds": 1e6, "poll_seconds": 0.05}
CONFIG = td.Config(
    algorithm=td.FedBuff(), data=td.Digits(partition=td.IID(clients=6)), model=td.MLP(hidden=(8,)),
    pace=td.Asynchronous(concurrency=4), buffer=td.Buffer(size=3), stop=td.Stop(trips=24),
    evaluation=td.Evaluation(every_steps=2), delay=td.HalfNormal(give_up=0.1),
    local=td.Local(batch_size=32, lr=0.1), service=SERVICE,
)  # fmt: skip


def run(scene):
    return asyncio.run(asyncio.wait_for(scene, PATIENCE))


def acts(folder):
    """The acts in the audit log of a run, which is whole."""
    return [line["act"] for line in verified(folder / "audit.jsonl")]


async def why_refused(call):
    """The cause of the server's refusal."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return dict(caught.value.trailing_metadata())["tardigrad-why"]


def killed(folder):
    """The folder of a run as a kill of its server leaves it."""
    copy = folder.with_name(f"{folder.name}-killed")
    shutil.copytree(folder, copy)
    return copy


def test_paused_and_resumed_run_has_the_bits_and_events_of_one_that_was_not(tmp_path, monkeypatch):
    monkeypatch.setattr("tardigrad.service.server.admin_rpc.REQUESTS_PER_SECOND", 1e6)
    simulation, events, steps = trace_of(CONFIG)

    async def served():
        async with serving(CONFIG, tmp_path) as running, running.operator() as root:

            class Paused(Puppet):
                async def fetch(self):
                    assert (await root.steer("pause")).changed
                    found = await self.connection.fetch(self.holding)
                    assert isinstance(found, RetryLater)
                    assert found.reason == PAUSED
                    assert (await root.steer("resume")).changed
                    return await super().fetch()

                async def deliver(self, trip):
                    assert (await root.steer("pause")).state == "paused"
                    answer = await super().deliver(trip)
                    await root.steer("resume")
                    return answer

            return await replay(running, simulation, steps, puppet_kind=Paused), running

    reason, running = run(served())
    assert reason == events[-1]["reason"]
    assert torch.equal(running.coordinator.model_state.aggregator.evaluated_model, simulation.model)
    assert comparable(running.record.events) == comparable(events)
    done = acts(tmp_path)
    assert len(done) > 40
    assert done == (["pause", "resume"] * len(done))[: len(done)]


def test_paused_run_stays_paused_after_a_kill_and_after_a_snapshot(tmp_path):
    simulation = build(CONFIG)

    async def straight():
        record = Memory()
        async with serving(CONFIG, tmp_path / "run", record) as running:
            async with two_puppets(running, simulation, ["0", "1"]) as (ann, bob), running.operator() as root:
                first, _ = await ann.fetch(), await bob.fetch()
                steered = await root.steer("pause", reason="maintenance")
                assert (steered.changed, steered.under_way, steered.audit) == (True, 2, 1)
                assert not (await root.steer("pause")).changed
                assert (await ann.deliver(first)).accepted
                journal_alone = killed(tmp_path / "run")
                await running.coordinator.recovery.snapshot()
                await settled(running)
                shutil.copytree(tmp_path / "run", tmp_path / "snapshot")
            return running.coordinator.run_state.state(), journal_alone, record.snapshots[0], running.signers

    state, journal_alone, snapshot, signers = run(straight())
    assert state["steering"]["paused"][0] == "root"

    async def again(folder, snapshot):
        async with serving(CONFIG, folder, snapshot=snapshot, signers=dict(signers)) as running:
            found = running.coordinator.run_state.state()
            async with running.connect("2") as eve, running.operator() as root:
                assert (await eve.fetch()).reason == PAUSED
                assert (await root.steer("resume")).audit == 2
                assert (await fetched(eve)).task.trip == 2
            return found

    for folder, of in ((journal_alone, None), (tmp_path / "snapshot", snapshot)):
        found = run(again(folder, of))
        assert json.loads(json.dumps(found)) == json.loads(json.dumps(state))
        assert acts(folder) == ["pause", "resume"]


def test_ejected_client_is_refused_at_once_and_its_trip_ends(tmp_path):
    simulation = build(CONFIG)

    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            async with two_puppets(running, simulation, ["0", "1"]) as (ann, bob), running.operator() as root:
                first, second = await ann.fetch(), await bob.fetch()
                assert (await bob.deliver(second)).accepted
                steered = await root.steer("eject", client="0")
                assert (steered.changed, steered.ended) == (True, 1)
                assert running.coordinator.run_state.open == {}
                for call in (ann.deliver(first), ann.connection.fetch(), ann.connection.give_up(first, 0)):
                    assert await why_refused(call) == Cause.EJECTED
                with pytest.raises(RunError, match="ejected from this run by its operator"):
                    await participant(running, "0", 0, simulation).take_part()
                await bob.fetch()
                assert (await root.steer("admit", client="0")).changed
                assert (await ann.deliver(await ann.fetch())).accepted
            given_up = [event for event in running.record.events if event["event"] == "give_up"]
            assert [event["trip"] for event in given_up] == [first]
            assert running.coordinator.run_state.book.accepted == 2, "what counted stays"

    run(scene())
    assert acts(tmp_path) == ["eject", "admit"]


def test_upload_that_is_being_received_does_not_count_after_an_eject(tmp_path, monkeypatch):
    monkeypatch.setattr("tardigrad.service.server.upload_reception.SMALL", 0)  # it is stored before its entry
    simulation = build(CONFIG)

    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            coordinator, storing, go_on = running.coordinator, asyncio.Event(), threading.Event()
            write, loop = coordinator.write, asyncio.get_running_loop()

            def slowly(trip, payload):
                loop.call_soon_threadsafe(storing.set)
                assert go_on.wait(PATIENCE)
                return write(trip, payload)

            coordinator.write = slowly
            async with two_puppets(running, simulation, ["0", "1"]) as (ann, _), running.operator() as root:
                delivery = asyncio.ensure_future(ann.deliver(await ann.fetch()))
                await storing.wait()
                assert (await root.steer("eject", client="0")).ended == 1
                go_on.set()
                assert await why_refused(delivery) == Cause.EJECTED
            assert (coordinator.run_state.trips, coordinator.run_state.book.accepted) == (0, 0)
            assert len(coordinator.busy) == 0
            return coordinator.run_state.state(), killed(tmp_path)

    state, copy = run(scene())

    async def recovered():
        async with serving(CONFIG, copy) as running:
            return running.coordinator.run_state.state()

    assert json.loads(json.dumps(run(recovered()))) == json.loads(json.dumps(state))


def test_round_goes_on_when_a_client_that_hangs_is_ejected(tmp_path):
    config = CONFIG.model_copy(
        update={
            "algorithm": td.FedAvg(),
            "pace": td.Synchronous(cohort=2),
            "buffer": td.Buffer(),
            "stop": td.Stop(steps=3),
        }
    )
    simulation = build(config)

    async def scene():
        async with serving(config, tmp_path) as running, running.operator() as root:
            async with running.connect("0") as hanging:
                await fetched(hanging)
                others = [participant(running, str(c), c, simulation).take_part() for c in (1, 2)]
                working = asyncio.gather(*others)
                while running.coordinator.run_state.trips < 1:
                    await asyncio.sleep(0.01)
                assert running.coordinator.run_state.book.version == 0, "the round waits for the first"
                await root.steer("eject", client="0")
                assert await working == ["steps", "steps"]
            return running.record.events

    events = run(scene())
    uploads = [event["client"] for event in events if event["event"] == "upload"]
    assert "0" not in uploads  # one of the others may have made all trips, if the other came late
    assert len(uploads) >= 3


def test_participations_of_an_ejected_client_stay_counted(tmp_path):
    config = CONFIG.model_copy(
        update={
            "privacy": td.Participation(participations=1, separation=1, noise_multiplier=0.5, clip=0.5),
            "buffer": td.Buffer(size=1),
            "stop": td.Stop(steps=4),
        }
    )
    simulation = build(config)

    async def scene():
        async with serving(config, tmp_path) as running, running.operator() as root:
            async with two_puppets(running, simulation, ["0", "1"]) as (ann, bob):
                assert (await ann.deliver(await ann.fetch())).accepted
                await root.steer("eject", client="0")
                await root.steer("admit", client="0")
                assert isinstance(await ann.connection.fetch(), RetryLater), "it took part as often as it may"
                trip = await bob.fetch()
                await root.steer("eject", client="1")
                await root.steer("admit", client="1")
                assert await bob.fetch() != trip, "the trip that was ended is not given out again"
            return running.coordinator.run_state.state(), killed(tmp_path)

    state, copy = run(scene())

    async def recovered():
        async with serving(config, copy) as running:
            return running.coordinator.run_state.state()

    assert json.loads(json.dumps(run(recovered()))) == json.loads(json.dumps(state))


def test_changed_concurrency_is_repeated_with_the_check_ins_that_depend_on_it(tmp_path):
    config = CONFIG.model_copy(update={"pace": td.Asynchronous(concurrency=1)})

    async def straight():
        record = Memory()
        async with serving(config, tmp_path / "run", record) as running, running.operator() as root:
            async with running.connect("0") as ann, running.connect("1") as bob, running.connect("2") as eve:
                await fetched(ann)
                assert isinstance(await bob.fetch(), RetryLater)
                steered = await root.steer("limits", limits={"concurrency": 2, "ticket_seconds": 50})
                assert dict(steered.limits) == {
                    "concurrency": 2,
                    "ticket_seconds": 50,
                    "requests_per_second": 10_000,
                }
                await fetched(bob)
                await root.steer("limits", limits={"concurrency": 1})
                assert isinstance(await eve.fetch(), RetryLater)
                assert not (await root.steer("limits", limits={"concurrency": 1})).changed
                journal_alone = killed(tmp_path / "run")
                await running.coordinator.recovery.snapshot()
                await settled(running)
                shutil.copytree(tmp_path / "run", tmp_path / "snapshot")
            return running.coordinator.run_state.state(), journal_alone, record.snapshots[0]

    state, journal_alone, snapshot = run(straight())
    assert state["book"]["next_trip"] == 2

    async def again(folder, snapshot):
        async with serving(config, folder, snapshot=snapshot) as running:
            assert running.coordinator.settings.ticket_seconds == 50
            assert running.coordinator.run_state.book.pace.concurrency == 1
            return running.coordinator.run_state.state()

    for folder, of in ((journal_alone, None), (tmp_path / "snapshot", snapshot)):
        assert json.loads(json.dumps(run(again(folder, of)))) == json.loads(json.dumps(state))


@pytest.mark.parametrize("paused", [False, True])
def test_stopped_run_ends_with_an_evaluation_of_its_last_version(tmp_path, paused):
    simulation = build(CONFIG)

    async def scene():
        async with serving(CONFIG, tmp_path) as running, running.operator() as root:
            async with two_puppets(running, simulation, ["0", "1"]) as (ann, bob):
                for puppet in (ann, bob, ann):
                    await puppet.deliver(await puppet.fetch())
                await bob.fetch()
                if paused:
                    await root.steer("pause")
                assert (await root.steer("stop", reason="good enough")).state == "over"
                assert await asyncio.shield(running.coordinator.ended) == STOPPED
                assert (await ann.connection.fetch()).reason == STOPPED
                steered = await root.steer("resume")
                assert (steered.changed, steered.state) == (False, "over")
            return running.record.events

    events = run(scene())
    assert [event["event"] for event in events[-2:]] == ["evaluation", "end"]
    assert (events[-2]["version"], events[-1]["reason"]) == (1, STOPPED)
    assert acts(tmp_path) == ["pause"] * paused + ["stop"]


def test_stopped_run_keeps_the_evaluations_that_clients_have_reported(tmp_path):
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] > 0).long()
    config = td.Config(
        data=None, model=None, pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=3),
        stop=td.Stop(trips=24), evaluation=td.Evaluation(every_steps=1), local=td.Local(steps=1),
        service=SERVICE | {"population": 2},
    )  # fmt: skip

    async def scene():
        async with (
            serving(config, tmp_path, model=torch.nn.Linear(4, 2)) as running,
            running.operator() as root,
            running.connect("ann") as connection,
            running.connect("bob") as other,
        ):
            trainee = ClientTrainer("ann", td.Client(torch.nn.Linear(4, 2), (x, y), held_out=(x, y)))
            ann = Puppet(connection, trainee, tmp_path / "ann")
            await fetched(other)  # it is under way from the version that was reported about
            assert (await ann.deliver(await ann.fetch())).accepted
            await root.steer("stop")
            assert await asyncio.shield(running.coordinator.ended) == STOPPED
            return running.record.events

    events = run(scene())
    assert [event["event"] for event in events[-2:]] == ["evaluation", "end"]
    assert (events[-2]["federated"], events[-2]["clients"]) == (True, 1)


def test_stopped_run_is_over_after_a_kill_before_its_end_was_written(tmp_path):
    async def straight():
        async with serving(CONFIG, tmp_path / "run") as running, running.operator() as root:
            coordinator = running.coordinator
            coordinator._finish = lambda: asyncio.sleep(0)  # killed before
            await root.steer("stop")
            return killed(tmp_path / "run")

    copy = run(straight())

    async def again():
        async with serving(CONFIG, copy) as running:
            assert await asyncio.shield(running.coordinator.ended) == STOPPED
            return running.record.events

    assert run(again())[-1]["event"] == "end"
    assert acts(copy) == ["stop"]


@pytest.mark.parametrize("damage", ["cut", "broken"])
def test_damaged_audit_log_is_accepted_once(tmp_path, damage):
    async def straight(record):
        async with serving(CONFIG, tmp_path / "run", record) as running, running.operator() as root:
            for act in ("pause", "resume", "pause"):
                await root.steer(act)
        return running.signers  # a snapshot was made at the end

    first = Memory()
    signers = run(straight(first))
    audit = tmp_path / "run" / "audit.jsonl"
    lines = audit.read_text().splitlines(keepends=True)
    audit.write_text(lines[0] if damage == "cut" else "".join(lines).replace("root", "ruth"))

    async def accepting(record):
        given = {"snapshot": first.snapshots[-1], "signers": signers, "accept_loss": True}
        async with serving(CONFIG, tmp_path / "run", record, **given) as running, running.operator() as root:
            await root.steer("resume")
            while not record.snapshots:
                await asyncio.sleep(0.01)
            killed(tmp_path / "run")

    second = Memory()
    run(accepting(second))

    async def again():
        given = {"snapshot": second.snapshots[0], "signers": signers}
        async with serving(CONFIG, tmp_path / "run-killed", **given) as running, running.operator() as root:
            assert (await root.steer("pause")).changed

    run(again())
    assert acts(tmp_path / "run-killed") == ["pause"] * (damage == "cut") + ["resume", "pause"]
