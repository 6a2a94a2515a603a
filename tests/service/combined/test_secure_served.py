"""A secure run on a server with real helpers and clients has the bits and the events of the simulated one."""

import asyncio

import pytest
import torch
from secure_federation import SecureFederation
from service_harness import PATIENCE, comparable, trace_of
from test_secure_runs import ALGORITHMS, NOISE

import tardigrad as td

CONFIG = td.Config(
    algorithm=td.FedBuff(), data=td.Digits(partition=td.IID(clients=6)), model=td.MLP(hidden=(8,)),
    pace=td.Asynchronous(concurrency=4), buffer=td.Buffer(size=3), secure=td.Secure(least_clients=2),
    stop=td.Stop(trips=12), evaluation=td.Evaluation(every_steps=2), local=td.Local(steps=2, lr=0.1),
    service={"requests_per_second": 10_000, "snapshot_seconds": 1e6},
)  # fmt: skip


async def served_trace(federation, events, steps):
    """Serve the trace of a simulation; return the model."""
    async with federation.helpers() as helpers, federation.serving() as running:
        await federation.replay(running, steps)
        assert await asyncio.shield(running.coordinator.ended) == events[-1]["reason"]
        version = running.coordinator.run_state.book.version
        for helper in helpers:
            assert helper.state.receipt.receipt.version == version
        return running.coordinator.model_state.aggregator.evaluated_model


def assert_served_as_simulated(config, folder, clients=6, helpers=1):
    """Serve what a simulation does, compare, and return the events."""
    simulation, events, steps = trace_of(config)
    federation = SecureFederation(folder, config, simulation, range(clients), helpers)
    model = asyncio.run(asyncio.wait_for(served_trace(federation, events, steps), PATIENCE))
    assert torch.equal(model, simulation.model)
    assert comparable(federation.record.events) == comparable(events)
    return events


@pytest.mark.parametrize(
    "settings",
    [
        {"secure": td.Secure(least_clients=2, helpers=2), "privacy": NOISE},
        {
            "secure": td.Secure(least_clients=2, post_quantum=True),
            "buffer": td.Buffer(size=3, staleness_bound=0),
            "evaluation": td.Evaluation(every_steps=2, model_average=0.5),
        },
    ],
    ids=["two helpers and noise", "post-quantum, refused uploads and an average"],
)
def test_served_trace_has_the_bits_of_the_simulation(tmp_path, settings):
    config = CONFIG.model_copy(update=settings)
    assert_served_as_simulated(config, tmp_path, helpers=config.secure.helpers)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_that_needs_only_sums_is_served_as_simulated(tmp_path, name):
    algorithm, pace = ALGORITHMS[name], td.Synchronous(cohort=3)
    if algorithm.oracle:
        algorithm = algorithm.model_copy(update={"expected_staleness": 1.0})
    if not algorithm.synchronous:
        pace = algorithm.default_pace(6)
        pace = td.Asynchronous() if isinstance(pace, td.Synchronous) else pace
        pace = pace.model_copy(update={"concurrency": 5})
    buffer = td.Buffer(size=None if algorithm.synchronous else 3)
    tables = {"algorithm": algorithm, "pace": pace, "buffer": buffer, "stop": td.Stop(steps=3)}
    tables |= {"model": td.MLP(hidden=())}
    config = CONFIG.model_copy(update=tables)
    assert_served_as_simulated(config, tmp_path)


def test_batches_of_too_few_clients_are_abandoned_as_in_the_simulation(tmp_path):
    config = CONFIG.model_copy(update={"buffer": td.Buffer(size=2)})
    events = assert_served_as_simulated(config, tmp_path)
    steps = [event for event in events if event["event"] == "step"]
    assert len(steps) == 6
