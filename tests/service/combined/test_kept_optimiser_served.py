"""A server whose clients keep their optimiser's state gives the simulator's bits."""

import asyncio

import pytest
import torch
from service_harness import comparable, replay, serving, trace_of

import tardigrad as td

ALGORITHMS = {"fedbuff": td.FedBuff(), "ca2fl": td.CA2FL(lr=0.5)}  # the second remembers something itself


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_server_gives_the_simulators_bits(algorithm, tmp_path):
    config = td.Config(
        algorithm=ALGORITHMS[algorithm], data=td.Digits(partition=td.IID(clients=8)),
        local=td.Local(batch_size=16, optimiser=td.AdamW(keep=True), accumulate=2, trip_schedule="cosine"),
        model=td.MLP(hidden=(8,)), stop=td.Stop(trips=40), evaluation=td.Evaluation(every_steps=4),
        pace=td.Asynchronous(concurrency=6), buffer=td.Buffer(size=3, staleness_bound=2),
        delay=td.HalfNormal(give_up=0.05), service={"requests_per_second": 10_000},
    )  # fmt: skip
    simulation, events, steps = trace_of(config)
    puppets = {}

    async def served():
        async with serving(config, tmp_path) as running:
            assert await replay(running, simulation, steps, puppets) == events[-1]["reason"]
            return running

    running = asyncio.run(served())
    assert torch.equal(running.coordinator.model_state.aggregator.evaluated_model, simulation.model)
    ours, theirs = comparable(running.record.events), comparable(events)
    for event in [*ours, *theirs]:
        event.pop("bytes", None)
    assert ours == theirs
    assert len(simulation.engine.memories) > 1
    for client, memory in simulation.engine.memories.items():
        kept = puppets[client].remembering.memory
        assert kept.keys() == memory.keys()
        assert all(torch.equal(kept[name], memory[name]) for name in memory)
