"""Combinations of tables that are refused before a run."""

import pytest

import tardigrad as td
from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.experiments.runs.server_assembly import assemble_server
from tardigrad.experiments.runs.simulation_assembly import assemble_simulation

ASSUME_SGD = {
    "scaffold": td.SCAFFOLD(),
    "fedac": td.FedAC(),
    "masfl": td.MasFL(beta=0.9, gamma=0.1),
    "adamasfl": td.AdaMasFL(),
    "fedbuff_corollary": td.FedBuffCorollary(scale=0.1),
    "fedprox": td.FedProx(mu=0.1),
    "fedasync, option II": td.FedAsync(rho=0.1),
}
TAKE_ANY = [td.FedAC(correction=False), td.FedProx(mu=0.0), td.FedAsync()]


def config(algorithm, optimiser="adamw", **more):
    data = td.Digits(partition=td.IID(clients=20))
    local = td.Local(optimiser=optimiser, steps=2)
    return td.Config(algorithm=algorithm, data=data, local=local, stop=td.Stop(trips=100), **more)


@pytest.mark.parametrize("assemble", [assemble_simulation, assemble_server])
@pytest.mark.parametrize("optimiser", ["momentum", "adamw"])
@pytest.mark.parametrize("case", ASSUME_SGD)
def test_algorithm_that_assumes_sgd_refuses_other_optimisers_with_the_reason(case, optimiser, assemble):
    algorithm = ASSUME_SGD[case]
    with pytest.raises(td.ConfigError, match=r"^local\.optimiser: ") as caught:
        assemble(config(algorithm, optimiser))
    said = str(caught.value)
    assert f"{algorithm.kind} needs 'sgd', not '{optimiser}', because {algorithm.assumes_sgd}; " in said
    assert "\n" not in said


@pytest.mark.parametrize("algorithm", TAKE_ANY, ids=lambda algorithm: algorithm.kind)
def test_algorithm_without_the_part_that_assumes_sgd_takes_any_optimiser(algorithm):
    config(algorithm).resolved(20)


def test_every_other_algorithm_takes_any_optimiser():
    assuming = {kind for kind in BUILT_IN if kind().assumes_sgd is not None}
    assert assuming == {td.SCAFFOLD, td.FedAC, td.MasFL, td.AdaMasFL, td.FedBuffCorollary, td.FedProx}


@pytest.mark.parametrize("case", ASSUME_SGD)
def test_algorithm_that_assumes_sgd_takes_clipping_accumulation_and_schedules(case):
    local = td.Local(steps=2, batch_size=8, gradient_clip=1.0, accumulate=2, trip_schedule="linear")
    settings = {"algorithm": ASSUME_SGD[case], "local": local, "stop": td.Stop(trips=40)}
    data = td.Digits(partition=td.IID(clients=20))
    assert td.run(data=data, model=td.MLP(hidden=(8,)), **settings).steps > 0


def test_an_algorithm_of_ones_own_can_declare_it():
    class Own(td.FedBuff):
        @property
        def assumes_sgd(self):
            return "its clients count gradients"

    with pytest.raises(td.ConfigError, match="needs 'sgd', not 'adamw', because its clients count gradients"):
        config(Own()).resolved(20)
