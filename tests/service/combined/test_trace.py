"""The simulator and the server agree bit for bit on one trace of starts and arrivals."""

import asyncio
from pathlib import Path

import pytest
import torch
from service_harness import PATIENCE, comparable, enrolled_key, replay, serving, trace_of

import tardigrad as td
from algorithm_variants import VARIANTS
from tardigrad.algorithms.algorithm import Algorithm
from tardigrad.algorithms.registry import BUILT_IN

LOCAL = td.Local(batch_size=8, lr=0.1)
ROUNDS = {"pace": td.Synchronous(cohort=4, selected=5)}
OPTIONS = {
    "weight_prediction": {"algorithm": td.WeightPrediction(expected_staleness=1.5)},
    "fedbuff_corollary": {"algorithm": td.FedBuffCorollary(smoothness=0.1)},
    "masfl": {"algorithm": td.MasFL(beta=0.9, gamma=0.1, first_pass=True)},
    "defedavg": {"pace": td.Queued(concurrency=8)},
    "sgd": {
        "pace": td.Asynchronous(concurrency=1),
        "data": td.Digits(partition=td.Central()),
        "local": td.Local(steps=2, lr=0.1),
    },
    "fedac": {"algorithm": td.FedAC(control_scale="population")},
    "basgd": {"algorithm": td.BASGD(buckets=3)},
    "bucketed_fedbuff": {"algorithm": td.BucketedFedBuff(buckets=2)},
    "rennala": {"buffer": td.Buffer(size=3)},
}
DATA = td.Digits(partition=td.IID(clients=12))
KINDS = [one.model_fields["kind"].default for one in BUILT_IN]


def config_for(kind, algorithm=None, more=None):
    algorithm = algorithm or next(one for one in BUILT_IN if one.model_fields["kind"].default == kind)()
    settings = {
        "algorithm": algorithm, "data": DATA, "local": LOCAL, "stop": td.Stop(trips=24),
        "model": td.MLP(hidden=(8,)), "evaluation": td.Evaluation(every_steps=2),
        "delay": td.HalfNormal(give_up=0.05), "service": {"requests_per_second": 10_000},
    }  # fmt: skip
    if algorithm.synchronous:
        settings |= ROUNDS
    else:
        settings |= {"pace": td.Asynchronous(concurrency=6)}
        settings |= {"buffer": td.Buffer(size=1 if algorithm.single_upload else 3, staleness_bound=3)}
    return td.Config(**(settings | (OPTIONS.get(kind, {}) if more is None else more)))


@pytest.mark.parametrize("kind", [*KINDS, *VARIANTS])
def test_server_gives_the_simulators_bits(kind, tmp_path):
    config = config_for(kind, *VARIANTS.get(kind, ()))
    simulation, events, steps = trace_of(config)

    async def served():
        async with serving(config, tmp_path) as running:
            assert await replay(running, simulation, steps) == events[-1]["reason"]
            return running

    running = asyncio.run(served())
    assert torch.equal(running.coordinator.model_state.aggregator.evaluated_model, simulation.model)
    ours, theirs = comparable(running.record.events), comparable(events)
    for event in [*ours, *theirs]:
        event.pop("bytes", None)
    assert ours == theirs


CLIENTS = 3
PUPPET = Path(__file__).with_name("puppet.py")


class Processes:
    """A process for each client."""

    def __init__(self, commands, keys):
        self._processes = []
        for client in range(CLIENTS):
            enrolled_key(keys, str(client))
            words = client, keys / f"{client}.key"
            self._processes.append(commands.start(*words, program=PUPPET.read_text()))
        assert [self._hear(client) for client in range(CLIENTS)] == ["ready"] * CLIENTS

    def _hear(self, client):
        return self._processes[client].stdout.readline().strip()

    def tell(self, client, *words):
        self._processes[client].stdin.write(" ".join(map(str, words)) + "\n")
        self._processes[client].stdin.flush()
        return self._hear(client)

    def close(self):
        for process in self._processes:
            process.stdin.close()
            process.wait()


@pytest.fixture(scope="module")
def processes(commands, tmp_path_factory):
    keys = tmp_path_factory.mktemp("trace") / "keys"
    keys.mkdir()
    started = Processes(commands, keys)
    yield started, keys
    started.close()


def config_for_few(kind):
    config = config_for(kind)
    if kind == "sgd":
        return config
    paces = {
        td.Synchronous: td.Synchronous(cohort=2, selected=3),
        td.Asynchronous: td.Asynchronous(concurrency=CLIENTS),
        td.Queued: td.Queued(concurrency=CLIENTS),
    }
    few = {"data": td.Digits(partition=td.IID(clients=CLIENTS)), "pace": paces[type(config.pace)]}
    few["stop"] = td.Stop(trips=20)
    return td.Config(**(dict(config) | few))


CLIENT_HALVES = [
    kind
    for one, kind in zip(BUILT_IN, KINDS)
    if one.rule is not Algorithm.rule or one.broadcast is not Algorithm.broadcast or one.single_upload
]
"""Algorithms whose clients do something of their own. The steps of the others are the server's alone, for
which the clients above are as good."""


@pytest.mark.parametrize("kind", ["fedbuff", "fedavg", "defedavg", *CLIENT_HALVES])
def test_real_client_processes_give_the_simulators_bits(kind, processes, tmp_path):
    started, keys = processes
    config = config_for_few(kind)
    simulation, events, steps = trace_of(config)
    (tmp_path / "run.toml").write_text(config.to_toml())

    everybody = range(1 if kind == "sgd" else CLIENTS)

    async def served():
        async with serving(config, tmp_path, keys=keys) as running:
            tell = lambda *words: asyncio.to_thread(started.tell, *words)  # noqa: E731
            for client in everybody:
                state = tmp_path / f"{client}.state"
                assert await tell(client, "join", running.address, tmp_path / "run.toml", state) == "joined"
            for what, client, trip in steps:
                heard = await tell(client, what, trip)
                assert heard == (str(trip) if what == "fetch" else "done")
            assert await asyncio.wait_for(asyncio.shield(running.coordinator.ended), PATIENCE) == "trips"
            for client in everybody:
                await tell(client, "leave")
            return running

    running = asyncio.run(served())
    assert torch.equal(running.coordinator.model_state.aggregator.evaluated_model, simulation.model)
    assert running.record.events[-1]["trips"] == events[-1]["trips"]
