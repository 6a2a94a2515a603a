"""What holds for every algorithm that a config can name: it learns, it resumes, it does not depend on where
its trips were trained."""

import json
import math
from copy import deepcopy
from functools import cache

import pytest
import torch

import tardigrad as td
from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.core.outcomes import Accepted, Ticket
from tardigrad.core.upload import Task, Upload
from tardigrad.experiments.runs.simulation_assembly import build

TRIPS = 800
LOCAL = td.Local(batch_size=8, lr=0.2)
SMALL = td.Local(batch_size=8, lr=0.02)
SYNCHRONOUS = {"pace": td.Synchronous(cohort=10, selected=12)}
ASYNCHRONOUS = {"pace": td.Asynchronous(concurrency=30), "buffer": td.Buffer(staleness_bound=20)}

# settings that learn in 800 trips; a wrong sign or scale ends near chance (0.1)
CASES = {
    "fedbuff": (td.FedBuff(lr=1.0), ASYNCHRONOUS),
    "fedbuff, adam": (td.FedBuff(lr=0.02, momentum=td.EMA(beta=0.5), preconditioner=td.Adam()), ASYNCHRONOUS),
    "fedbuff_corollary": (td.FedBuffCorollary(), ASYNCHRONOUS),
    "robust_fedbuff": (td.RobustFedBuff(norm_bound=2.0), ASYNCHRONOUS),
    "approximation": (td.FedBuff(lr=1.0, momentum=td.Approximation(beta=0.8)), ASYNCHRONOUS),
    "light approximation": (td.FedBuff(lr=1.0, momentum=td.LightApproximation(beta=0.8)), ASYNCHRONOUS),
    "weight_prediction": (td.WeightPrediction(lr=0.5), ASYNCHRONOUS),
    "fedasync": (td.FedAsync(alpha=0.6), {"pace": td.Asynchronous(concurrency=10)}),
    "fedac": (td.FedAC(lr=0.01, control_scale="population"), ASYNCHRONOUS | {"buffer": td.Buffer(size=10)}),
    "masfl": (td.MasFL(beta=0.9, gamma=0.25), ASYNCHRONOUS | {"local": SMALL}),
    "masfl, first pass": (td.MasFL(beta=0.9, gamma=0.25, first_pass=True), ASYNCHRONOUS | {"local": SMALL}),
    "adamasfl": (td.AdaMasFL(), ASYNCHRONOUS),
    "ca2fl": (td.CA2FL(lr=0.5), ASYNCHRONOUS),
    "ace": (td.ACE(), ASYNCHRONOUS),
    "area": (td.AREA(), ASYNCHRONOUS),
    "delayed_nesterov": (td.DelayedNesterov(), ASYNCHRONOUS),
    "momentum_look_ahead": (td.MomentumLookAhead(), ASYNCHRONOUS),
    "heloco": (td.HeLoCo(), ASYNCHRONOUS),
    "cgad": (td.CGAD(), ASYNCHRONOUS),
    "dc_asgd": (td.DCASGD(), ASYNCHRONOUS),
    "basgd": (td.BASGD(lr=2.0), ASYNCHRONOUS),
    "bucketed_fedbuff": (td.BucketedFedBuff(lr=2.0), ASYNCHRONOUS),
    "ringmaster": (td.Ringmaster(), {"pace": td.Asynchronous(concurrency=30)}),
    "rennala": (td.Rennala(), {"pace": td.Asynchronous(concurrency=30)}),
    "fadas": (td.FADAS(lr=0.01), {"pace": td.Asynchronous(concurrency=10)}),
    "defedavg": (td.DeFedAvg(lr=1.0), {"pace": td.Queued(concurrency=30)}),
    "fedavg": (td.FedAvg(lr=1.0), SYNCHRONOUS),
    "fedavgm": (td.FedAvgM(lr=0.5, beta=0.8), SYNCHRONOUS),
    "fedprox": (td.FedProx(mu=0.01), SYNCHRONOUS),
    "fedadam": (td.FedAdam(lr=0.02), SYNCHRONOUS),
    "fedadagrad": (td.FedAdaGrad(lr=0.1), SYNCHRONOUS),
    "fedyogi": (td.FedYogi(lr=0.02), SYNCHRONOUS),
    "scaffold": (td.SCAFFOLD(), SYNCHRONOUS),
    "sgd": (
        td.SGD(),
        {"pace": td.Asynchronous(concurrency=1), "data": td.Digits(partition=td.Central()),
         "local": td.Local(batch_size=8, lr=0.2, steps=2)},
    ),
}  # fmt: skip


def settings(case, trips=TRIPS):
    algorithm, options = CASES[case]
    common = {
        "local": LOCAL,
        "stop": td.Stop(trips=trips),
        "evaluation": td.Evaluation(every_trips=trips),
        "delay": td.HalfNormal(give_up=0.02),
    }
    return td.Config(algorithm=algorithm, **(common | options))


def test_every_built_in_algorithm_has_a_case():
    assert {type(algorithm) for algorithm, _ in CASES.values()} == set(BUILT_IN)


@pytest.mark.parametrize("case", CASES)
def test_learns_the_digits(case):
    assert td.run(settings(case)).accuracy > 0.6


@cache
def straight(case):
    """A run of 260 trips in one go: its events, and its simulation at the end, which must not be changed."""
    simulation = build(settings(case, trips=260))
    return [event for events in simulation.engine.run() for event in events], simulation


@pytest.mark.parametrize("case", CASES)
def test_interrupted_and_resumed_has_the_same_bits(case):
    expected, whole = straight(case)
    stopped, resumed = build(whole.config), build(whole.config)
    seen = []
    for position, events in enumerate(run := stopped.engine.run()):
        seen += events
        if position == 173:
            break
    run.close()
    tensors, document = stopped.engine.snapshot()
    resumed.engine.restore(tensors, json.loads(json.dumps(document)))
    assert seen + [event for events in resumed.engine.run() for event in events] == expected
    for name, value in whole.aggregator.state.items():
        ours = resumed.aggregator.state[name]
        assert torch.equal(ours, value) if isinstance(value, torch.Tensor) else ours == value, name


@pytest.mark.parametrize("case", CASES)
def test_a_step_that_is_taken_back_leaves_no_trace(case):
    """A server takes a step back after which something is not finite. Algorithms that change a part of their
    state in place must go on as if it had not been made, too."""
    aggregator = deepcopy(straight(case)[1].aggregator)
    aggregator.step()  # with what was left in the buffer

    def state():
        told = {f"broadcast {name}": vector for name, vector in aggregator.broadcast().items()}
        return deepcopy(aggregator.state | told)

    before = state()
    for value in (1.0, float("nan")):
        held, version, model = aggregator.held(), aggregator.version, aggregator.state["model"]
        rule = aggregator.algorithm.rule(Task(-1, 0, version, aggregator.broadcast(), 0.0), {}, lr=0.1)
        own = rule.finish(rule.start.clone(), 1, 0.1)
        vectors = {name: torch.full_like(vector, value) for name, vector in own.items()}
        delivery = Accepted(Ticket(0, 0, version, 0.0), 0.0, version, 1.0, 1.0, True)
        aggregator.add(delivery, Upload(vectors, 1, 1, 0.0), model)
        aggregator.step()
        # these give an upload or a buffer that is not finite no vote
        robust = case in ("robust_fedbuff", "basgd", "bucketed_fedbuff")
        assert aggregator.spoilt(held) == (math.isnan(value) and not robust)
        aggregator.take_back(held)
        assert aggregator.version == version + 1
    after = state()
    assert set(after) == set(before)
    for name, value in before.items():
        same = torch.equal(after[name], value) if isinstance(value, torch.Tensor) else after[name] == value
        assert same, name


@pytest.mark.parametrize("case", CASES)
def test_two_workers_give_the_bits_of_one_process(case):
    _, whole = straight(case)
    model = td.run(whole.config, workers=2).model
    assert torch.equal(torch.cat([tensor.reshape(-1) for tensor in model.values()]), whole.model)


@pytest.mark.parametrize("case", CASES)
def test_resolved_config_is_read_back(case, tmp_path):
    resolved = settings(case).resolved(1 if case == "sgd" else 100)
    (tmp_path / "config.toml").write_text(resolved.to_toml())
    assert td.load_config(tmp_path / "config.toml") == resolved
