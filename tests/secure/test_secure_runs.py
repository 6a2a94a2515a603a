"""Secure runs in a simulation: the same bits as the plain run on the same grid, whatever the algorithm."""

import pytest

import tardigrad as td
from tardigrad.algorithms.algorithm import SumOnly
from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.core.momentum_approximation import Approximation, LightApproximation
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.simulation_assembly import build

SMALL = {
    "data": td.Digits(partition=td.IID(clients=30)),
    "model": td.MLP(hidden=()),
    "local": td.Local(steps=2, lr=0.1),
    "stop": td.Stop(steps=4),
    "evaluation": td.Evaluation(every_steps=4),
}
NOISE = td.Participation(noise_multiplier=0.5, participations=20, separation=1, noise_from="seed")
REFUSED = {"fedasync", "fedac", "robust_fedbuff", "sgd"}
"""Algorithms that look at every upload by itself, or make a step of one."""

ALGORITHMS = {
    algorithm().name: algorithm() for algorithm in BUILT_IN if algorithm().name not in REFUSED
} | {
    "fedbuff with discounts": td.FedBuff(staleness="polynomial"),
    "fedbuff with momentum approximation": td.FedBuff(staleness="hinge", momentum=Approximation()),
    "fedbuff with light approximation": td.FedBuff(momentum=LightApproximation()),
    "fedbuff with Adam": td.FedBuff(preconditioner="adam"),
    "masfl with a first pass": td.MasFL(first_pass=True),
}  # fmt: skip


def run(**settings):
    simulation = build(Config(**(SMALL | settings)))
    events = [event for events in simulation.engine.run() for event in events]
    simulation.executor.close()
    return simulation, events


def pace_of(algorithm: SumOnly) -> dict[str, object]:
    """Return a pace and a buffer for the algorithm, for which some uploads are stale."""
    if algorithm.synchronous:
        return {"algorithm": algorithm, "pace": td.Synchronous(cohort=5), "buffer": {"once_per_client": True}}
    return {
        "algorithm": algorithm,
        "pace": algorithm.default_pace(30).model_copy(update={"concurrency": 15}),
        "buffer": {"size": 5, "once_per_client": True},
    }


@pytest.mark.parametrize("name", ALGORITHMS)
def test_masked_run_has_the_bits_of_the_plain_grid_run(name):
    settings = pace_of(ALGORITHMS[name])
    masked, _ = run(secure={}, **settings)
    plain, _ = run(encoding=masked.config.encoding, **settings)
    assert masked.aggregator.version == 4
    assert masked.model.equal(plain.model)
    unmasked, _ = run(secure={"masks": False}, **settings)
    assert masked.model.equal(unmasked.model)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_masked_run_with_noise_has_the_bits_of_the_run_without_masks(name):
    settings = pace_of(ALGORITHMS[name]) | {"privacy": NOISE}
    masked, events = run(secure={"helpers": 2}, **settings)
    unmasked, again = run(secure={"helpers": 2, "masks": False}, **settings)
    assert masked.aggregator.version == 4
    assert masked.model.equal(unmasked.model)
    assert events == again


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_algorithms_that_need_single_uploads_are_refused_by_name(kind):
    with pytest.raises(ConfigError, match=kind if kind != "sgd" else "buffer.size"):
        run(secure={}, algorithm=kind)
