"""The settings that a server sends to its clients."""

import asyncio

import pytest
import torch
from service_harness import replay, serving, trace_of

import tardigrad as td
from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.errors import ConfigError
from tardigrad.service.protocol.task_settings import from_json, to_json

OWN = """
import tardigrad as td

class Halved(td.SumOnly):
    lr: float = 1.0

    def step(self, state, buffer):
        state["model"] = state["model"] - 0.5 * self.lr * buffer.mean()
        return {}
"""


@pytest.mark.parametrize("kind", BUILT_IN)
def test_built_in_algorithms_are_the_same_after_a_round_trip(kind):
    local = td.Local(epochs=2, schedule=td.Cosine(steps=7), lr=0.3)
    assert from_json(to_json(kind(), local), None) == (kind(), local)


def test_an_algorithm_that_is_not_built_in_must_be_in_the_clients_file(tmp_path):
    file = tmp_path / "halved.py"
    file.write_text(OWN)
    config = td.Config(algorithm={"kind": f"{file}:Halved", "lr": 0.7})
    told = to_json(config.algorithm, config.local)
    assert str(tmp_path) not in told
    with pytest.raises(ConfigError, match=r"algorithm=Halved"):
        from_json(told, None)
    algorithm, _ = from_json(told, type(config.algorithm))
    assert algorithm == config.algorithm


@pytest.mark.parametrize("text", ["", "{}", '{"algorithm": {"kind": "nothing"}, "local": {}}', "[1]"])
def test_malformed_settings_are_one_sentence(text):
    with pytest.raises(ConfigError, match="the server's settings"):
        from_json(text, None)


def test_a_private_run_is_served_with_the_bits_of_the_simulation(tmp_path):
    """Noise, clipping and the participation ledger, bit for bit as simulated (with the noise of a seed)."""
    config = td.Config(
        data=td.Digits(partition=td.IID(clients=12)), model=td.MLP(hidden=(4,)),
        pace=td.Asynchronous(concurrency=4), buffer=td.Buffer(size=3, staleness_bound=5),
        stop=td.Stop(steps=6), privacy=td.Participation(epsilon=20.0, participations=3, noise_from="seed"),
        service={"requests_per_second": 10_000},
    )  # fmt: skip
    simulation, events, steps = trace_of(config)

    async def served():
        async with serving(config, tmp_path) as running:
            await replay(running, simulation, steps)
            return running

    running = asyncio.run(served())
    assert torch.equal(running.coordinator.model_state.aggregator.evaluated_model, simulation.model)
    told = [event for event in running.record.events if event["event"] == "step"]
    assert told[-1]["epsilon"] == [e for e in events if e["event"] == "step"][-1]["epsilon"]
    assert all(event["training_loss"] is None for event in told)
