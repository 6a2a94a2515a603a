"""Adversaries of a simulation: each attack against an independent computation, and with other features."""

import numpy as np
import pytest
import torch
from stopped_and_resumed import resumed_as_if_never_stopped

import tardigrad as td
from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.core.draws import key
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.access.new_clients import enroll_clients
from tardigrad.simulation.adversaries import AdversaryLayer

KINDS = {
    "sign_flip": td.SignFlip(share=0.5, strength=2.0),
    "scaled": td.Scaled(share=0.5, strength=5.0),
    "stale_replay": td.StaleReplay(share=0.5),
    "free_rider": td.FreeRider(share=0.5),
}
CLIENTS, SIZE, LR, STEPS = 6, 4, 0.05, 2
_random = np.random.default_rng(3)
A = [_random.normal(size=(5, SIZE)) for _ in range(CLIENTS)]
B = [_random.normal(size=5) for _ in range(CLIENTS)]
SCRIPT = tuple((0.2 * n, 0.3 + 0.17 * (n % 5), n % CLIENTS) for n in range(40))


class Rows(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))

    def forward(self, rows):
        return rows @ self.x


def script_run(adversary, algorithm, size):
    """Every model of a run in float64, and the simulation."""
    config = td.Config(
        algorithm=algorithm, adversaries=adversary, pace=td.Scripted(trips=SCRIPT), seed=4,
        buffer=td.Buffer(size=size), local=td.Local(steps=STEPS, batch_size=5, lr=LR), stop=td.Stop(trips=40),
    )  # fmt: skip
    clients = {i: (A[i], B[i]) for i in range(CLIENTS)}
    simulation = build(config, Rows(), clients, head=td.Regression())
    models = [simulation.model.numpy().copy()]
    for _ in simulation.engine.run():
        if simulation.aggregator.version == len(models):
            models.append(simulation.model.numpy().copy())
    return models


def liars(share):
    """Who lies, drawn as the package says: one number for each client, from the seed alone."""
    return np.random.default_rng(key(4, "adversary", 0)).random(4096)[:CLIENTS] < share


def naive(kind, size, step):
    """`step(x, buffer)`, of (client, start, end) as they were sent."""
    lies, first = liars(0.5), {}
    assert 0 < lies.sum() < CLIENTS
    moments = sorted(
        [(start + duration, 0, n) for n, (start, duration, _) in enumerate(SCRIPT)]
        + [(start, 1, n) for n, (start, _, _) in enumerate(SCRIPT)]
    )
    models, started, buffer = [np.zeros(SIZE)], {}, []
    for _, is_start, n in moments:
        if is_start:
            started[n] = len(models) - 1
            continue
        client, start = SCRIPT[n][2], models[started[n]]
        y = start
        for _ in range(STEPS):
            y = y - LR * 2 * A[client].T @ (A[client] @ y - B[client]) / 5
        end = y
        if lies[client]:
            if kind == "sign_flip":
                end = start + 2.0 * (start - y)
            elif kind == "scaled":
                end = start + 5.0 * (y - start)
            elif kind == "free_rider":
                end = start
            else:
                end = start + first.setdefault(client, y - start)
        buffer.append((client, start, end))
        if len(buffer) == size:
            models.append(step(models[-1], buffer))
            buffer = []
    return models


def mean_step(x, buffer):
    return x - sum(start - end for _, start, end in buffer) / len(buffer)


def mixing_step(x, buffer):
    ((_, _, end),) = buffer
    return 0.5 * x + 0.5 * end


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("uploads", ["deltas", "models"])
def test_attack_is_what_an_independent_computation_has(uploads, kind):
    if uploads == "deltas":
        algorithm, size, step = td.FedBuff(staleness="constant"), 3, mean_step
    else:
        algorithm, size, step = td.FedAsync(alpha=0.5, staleness="constant"), 1, mixing_step
    ours = script_run(KINDS[kind], algorithm, size)
    theirs = naive(kind, size, step)
    assert len(ours) == len(theirs) > 10
    for one, other in zip(ours, theirs):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_who_lies_depends_only_on_the_seed_and_the_client():
    layer, other = (AdversaryLayer(td.SignFlip(share=0.3), seed) for seed in (0, 1))
    again = AdversaryLayer(td.FreeRider(share=0.3), 0)
    lies = [layer.lies(client) for client in range(2000)]
    assert lies == [again.lies(client) for client in reversed(range(2000))][::-1]
    assert lies != [other.lies(client) for client in range(2000)]
    assert 0.25 < sum(lies) / 2000 < 0.35


SMALL = {
    "data": td.Digits(partition=td.IID(clients=20)), "model": td.MLP(hidden=(8,)),
    "local": td.Local(steps=2, batch_size=8, lr=0.1), "pace": td.Asynchronous(concurrency=8),
    "buffer": td.Buffer(size=4), "stop": td.Stop(trips=60), "evaluation": td.Evaluation(every_steps=100),
}  # fmt: skip
OPTIONS = {td.MasFL: {"beta": 0.5, "gamma": 0.1}, td.BASGD: {"buckets": 3}}
REMEMBERING = {
    kind().name: kind(**OPTIONS.get(kind, {}))
    for kind in BUILT_IN
    if not kind.synchronous
    and (kind.remembers or kind in (td.FedBuff, td.RobustFedBuff, td.BASGD, td.HeLoCo))
}


@pytest.mark.parametrize("algorithm", REMEMBERING)
def test_workers_and_resumption_give_the_same_bits(algorithm):
    """A replay is kept in the memory of its client, beside what the algorithm and the encoding keep there."""
    buffer = td.Buffer(size=1 if algorithm == "basgd" else 4)
    config = td.Config(
        **SMALL | {"buffer": buffer}, algorithm=REMEMBERING[algorithm], adversaries=KINDS["stale_replay"],
        encoding=td.TopK(share=0.1, error_feedback=algorithm != "robust_fedbuff"),
    )  # fmt: skip
    whole = resumed_as_if_never_stopped(config)
    kept = [name for memory in whole.engine.memories.values() for name in memory]
    assert any(name.startswith("adversary/") for name in kept)
    plain = td.run(config.model_copy(update={"adversaries": None}))
    two = td.run(config, workers=2)
    assert two.model_sha256 == td.run(config).model_sha256 != plain.model_sha256


def test_a_clip_bounds_what_adversaries_do():
    private = td.Participation(
        noise_multiplier=0.0, clip=0.01, participations=20, separation=1, noise_from="seed"
    )
    settings = SMALL | {"stop": td.Stop(steps=5), "adversaries": td.Scaled(strength=1e6)}
    config = td.Config(**settings, privacy=private)
    simulation = build(config)
    before = simulation.model.clone()
    for _ in simulation.engine.run():
        pass
    assert 0 < float((simulation.model - before).norm()) < 5 * 0.01


def test_an_encoding_that_loses_nothing_changes_no_bit():
    config = td.Config(**SMALL, adversaries=KINDS["sign_flip"])
    everything = config.model_copy(update={"encoding": td.TopK(share=1.0)})
    assert td.run(config).model_sha256 == td.run(everything).model_sha256


@pytest.mark.parametrize("settings", [{"encoding": "int8"}, {"secure": {}}], ids=["encoded", "masked"])
def test_an_adversary_that_sends_what_is_not_finite_is_named(settings, monkeypatch):
    """Strengths are bounded; a model that is long itself may still make an upload that is not finite."""
    with pytest.raises(td.ConfigError, match="strength"):
        td.SignFlip(strength=1e13)
    monkeypatch.setattr(td.SignFlip, "sent", lambda self, change, kept: {n: v / 0 for n, v in change.items()})
    config = td.Config(**SMALL | {"buffer": td.Buffer(size=5)} | settings, adversaries=td.SignFlip(share=0.5))
    with pytest.raises(
        td.RunError, match=r"which is an adversary \(sign_flip\).* lower adversaries.strength"
    ):
        td.run(config)


@pytest.mark.parametrize(
    "more", [{}, {"encoding": "int8"}, {"secure": {}}], ids=["plain", "encoded", "masked"]
)
def test_the_strongest_adversary_does_not_end_a_run(more):
    settings = SMALL | {"buffer": td.Buffer(size=5), "stop": td.Stop(trips=30)} | more
    if "secure" not in more:
        settings["algorithm"] = td.RobustFedBuff(norm_bound=0.5)
    td.run(td.Config(**settings, adversaries=td.Scaled(share=0.3, strength=1e12)))


def test_masks_hide_adversaries_and_change_no_bit():
    settings = SMALL | {"buffer": td.Buffer(size=5, once_per_client=True)}
    masked = td.run(td.Config(**settings, adversaries=KINDS["sign_flip"], secure={}))
    unmasked = td.run(td.Config(**settings, adversaries=KINDS["sign_flip"], secure={"masks": False}))
    honest = td.run(td.Config(**settings, secure={}))
    assert masked.model_sha256 == unmasked.model_sha256 != honest.model_sha256


def test_a_server_refuses_simulated_adversaries(tmp_path):
    enroll_clients(tmp_path, ["ann", "bob"])
    config = td.Config(**SMALL | {"pace": td.Asynchronous(concurrency=2)}, adversaries="free_rider")
    with pytest.raises(td.ConfigError, match=r"adversaries: they are clients of a simulation.*leave"):
        td.serve(config, out=tmp_path / "run", endpoint=td.Endpoint(port=0, keys=tmp_path))
    assert not (tmp_path / "run").exists()


def test_the_median_withstands_what_the_mean_does_not():
    settings = SMALL | {"local": td.Local(batch_size=8, lr=0.2), "stop": td.Stop(trips=400)}
    settings |= {"adversaries": td.SignFlip(share=0.2, strength=10.0), "buffer": td.Buffer(size=10)}
    settings |= {"evaluation": td.Evaluation(every_trips=400)}
    mean = td.run(td.Config(**settings, algorithm=td.FedBuff()))
    median = td.run(td.Config(**settings, algorithm=td.RobustFedBuff(mean="median")))
    assert median.accuracy > mean.accuracy + 0.2
