"""Clients that weigh by their examples, on a server."""

import asyncio

import pytest
import torch
from service_harness import replay, serving, trace_of
from torch import nn

import tardigrad as td
from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.server_assembly import build_server

OPTIONS = {
    td.MasFL: {"beta": 0.9, "gamma": 0.1},
    td.AdaMasFL: {"beta": 0.9, "gamma": 0.1, "eta": 0.1},
    td.FedAC: {"control_scale": "population"},
}
ALL = [kind(**OPTIONS.get(kind, {})) for kind in BUILT_IN]
KEEPING_A_MEAN = {algorithm.kind: algorithm for algorithm in ALL if algorithm.averages_memories}
LOCAL = td.Local(steps=2, batch_size=8, lr=0.1)


def settings_for(algorithm):
    if algorithm.synchronous:
        return {"pace": td.Synchronous(cohort=2), "buffer": td.Buffer(weights="examples")}
    return {"pace": td.Asynchronous(concurrency=4), "buffer": td.Buffer(size=2, weights="examples")}


def with_data(algorithm, **service):
    return td.Config(
        algorithm=algorithm, model=td.MLP(hidden=(4,)), local=LOCAL,
        data=td.Digits(partition=td.LogNormalSizes(clients=6)), stop=td.Stop(trips=16),
        service={"requests_per_second": 10_000} | service, **settings_for(algorithm),
    )  # fmt: skip


def without_data(algorithm):
    config = td.Config(
        algorithm=algorithm, local=LOCAL, stop=td.Stop(trips=16), service={"population": 6},
        **settings_for(algorithm),
    )  # fmt: skip
    return config.model_copy(update={"data": None, "model": None})


@pytest.mark.parametrize("kind", KEEPING_A_MEAN)
def test_a_server_that_does_not_know_all_examples_refuses(kind):
    algorithm = KEEPING_A_MEAN[kind]
    with pytest.raises(ConfigError, match=rf"^buffer\.weights: {kind} keeps a mean over all clients"):
        build_server(without_data(algorithm), nn.Linear(3, 2))
    with pytest.raises(ConfigError, match=r"^buffer\.weights"):
        build_server(with_data(algorithm, population=7))


@pytest.mark.parametrize("algorithm", [td.FedBuff(), td.FedAvg(), td.FedAC()], ids=lambda one: one.kind)
def test_other_algorithms_need_not_know(algorithm):
    build_server(without_data(algorithm), nn.Linear(3, 2))


@pytest.mark.parametrize("kind", KEEPING_A_MEAN)
def test_a_server_with_data_gives_the_simulators_bits(kind, tmp_path):
    config = with_data(KEEPING_A_MEAN[kind])
    simulation, events, steps = trace_of(config)
    weights = {event["weight"] for event in events if event["event"] == "upload"}
    assert len(weights) > 3

    async def served():
        async with serving(config, tmp_path) as running:
            assert await replay(running, simulation, steps) == events[-1]["reason"]
            return running

    running = asyncio.run(served())
    assert torch.equal(running.coordinator.model_state.aggregator.evaluated_model, simulation.model)
