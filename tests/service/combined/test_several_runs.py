"""Several runs on one server: each is as it would be alone, and none touches another."""

import asyncio
import contextlib
import logging
import os
import queue
import random
import signal
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from service_harness import PATIENCE, app_of, assert_simulated, fetched, trace_of
from several_runs import RunClients, serving_several
from test_kills import Servers, Survivor, ended

import tardigrad as td
from tardigrad.errors import ConfigError, RunError
from tardigrad.experiments.runs import hosted_run
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.access.enrolment import LIST, make_key, public_text, read_key
from tardigrad.service.access.new_clients import add_clients
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.client_memory import ClientMemory
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import Connection
from tardigrad.service.client.participant import Participant
from tardigrad.service.monitor.status import read_status
from tardigrad.service.protocol.refusals import Cause
from tardigrad.service.protocol.v1 import service_pb2 as v1

SERVICE = {
    "requests_per_second": 10_000, "poll_seconds": 0.2, "linger_seconds": 0.0, "snapshot_seconds": 0.05,
    "idle_seconds": PATIENCE,
}  # fmt: skip
HEART = td.Config(
    algorithm=td.FedAC(), data=td.Digits(partition=td.IID(clients=6)), model=td.MLP(hidden=(8,)),
    pace=td.Asynchronous(concurrency=4), buffer=td.Buffer(size=3, staleness_bound=2, most_per_client=3),
    stop=td.Stop(trips=24), evaluation=td.Evaluation(every_steps=2), delay=td.HalfNormal(give_up=0.1),
    local=td.Local(batch_size=32, lr=0.1), service=SERVICE,
)  # fmt: skip
LUNG = HEART.model_copy(
    update={
        "algorithm": td.SCAFFOLD(),
        "model": td.MLP(hidden=()),
        "pace": td.Synchronous(cohort=3, selected=5),
        "buffer": td.Buffer(most_per_client=3),
        "seed": 5,
    }
)
BRAIN = HEART.model_copy(
    update={
        "algorithm": td.FedBuff(momentum=td.Approximation()),
        "model": td.MLP(hidden=(4,)),
        "encoding": td.Int8(error_feedback=True),
        "broadcast": td.DifferenceBroadcast(encoding=td.Int4()),
    }
)
THREE = {"heart": HEART, "lung": LUNG, "brain": BRAIN}
SMALL = td.Config(
    data=td.Digits(partition=td.IID(clients=4)), model=td.MLP(hidden=()), algorithm=td.FedBuff(),
    pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=1), stop=td.Stop(trips=6),
    local=td.Local(steps=1), service=SERVICE,
)  # fmt: skip
OTHER = SMALL.model_copy(update={"model": td.MLP(hidden=(4,)), "stop": td.Stop(trips=10)})
FOREVER = SMALL.model_copy(update={"stop": td.Stop(trips=10**6)})


def together(steps_by_run, chance):
    """The steps of several runs in one random order, each run's in its own."""
    left = {name: list(reversed(steps)) for name, steps in steps_by_run.items()}
    while left:
        name = chance.choice(sorted(left))
        yield name, left[name].pop()
        if not left[name]:
            del left[name]


def done(scene):
    return asyncio.run(asyncio.wait_for(scene, PATIENCE))


async def refused(call):
    """Return why a call is refused, and with which sentence."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return dict(caught.value.trailing_metadata())["tardigrad-why"], caught.value.details()


def enroll(keys, name, *runs):
    """A key for this client, on the list for these runs, or for all."""
    key = make_key(keys / f"{name}.key")
    add_clients(keys / LIST, {name: public_text(key)}, runs)
    return key


def test_each_of_three_runs_has_the_bits_that_it_has_alone(tmp_path):
    traces = {name: trace_of(config) for name, config in THREE.items()}

    async def scene():
        async with contextlib.AsyncExitStack() as stack, serving_several(tmp_path, THREE) as running:
            clients = {
                name: RunClients(running, name, simulation, stack)
                for name, (simulation, _, _) in traces.items()
            }
            steps = {name: steps for name, (_, _, steps) in traces.items()}
            for name, step in together(steps, random.Random(3)):
                await clients[name].do(*step)
            for name, run in running.runs.items():
                assert await asyncio.shield(run.coordinator.ended) == traces[name][1][-1]["reason"]
            await running.work  # all are over, so the process ends by itself
            return len({run.coordinator.run for run in running.runs.values()})

    assert done(scene()) == 3
    for name, config in THREE.items():
        out = tmp_path / "runs" / name
        assert_simulated(out, config, traces[name][1])
        assert not (out / "journal.sqlite").exists()


class NamedSurvivor(Survivor):
    """A client of one of several runs that knows only what is on its disk when it has died."""

    run = ""

    async def do(self, address, what, trip):
        async with Connection(address, self._signer, None, run=self.run) as connection:
            if what == "give_up":
                await connection.give_up(trip, self._epochs[trip])
            else:
                await (self._fetch if what == "fetch" else self._deliver)(connection, trip)


class SeveralServers(Servers):
    """A server of several runs that is killed and started again."""

    def fork(self):
        self._process = self.commands.start(
            "serve", *sorted(self.folder.glob("*.toml")), "--out", self.folder / "runs", "--keys",
            self.folder / "keys", "--insecure", "--port", 0, "--log-level", "warning",
        )  # fmt: skip


def test_runs_are_recovered_when_the_process_is_killed(commands, tmp_path):
    configs = {"heart": HEART, "lung": LUNG}
    traces = {name: trace_of(config) for name, config in configs.items()}
    chance = random.Random(11)
    steps = list(together({name: steps for name, (_, _, steps) in traces.items()}, chance))
    moments = set(chance.sample(range(len(steps) - 20), 3))
    (tmp_path / "keys").mkdir()
    keys = {client: enroll(tmp_path / "keys", str(client)) for client in range(6)}
    survivors = {}
    for name, config in configs.items():
        # the first of both that is over waits for the other as long as it takes
        (tmp_path / f"{name}.toml").write_text(config.to_toml())
        for client in {client for _, client, _ in traces[name][2]}:
            trainee = ClientTrainer(str(client), app_of(traces[name][0], client))
            state = tmp_path / "states" / f"{client}-{name}"
            survivors[name, client] = NamedSurvivor(str(client), keys[client], trainee, state)
            survivors[name, client].run = name

    async def drive(servers):
        await servers.start()
        for number, (name, (what, client, trip)) in enumerate(steps):
            survivor, through = survivors[name, client], False
            if number in moments:
                step = asyncio.ensure_future(survivor.do(servers.address, what, trip))
                await asyncio.sleep(chance.uniform(0.0, 0.06))
                servers.kill()
                through = await ended(step)
                await servers.start()
            while not through:
                through = await ended(asyncio.ensure_future(survivor.do(servers.address, what, trip)))
        return await servers.over()

    servers = SeveralServers(commands, tmp_path)
    try:
        said = asyncio.run(asyncio.wait_for(drive(servers), 2 * PATIENCE))
        assert said.count("the run is over (trips)") == 2
        assert servers.kills == 3
    finally:
        servers.kill()
    for name, config in configs.items():
        assert_simulated(tmp_path / "runs" / name, config, traces[name][1])


def test_a_client_reaches_only_the_runs_that_it_is_enrolled_for(tmp_path):
    keys = tmp_path / "keys"
    signers = {
        "ann": enroll(keys, "ann", "heart"),
        "bob": enroll(keys, "bob", "lung"),
        "joe": enroll(keys, "joe"),
    }

    async def scene():
        configs = {"heart": FOREVER, "lung": FOREVER.model_copy(update={"model": td.MLP(hidden=(4,))})}
        async with (
            serving_several(tmp_path, configs, signers) as running,
            running.connect("ann") as ann,
            running.connect("joe", "lung") as joe,
        ):
            assert (ann.joined.name, joe.joined.name) == ("heart", "lung")
            assert ann.run != joe.run
            hidden = await refused(running.connect("ann", "lung").__aenter__())
            unknown = await refused(running.connect("ann", "liver").__aenter__())
            assert hidden[0] == unknown[0] == Cause.NOT_ENROLLED
            assert hidden[1] == unknown[1].replace("liver", "lung")  # not said which of both
            stranger = Signer("ann", Ed25519PrivateKey.generate())
            for wanted in ("heart", "lung", "liver", ""):
                joining = Connection(running.address, stranger, None, run=wanted)
                assert (await refused(joining.__aenter__()))[0] == Cause.SIGNATURE

            # the session of one run is of no use for another
            ann._signer.session = joe._signer.session
            assert (await refused(ann.give_up(0, 0)))[0] == Cause.NOT_ENROLLED
            ann._signer.session = b"x" * 16
            assert (await refused(ann.give_up(0, 0)))[0] == Cause.SESSION
            assert running.runs["heart"].servicer.refusals.counts == {}

            # nor is the upload to one run
            joes = await fetched(joe)
            async with running.connect("joe", "heart") as heart:
                held = await fetched(heart)
                simulation = build(FOREVER)
                finished = ClientTrainer("joe", app_of(simulation, 0)).train(held, {})
                heart._signer.session = joe._signer.session
                assert (await refused(heart.deliver(finished)))[1] == "this is an upload to another run"
                assert not await heart.give_up(held.task.trip, held.epoch)
                joe._signer.session = running.runs["lung"].gate.session
                assert await joe.give_up(joes.task.trip, joes.epoch)
            assert list(running.runs["heart"].at_work()) == ["joe"]

    done(scene())


def test_a_first_call_is_not_made_twice_whatever_run_it_goes_to(tmp_path):
    async def scene():
        async with serving_several(tmp_path, {"heart": FOREVER, "lung": FOREVER}) as running:
            request = v1.JoinRequest(revision=2).SerializeToString()
            signed = running.signer("ann").sign("Join", request)
            async with running.connect("ann") as ann:
                first = await ann._stub.Join(signed)
                for _ in range(3):  # with "any", another run would have room for it
                    assert (await refused(ann._stub.Join(signed)))[0] == Cause.REPLAYED
                again = await ann._stub.Join(running.signer("ann").sign("Join", request))
                assert {first.name, again.name} <= {"heart", "lung"}

    done(scene())


def any_clients(running, simulations, went, count=4):
    """Clients that take any run, at work; `went` is told by client which runs they were sent to."""
    return [
        asyncio.ensure_future(
            running.any_run(
                str(client),
                lambda run, client=client: app_of(simulations[run], client),
                went.setdefault(client, []).append,
            )
        )
        for client in range(count)
    ]


def test_clients_that_take_any_run_end_when_all_are_over(tmp_path):
    configs = {"heart": SMALL, "lung": OTHER}
    simulations = {name: build(config) for name, config in configs.items()}

    async def scene():
        async with serving_several(tmp_path, configs) as running:
            reasons = await asyncio.gather(*any_clients(running, simulations, {}))
            await running.work
            return reasons

    assert done(scene()) == ["heart: trips; lung: trips"] * 4
    for name, config in configs.items():
        status = read_status(tmp_path / "runs" / name)
        assert status.trips == config.stop.trips
        assert set(status.software.values()) == {f"tardigrad {td.__version__}"}


def test_clients_that_take_any_run_are_spread_and_move_on(tmp_path):
    configs = {"heart": SMALL, "lung": FOREVER}
    simulations, went = {name: build(config) for name, config in configs.items()}, {}

    async def scene():
        async with serving_several(tmp_path, configs) as running:
            clients = any_clients(running, simulations, went)
            while any(runs[-1:] != ["lung"] for runs in went.values()):
                await asyncio.sleep(0.01)
            assert running.runs["heart"].over == "trips"
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)

    done(scene())
    assert {runs[0] for runs in went.values()} == {"heart", "lung"}  # two at work are enough for each
    assert ["heart", "lung"] in went.values()


def test_a_kept_upload_goes_to_the_run_that_it_belongs_to(tmp_path):
    configs = {
        name: FOREVER.model_copy(update={"algorithm": td.FedAC(), "seed": seed})
        for seed, name in enumerate(("heart", "lung"))
    }
    simulation = build(configs["lung"])

    async def scene():
        async with serving_several(tmp_path, configs) as running:
            async with running.connect("0", "lung") as connection:  # up to where it dies
                memory = ClientMemory(running.keys / "0.state" / connection.run, connection.joined.name)
                trainer = ClientTrainer("0", app_of(simulation, 0))
                memory.keep(trainer.train(await fetched(connection), memory.memory))
            went = []
            again = asyncio.ensure_future(
                running.any_run("0", lambda run: app_of(simulation, 0), went.append)
            )
            coordinators = {name: run.coordinator for name, run in running.runs.items()}
            while not coordinators["lung"].run_state.trips:
                await asyncio.sleep(0.01)
            assert went == ["lung"]
            assert coordinators["heart"].run_state.trips == 0
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)

    done(scene())


@pytest.mark.parametrize("how", ["raises", "exits", "cannot be finished"])
def test_a_run_that_fails_does_not_touch_the_others(tmp_path, how, caplog):
    caplog.set_level(logging.INFO, "tardigrad.service")
    configs = {"heart": SMALL, "lung": OTHER}
    simulations = {name: build(config) for name, config in configs.items()}

    def fail(*_):
        raise (SystemExit if how == "exits" else RunError)("the disk has burnt")

    def prepare(name, run):
        if name == "heart" and how != "cannot be finished":
            run.plan.aggregator.add = fail
        elif name == "heart":
            object.__setattr__(run, "finish", fail)

    async def scene():
        async with serving_several(tmp_path, configs, prepare=prepare) as running:
            went = []
            clients = [
                running.any_run(
                    str(client), lambda run, client=client: app_of(simulations[run], client), went.append
                )
                for client in range(2)
            ]
            working = [asyncio.ensure_future(client) for client in clients]
            lung = running.runs["lung"]
            await asyncio.shield(lung.coordinator.ended)
            if "heart" not in went:  # it fails only if somebody comes
                await asyncio.wait_for(asyncio.shield(working[0]), PATIENCE)
            while running.runs["heart"].failure is None:
                await asyncio.sleep(0.01)
            await running.work
            for one in working:
                one.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            return running.runs

    runs = done(scene())
    assert "burnt" in str(runs["heart"].failure)
    assert runs["lung"].served.reason == "trips"
    assert (tmp_path / "runs" / "lung" / "summary.json").exists()
    assert not (tmp_path / "runs" / "heart" / "summary.json").exists()
    assert read_status(tmp_path / "runs" / "heart").failed.endswith("the disk has burnt")
    assert (tmp_path / "runs" / "heart" / "journal.sqlite").exists()  # it can go on
    assert not read_status(tmp_path / "runs" / "lung").failed


def test_calls_to_a_run_that_has_failed_are_refused_with_a_sentence(tmp_path):
    def prepare(name, run):
        def fail(*_):
            raise RunError("the disk has burnt")

        if name == "heart":
            run.plan.aggregator.add = fail

    async def scene():
        configs = {"heart": FOREVER, "lung": FOREVER}
        async with serving_several(tmp_path, configs, prepare=prepare) as running:
            heart = running.runs["heart"]
            async with running.connect("0", "heart") as connection, running.connect("1", "lung") as other:
                trainer = ClientTrainer("0", app_of(build(FOREVER), 0))
                with contextlib.suppress(grpc.aio.AioRpcError):  # it may have been acknowledged
                    await connection.deliver(trainer.train(await fetched(connection), {}))
                while heart.answering is heart.servicer:
                    await asyncio.sleep(0.01)
                for call in (connection.give_up(0, 0), running.connect("0", "heart").__aenter__()):
                    why, sentence = await refused(call)
                    assert (why, sentence) == (
                        Cause.FAILED, "the run heart has failed; its operator must start it again"
                    )  # fmt: skip
                async with running.connect("0") as moved:
                    assert moved.joined.name == "lung"
                assert (await fetched(other)).task.version == 0
            return running

    running = done(scene())
    assert running.runs["lung"].failure is None


def test_an_over_run_is_told_of_when_the_server_starts_again(tmp_path):
    configs = {"heart": SMALL, "lung": FOREVER}
    simulation = build(SMALL)

    async def first():
        async with serving_several(tmp_path, configs) as running:
            client = running.participant("0", "heart", app_of(simulation, 0))
            assert await client.take_part() == "trips"
            late = running.participant("1", "heart", app_of(simulation, 1))
            assert await late.take_part() == "trips"  # while the other goes on

    async def second():
        async with serving_several(tmp_path, configs) as running:
            assert list(running.runs) == ["lung"]
            late = running.participant("2", "heart", app_of(simulation, 2))
            assert await late.take_part() == "trips"
            async with running.connect("2") as connection:
                assert connection.joined.name == "lung"

    done(first())
    done(second())


def test_sighup_changes_who_may_join_which_run(tmp_path):
    async def scene():
        async with serving_several(tmp_path, {"heart": FOREVER, "lung": FOREVER}) as running:
            ann = running.signer("ann")
            async with running.connect("ann", "lung") as connection:
                line = f"ann {public_text(ann._key)}"
                (running.keys / LIST).write_text(f"{line} heart\n")
                os.kill(os.getpid(), signal.SIGHUP)
                while running.runs["lung"].gate.knows("ann"):
                    await asyncio.sleep(0.01)
                assert (await refused(connection.give_up(0, 0)))[0] == Cause.NOT_ENROLLED
                assert (await refused(running.connect("ann", "lung").__aenter__()))[0] == Cause.NOT_ENROLLED
            async with running.connect("ann") as connection:
                assert connection.joined.name == "heart"
            (running.keys / LIST).write_text(f"{line} liver\n")
            os.kill(os.getpid(), signal.SIGHUP)
            while running.runs["heart"].gate.knows("ann"):
                await asyncio.sleep(0.01)
            why, sentence = await refused(running.connect("ann").__aenter__())
            assert why == Cause.NOT_ENROLLED
            assert "for no run that is served here" in sentence

    done(scene())


def test_metrics_have_the_name_of_their_run(tmp_path, caplog):
    caplog.set_level(logging.INFO, "tardigrad.service")

    async def scene():
        async with serving_several(tmp_path, {"heart": FOREVER, "lung": FOREVER}, metrics=True) as running:
            said = [r.getMessage() for r in caplog.records if getattr(r, "event", "") == "metrics"]
            async with running.connect("0", "lung") as connection:
                await fetched(connection)
            await refused(running.connect("0", "liver").__aenter__())
            with await asyncio.to_thread(urllib.request.urlopen, said[-1].split()[-1]) as answer:
                return (await asyncio.to_thread(answer.read)).decode()

    lines = done(scene()).splitlines()
    assert 'tardigrad_tickets_in_flight{run="lung"} 1.0' in lines
    assert 'tardigrad_tickets_in_flight{run="heart"} 0.0' in lines
    assert 'tardigrad_requests_refused_total{run="",why="not enrolled"} 1.0' in lines
    assert sum(line.startswith("# TYPE tardigrad_version ") for line in lines) == 1
    of_runs = [line for line in lines if line.startswith("tardigrad_")]
    assert [line for line in of_runs if 'run="' not in line] == []


def test_a_config_that_is_wrong_is_named_before_anything_is_written(tmp_path):
    enroll(tmp_path / "keys", "ann")
    wrong = td.Config(pace=td.Poisson(), data=td.Digits(), model=td.MLP())
    endpoint = td.Endpoint(keys=tmp_path / "keys", insecure=True)
    with pytest.raises(ConfigError, match=r"^conf/lung\.toml: pace\.kind: 'poisson'"):
        td.serve_all(
            {"heart": SMALL, "lung": wrong}, out=tmp_path / "runs", endpoint=endpoint,
            where={"lung": "conf/lung.toml"},
        )  # fmt: skip
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ConfigError, match="run 'he art': a name is"):
        td.serve_all({"he art": SMALL}, out=tmp_path / "runs", endpoint=endpoint)
    with pytest.raises(ConfigError, match="no run to serve"):
        td.serve_all({}, out=tmp_path / "runs", endpoint=endpoint)


def test_a_run_that_has_failed_is_told_when_the_others_have_ended(tmp_path, monkeypatch):
    enroll(tmp_path / "keys", "0")
    simulation, said, finish = build(SMALL), queue.Queue(), hosted_run.finish

    def failing(assembly, folder, served, seconds):
        if folder.path.name == "heart":
            raise RunError("the disk has burnt")
        finish(assembly, folder, served, seconds)

    monkeypatch.setattr(hosted_run, "finish", failing)

    def clients():
        address = said.get(timeout=PATIENCE).split()[-1]
        key = read_key(tmp_path / "keys" / "0.key")

        async def take_part(run):
            trainer, state = ClientTrainer("0", app_of(simulation, 0)), tmp_path / "0.state"
            signer = Signer("0", key)
            return await Participant(
                address, signer, None, trainer, state, PATIENCE, run=run, moves_on=True
            ).take_part()

        return [asyncio.run(take_part(run)) for run in ("heart", "lung")]

    service = SMALL.service.model_copy(update={"linger_seconds": 1.0})
    configs = dict.fromkeys(("heart", "lung"), SMALL.model_copy(update={"service": service}))
    endpoint = td.Endpoint(keys=tmp_path / "keys", insecure=True)
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(clients)
        with pytest.raises(RunError, match=r"^heart has failed: the disk has burnt$") as caught:
            td.serve_all(configs, out=tmp_path / "runs", endpoint=endpoint, say=said.put)
        assert working.result() == ["trips", "trips"]
    assert caught.value.exit_code == 3
    assert said.get().startswith("lung: the run is over (trips)")
    monkeypatch.undo()  # the run that has failed goes on from its journal, and is over
    results = td.serve_all(configs, out=tmp_path / "runs", endpoint=endpoint, say=said.put)
    assert {name: result.stopped_by for name, result in results.items()} == {
        "heart": "trips",
        "lung": "trips",
    }
