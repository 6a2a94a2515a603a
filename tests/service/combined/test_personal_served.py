"""Parts of a model that stay with their clients, on a real server whose messages are encoded both ways."""

import asyncio

import pytest
import torch
from service_harness import comparable, replay, serving, trace_of
from torch import nn

import tardigrad as td

DIFFERENCES = td.DifferenceBroadcast(encoding=td.Int4(block=16))


def module():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def examples(count, seed):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=random), torch.randint(0, 3, (count,), generator=random)


CLIENTS = {str(number): examples(20, number) for number in range(6)}


def app_of_client(simulation, client):
    """A client of the simulation with a module of its own, which begins as those of all clients do."""
    federation = simulation.federation
    return td.Client(module(), federation.clients.load(client), head=federation.head)


@pytest.mark.parametrize("encoding", [td.Float32(), td.Int8(error_feedback=True)], ids=lambda e: e.kind)
@pytest.mark.parametrize("personal", [None, ("3.*",)], ids=["fedbn", "fedbn and head"])
def test_server_gives_the_simulators_bits(personal, encoding, tmp_path):
    config = td.Config(
        local=td.Local(batch_size=8, lr=0.1, batch_norm="client", personal=personal),
        broadcast=DIFFERENCES, encoding=encoding, algorithm="fedbuff", buffer=td.Buffer(size=3),
        pace=td.Asynchronous(concurrency=4), delay=td.LogNormal(spread=1.0, give_up=0.1),
        stop=td.Stop(trips=24), evaluation=td.Evaluation(held_out=0.2), data=None,
        service={"requests_per_second": 10_000, "population": 6},
    )  # fmt: skip
    simulation, events, steps = trace_of(config, model=module(), clients=CLIENTS)

    async def served():
        async with serving(config, tmp_path, model=module()) as running:
            assert await replay(running, simulation, steps, app=app_of_client) == events[-1]["reason"]
            return running

    running = asyncio.run(served())
    assert torch.equal(running.coordinator.model_state.aggregator.evaluated_model, simulation.model)
    theirs, ours = (
        [event for event in comparable(all_of) if event["event"] != "evaluation"]
        for all_of in (running.record.events, events)
    )
    assert theirs == ours
