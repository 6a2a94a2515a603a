"""A run that is resumed from a snapshot, at several moments, has the events and the bits of one that is not
interrupted: all algorithms, with the schedules of their conformance tests."""

import json
from typing import Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from problem import (
    BOUND,
    BUFFER,
    CLIENTS,
    LOCAL_LR,
    LOCAL_STEPS,
    ROWS,
    SCRIPT,
    X0,
    A,
    B,
    Quadratic,
    SquaredError,
)

import tardigrad as td
from algorithm_variants import VARIANTS
from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.core.snapshot import read_snapshot, write_snapshot
from tardigrad.experiments.runs.simulation_assembly import build

STOPS = (1, 18, 44, 71)
"""After how many groups of events a run is interrupted."""
DATA = {client: (A[client], B[client]) for client in range(CLIENTS)}
EVERY_ROW = td.Local(steps=LOCAL_STEPS, batch_size=ROWS, lr=LOCAL_LR)
MINIBATCHES = td.Local(steps=LOCAL_STEPS, batch_size=2, lr=LOCAL_LR)

SCRIPTED = {
    "pace": td.Scripted(trips=tuple(SCRIPT)),
    "buffer": td.Buffer(size=BUFFER, staleness_bound=BOUND),
    "local": EVERY_ROW,
    "stop": td.Stop(trips=len(SCRIPT)),
}
ASYNCHRONOUS = {
    "pace": td.Asynchronous(concurrency=4),
    "buffer": td.Buffer(size=BUFFER, staleness_bound=2),
    "local": MINIBATCHES,
    "stop": td.Stop(steps=15),
}
ROUNDS = {
    "pace": td.Synchronous(cohort=BUFFER, selected=5),
    "delay": td.UniformDelay(low=0.5, high=1.5),
    "local": MINIBATCHES,
    "stop": td.Stop(steps=20),
}
CROWDED = {
    "pace": td.Asynchronous(concurrency=7),
    "buffer": td.Buffer(size=2, staleness_bound=6),
    "local": MINIBATCHES,
    "stop": td.Stop(steps=25),
}
QUEUED = {
    "pace": td.Queued(concurrency=5),
    "delay": td.HalfNormal(device_spread=1.5),
    "buffer": td.Buffer(size=BUFFER, staleness_bound=9),
    "local": MINIBATCHES,
    "stop": td.Stop(steps=25),
}
CENTRAL = {"pace": td.Asynchronous(concurrency=1), "local": EVERY_ROW, "stop": td.Stop(trips=50)}
ADAM = td.Adam(beta2=0.9, adaptivity=0.01)

CASES = {
    "fedbuff, approximation": (td.FedBuff(lr=0.5, momentum=td.Approximation(beta=0.8, ridge=1e-2)), SCRIPTED),
    "fedbuff, approximation and adam": (
        td.FedBuff(lr=0.05, momentum=td.Approximation(beta=0.8, ridge=1e-2), preconditioner=ADAM), SCRIPTED,
    ),
    "fedbuff, differences": (
        td.FedBuff(lr=0.5),
        SCRIPTED
        | {
            "broadcast": td.DifferenceBroadcast(encoding=td.Int4()),
            "encoding": td.Int8(),
        },
    ),
    "fedbuff, light": (td.FedBuff(lr=0.5, momentum=td.LightApproximation(beta=0.8)), SCRIPTED),
    "fedbuff, light and adam": (
        td.FedBuff(lr=0.05, momentum=td.LightApproximation(beta=0.8), preconditioner=ADAM), SCRIPTED,
    ),
    "fedbuff_corollary": (td.FedBuffCorollary(), SCRIPTED),
    "robust_fedbuff": (td.RobustFedBuff(), SCRIPTED),
    "weight_prediction": (td.WeightPrediction(lr=0.5, decay=0.7), SCRIPTED),
    "weight_prediction, expected, ema and adam": (
        td.WeightPrediction(
            lr=0.05, expected_staleness=2, momentum=td.EMA(beta=0.6), preconditioner=ADAM
        ),
        SCRIPTED,
    ),
    "fedasync": (td.FedAsync(rho=0.1), SCRIPTED | {"buffer": td.Buffer(staleness_bound=BOUND)}),
    "fedac": (td.FedAC(lr=0.02), SCRIPTED | {"local": MINIBATCHES}),
    "masfl": (td.MasFL(smoothness=8.0), ASYNCHRONOUS),
    "adamasfl": (td.AdaMasFL(), ASYNCHRONOUS),
    "ca2fl": (td.CA2FL(lr=0.5), ASYNCHRONOUS),
    "ace": (td.ACE(lr=0.2), ASYNCHRONOUS),
    "area": (td.AREA(), ASYNCHRONOUS),
    "delayed_nesterov": (td.DelayedNesterov(period=3, c=0.2), SCRIPTED),
    "momentum_look_ahead": (td.MomentumLookAhead(start_ahead=True), SCRIPTED),
    "heloco": (td.HeLoCo(), SCRIPTED),
    "cgad": (td.CGAD(), SCRIPTED),
    "dc_asgd": (td.DCASGD(), SCRIPTED),
    "basgd": (td.BASGD(buckets=3), SCRIPTED | {"buffer": td.Buffer(staleness_bound=BOUND)}),
    "ringmaster": (td.Ringmaster(), SCRIPTED),
    "bucketed_fedbuff": (td.BucketedFedBuff(buckets=3), SCRIPTED),
    "rennala": (td.Rennala(), ASYNCHRONOUS | {"buffer": td.Buffer(size=BUFFER)}),
    "fadas": (td.FADAS(lr=0.05), CROWDED),
    "defedavg": (td.DeFedAvg(lr=0.6), QUEUED),
    "fedavg": (td.FedAvg(), ROUNDS),
    "fedavg, lr 0.6": (td.FedAvg(lr=0.6), ROUNDS),
    "fedavgm": (td.FedAvgM(lr=0.3), ROUNDS),
    "fedavgm, beta 0.5": (td.FedAvgM(lr=0.5, beta=0.5), ROUNDS),
    "fedprox": (td.FedProx(), ROUNDS),
    "fedprox, mu 2": (td.FedProx(mu=2.0, lr=0.8), ROUNDS),
    "fedadam": (td.FedAdam(), ROUNDS),
    "fedadam, other settings": (td.FedAdam(lr=0.1, beta1=0.5, beta2=0.8, adaptivity=0.1), ROUNDS),
    "fedadam, no memory": (td.FedAdam(beta1=0.0, beta2=0.0), ROUNDS),
    "fedadagrad": (td.FedAdaGrad(), ROUNDS),
    "fedadagrad, other settings": (td.FedAdaGrad(lr=0.2, beta1=0.6, adaptivity=0.05), ROUNDS),
    "fedyogi": (td.FedYogi(), ROUNDS),
    "fedyogi, other settings": (td.FedYogi(lr=0.1, beta1=0.5, beta2=0.8, adaptivity=0.1), ROUNDS),
    "scaffold": (td.SCAFFOLD(lr=0.6), ROUNDS),
    "sgd": (td.SGD(), CENTRAL),
}  # fmt: skip


def variant(algorithm, more):
    """The settings of a run of a variant."""
    if algorithm.synchronous:
        return ROUNDS | more
    buffer = td.Buffer(size=None if algorithm.single_upload else BUFFER, staleness_bound=2)
    return ASYNCHRONOUS | {"buffer": buffer, "stop": td.Stop(trips=60)} | more


CASES |= {name: (algorithm, variant(algorithm, more)) for name, (algorithm, more) in VARIANTS.items()}


def make(case):
    algorithm, settings = CASES[case]
    data = {"all": (np.concatenate(A), np.concatenate(B))} if settings is CENTRAL else DATA
    module = Quadratic(torch.tensor(X0, dtype=torch.float32))
    return build(td.Config(algorithm=algorithm, **settings), module, data, head=SquaredError())


def test_every_algorithm_is_resumed():
    assert {type(algorithm) for algorithm, _ in CASES.values()} == set(BUILT_IN)


def choices(annotation):
    """The values of a setting that has only a few, or nothing."""
    return (
        (False, True)
        if annotation is bool
        else get_args(annotation)
        if get_origin(annotation) is Literal
        else ()
    )


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.__name__)
def test_every_choice_that_an_algorithm_offers_is_a_variant(kind):
    varied = [algorithm for algorithm, _ in VARIANTS.values() if type(algorithm) is kind]
    for name, field in kind.model_fields.items():
        others = {value for value in choices(field.annotation) if value != field.default}
        assert others <= {getattr(algorithm, name) for algorithm in varied}, name


@pytest.mark.parametrize("case", CASES)
def test_resumed_run_has_the_events_and_bits_of_an_uninterrupted_one(case, tmp_path):
    whole = make(case)
    expected = list(whole.engine.run())
    final, end = whole.engine.snapshot()
    algorithm = whole.aggregator.algorithm
    remembers = algorithm.remembers and getattr(algorithm, "correction", True)
    assert any(name.startswith("memory/") for name in final) == remembers
    buffers = []
    for stop in STOPS:
        interrupted = make(case)
        seen = [events for _, events in zip(range(stop), interrupted.engine.run())]
        assert len(seen) == stop < len(expected)
        buffers.append(len(interrupted.aggregator._open.members))
        write_snapshot(tmp_path / "snapshot", *interrupted.engine.snapshot())
        resumed = make(case)
        resumed.engine.restore(*read_snapshot(tmp_path / "snapshot"))
        assert seen + list(resumed.engine.run()) == expected, stop
        tensors, document = resumed.engine.snapshot()
        assert tensors.keys() == final.keys()
        assert all(torch.equal(tensors[name], final[name]) for name in final), stop
        assert json.loads(json.dumps(document)) == json.loads(json.dumps(end)), stop
    assert any(buffers) != algorithm.single_upload, "some interruptions are in the middle of a buffer"
