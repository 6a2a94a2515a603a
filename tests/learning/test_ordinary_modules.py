"""Modules that are written the ordinary way train as they do in plain PyTorch, and keep every promise."""

import asyncio
import copy

import pytest
import torch
from service_harness import replay, serving, trace_of

import tardigrad as td
from ordinary_modules import CASES, clients_of, hugging_face_cases, module_of
from tardigrad.core.draws import key
from tardigrad.core.snapshot import read_snapshot, write_snapshot
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.learning.examples import take
from tardigrad.service.client.app import Client

SETTINGS = {
    "algorithm": td.FedBuff(), "buffer": td.Buffer(size=2), "pace": td.Asynchronous(concurrency=2),
    "stop": td.Stop(trips=8), "delay": td.HalfNormal(),
    "service": {"requests_per_second": 10_000, "population": 3},
}  # fmt: skip
ALL = CASES | hugging_face_cases()
every_case = pytest.mark.parametrize("case", ALL.values(), ids=ALL)


def local_of(case):
    return td.Local(epochs=1, batch_size=4, lr=0.1, **case.local)


def config_of(case):
    return td.Config(local=local_of(case), data=None, model=None, **SETTINGS)


def own(case):
    return {"model": module_of(case), "clients": clients_of(case), "head": case.head}


def finished(simulation):
    """Run to the end, and return the model and what clients remember."""
    for _ in simulation.engine.run():
        pass
    simulation.executor.close()
    tensors, _ = simulation.engine.snapshot()
    return {name: tensor for name, tensor in tensors.items() if name.startswith(("state/", "memory/"))}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@every_case
def test_workers_and_resumption_change_no_bit(case, tmp_path):
    expected = finished(build(config_of(case), **own(case)))
    start = build(config_of(case), **own(case)).model
    assert not torch.equal(expected["state/model"], start)
    interrupted = build(config_of(case), **own(case))
    for _ in zip(range(7), interrupted.engine.run()):
        pass
    write_snapshot(tmp_path / "snapshot", *interrupted.engine.snapshot())
    resumed = build(config_of(case), **own(case))
    resumed.engine.restore(*read_snapshot(tmp_path / "snapshot"))
    assert_same(finished(resumed), expected)
    assert_same(finished(build(config_of(case), **own(case), workers=2)), expected)


@every_case
def test_served_run_has_the_bits_of_the_simulated_one(case, tmp_path):
    simulation, events, steps = trace_of(config_of(case), **own(case))

    def app(simulation, client):
        return Client(module_of(case), simulation.federation.clients.load(client), head=case.head)

    async def served():
        async with serving(config_of(case), tmp_path, model=module_of(case), durable=False) as running:
            assert await replay(running, simulation, steps, app=app) == events[-1]["reason"]
            return running.coordinator.model_state.aggregator.evaluated_model

    assert torch.equal(asyncio.run(served()), simulation.model)


@every_case
def test_one_client_with_fedavg_is_a_plain_loop(case):
    trips, lr = 2, 0.1
    examples = clients_of(case, clients=1)
    config = td.Config(
        algorithm=td.FedAvg(), pace=td.Synchronous(cohort=1), local=local_of(case), stop=td.Stop(trips=trips)
    )
    simulation = build(config, module_of(case), examples, head=case.head)
    finished(simulation)
    flat = simulation.flat
    with torch.no_grad():
        flat.load(simulation.model, simulation.engine.memories.get(0, {}))
        flat.pull()

    plain = copy.deepcopy(module_of(case)) if case.local.get("batch_norm") != "group_norm" else None
    if plain is None:  # the replaced layers are compared in test_normalisation
        plain = build(config, module_of(case), examples, head=case.head).flat.module
    buffers = {name: buffer.clone() for name, buffer in plain.named_buffers()}
    (features, labels) = next(iter(examples.values()))
    optimiser = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=lr)
    for trip in range(trips):
        seed = key(0, "trip", trip)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        if case.local.get("batch_norm") != "client":  # buffers are not part of the model
            for name, buffer in plain.named_buffers():
                buffer.copy_(buffers[name])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed ^ 1)
            plain.train()
            for batch in order.split(4):
                optimiser.zero_grad()
                case.loss(plain, take(features, batch), labels[batch]).backward()
                optimiser.step()
    trained = dict(flat.module.named_parameters())
    for name, expected in plain.named_parameters():
        torch.testing.assert_close(trained[name], expected, rtol=1e-4, atol=1e-5)
    if case.local.get("batch_norm") == "client":
        statistics = dict(flat.module.named_buffers())
        for name, expected in plain.named_buffers():
            torch.testing.assert_close(statistics[name], expected, rtol=1e-4, atol=1e-5)
