"""A secure run on a server with real helpers and clients: the bits of the simulation."""

import asyncio

import pytest
import torch
from secure_federation import SecureFederation
from service_harness import PATIENCE, comparable, trace_of

import tardigrad as td

CONFIG = td.Config(
    algorithm=td.FedBuff(), data=td.Digits(partition=td.IID(clients=6)), model=td.MLP(hidden=(8,)),
    pace=td.Asynchronous(concurrency=4), buffer=td.Buffer(size=3), secure=td.Secure(least_clients=2),
    stop=td.Stop(trips=24), evaluation=td.Evaluation(every_steps=2), local=td.Local(batch_size=32, lr=0.1),
    service={"requests_per_second": 10_000, "snapshot_seconds": 1e6},
)  # fmt: skip


def served(scene):
    return asyncio.run(asyncio.wait_for(scene, PATIENCE))


async def served_trace(federation, events, steps):
    """Serve the trace of a simulation; return the model."""
    async with federation.helpers() as helpers, federation.serving() as running:
        await federation.replay(running, steps)
        assert await asyncio.shield(running.coordinator.ended) == events[-1]["reason"]
        version = running.coordinator.run_state.book.version
        for helper in helpers:
            assert helper.state.receipt.receipt.version == version
        return running.coordinator.model_state.aggregator.evaluated_model


@pytest.mark.parametrize("helpers", [1, 2])
def test_served_trace_has_the_bits_of_the_simulation(tmp_path, helpers):
    config = CONFIG.model_copy(update={"secure": td.Secure(least_clients=2, helpers=helpers)})
    simulation, events, steps = trace_of(config)
    federation = SecureFederation(tmp_path, config, simulation, range(6), helpers)
    assert torch.equal(served(served_trace(federation, events, steps)), simulation.model)
    assert comparable(federation.record.events) == comparable(events)
