"""Secure runs in a simulation: the same bits as the plain run on the same grid, whatever the algorithm."""

import itertools

import pytest
import torch

import tardigrad as td
from observers import InterruptAfter
from tardigrad.algorithms.algorithm import SumOnly
from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.core.events import ModelEvaluated, ModelMoved, UploadReceived
from tardigrad.core.momentum_approximation import Approximation, LightApproximation
from tardigrad.core.snapshot import read_snapshot, write_snapshot
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.private_run import Secrets
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.privacy.keys import NoiseKeys
from tardigrad.secure.masks import SALT

SMALL = {
    "data": td.Digits(partition=td.IID(clients=30)),
    "model": td.MLP(hidden=()),
    "local": td.Local(steps=2, lr=0.1),
    "stop": td.Stop(steps=4),
    "evaluation": td.Evaluation(every_steps=4),
}
NOISE = td.Participation(noise_multiplier=0.5, participations=20, separation=1, noise_from="seed")
REFUSED = {"fedasync", "fedac", "robust_fedbuff", "heloco", "dc_asgd", "basgd", "sgd"}
"""Algorithms that look at every upload by itself, or make a step of one."""

ALGORITHMS = {
    algorithm().name: algorithm() for algorithm in BUILT_IN if algorithm().name not in REFUSED
} | {
    "fedbuff with discounts": td.FedBuff(staleness="polynomial"),
    "fedbuff with momentum approximation": td.FedBuff(staleness="hinge", momentum=Approximation()),
    "fedbuff with light approximation": td.FedBuff(momentum=LightApproximation()),
    "fedbuff with Adam": td.FedBuff(preconditioner="adam"),
    "masfl with a first pass": td.MasFL(first_pass=True),
    "bucketed_fedbuff": td.BucketedFedBuff(buckets=2),  # so that the model moves
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
    pace = algorithm.default_pace(30)
    if isinstance(pace, td.Synchronous):  # it works at any pace
        pace = td.Asynchronous()
    return {
        "algorithm": algorithm,
        "pace": pace.model_copy(update={"concurrency": 15}),
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
    with pytest.raises(ConfigError, match=f"algorithm.kind: {kind} "):
        run(secure={}, algorithm=kind)


LATE = {
    "algorithm": td.FedBuff(staleness=td.Exponential(a=6.0)),
    "pace": td.Asynchronous(concurrency=20),
    "buffer": {"size": 4},
    "delay": td.LogNormal(spread=1.5),
    "stop": td.Stop(steps=12),
}
"""A run in whose batches late uploads weigh next to nothing."""


def steps_of(events):
    return [event for event in events if isinstance(event, ModelMoved)]


@pytest.mark.parametrize("privacy", [None, NOISE], ids=["no noise", "noise"])
def test_batch_of_too_few_effective_clients_is_a_version_that_leaves_the_model(privacy):
    settings = LATE | {"privacy": privacy, "evaluation": td.Evaluation(every_steps=1)}
    masked, events = run(secure={"least_clients": 3}, **settings)
    weights, expected = [], []
    law = masked.aggregator.layers[0]._helpers.policy.weight
    for event in events:
        if isinstance(event, UploadReceived) and event.accepted:
            weights.append(law(event.staleness))
        if isinstance(event, ModelMoved):
            expected.append(sum(weights) ** 2 / sum(w * w for w in weights) < 3)
            weights = []
    assert True in expected
    assert False in expected
    losses = [event.metrics["loss"] for event in events if isinstance(event, ModelEvaluated)]
    stays = [after == before for before, after in itertools.pairwise(losses)]
    assert stays == expected
    if privacy is not None:
        assert [not event.metrics for event in steps_of(events)] == expected
    unmasked, again = run(secure={"least_clients": 3, "masks": False}, **settings)
    assert again == events
    assert unmasked.model.equal(masked.model)


RESUMED = {
    "fedbuff": pace_of(td.FedBuff(staleness="polynomial")),
    "noise": pace_of(td.FedBuff(staleness="polynomial")) | {"privacy": NOISE},
    "tree": pace_of(td.FedBuff()) | {"privacy": NOISE.model_copy(update={"noise": td.Tree()})},
    "abandoned": LATE | {"secure": {"least_clients": 3}},
    "ca2fl": pace_of(td.CA2FL()),
    "scaffold": pace_of(td.SCAFFOLD()),
}


@pytest.mark.parametrize("case", RESUMED)
def test_resumed_run_has_the_events_and_bits_of_an_uninterrupted_one(case, tmp_path):
    settings = SMALL | {"secure": {"helpers": 2}} | RESUMED[case]
    whole = build(Config(**settings))
    expected = list(whole.engine.run())
    for stop in (13, len(expected) // 2, len(expected) - 3):
        interrupted = build(Config(**settings))
        seen = [events for _, events in zip(range(stop), interrupted.engine.run())]
        write_snapshot(tmp_path / "snapshot", *interrupted.engine.snapshot())
        resumed = build(Config(**settings))
        resumed.engine.restore(*read_snapshot(tmp_path / "snapshot"))
        assert seen + list(resumed.engine.run()) == expected
        assert resumed.model.equal(whole.model)


def test_resumed_run_repeats_steps_with_the_noise_of_its_keys(tmp_path):
    """Noise of the system: what was released after the last snapshot is released again with the same bits."""
    privacy = NOISE.model_copy(update={"noise_from": "system"})
    settings = SMALL | pace_of(td.FedBuff()) | {"privacy": privacy, "secure": {}, "stop": td.Stop(steps=8)}

    def alive():
        return build(Config(**settings), secrets=Secrets(NoiseKeys(tmp_path / "noise.keys")))

    first = alive()
    released = []
    for position, events in enumerate(first.engine.run()):
        released.append(events)
        if position == 60:
            before = len(released)
            write_snapshot(tmp_path / "snapshot", *first.engine.snapshot())
            first.secrets.noise.forget()
    second = alive()
    second.engine.restore(*read_snapshot(tmp_path / "snapshot"))
    assert list(second.engine.run()) == released[before:]
    assert second.model.equal(first.model)
    second.secrets.noise.forget()
    third = alive()  # if the keys were lost
    third.engine.restore(*read_snapshot(tmp_path / "snapshot"))
    list(third.engine.run())
    assert not third.model.equal(first.model)


def test_workers_do_not_change_the_bits_of_a_folder(tmp_path):
    settings = SMALL | pace_of(td.CA2FL()) | {"privacy": NOISE, "secure": {"helpers": 2}}
    for workers in (0, 2):
        td.run(Config(**settings), out=tmp_path / str(workers), workers=workers)
    one, two = (tmp_path / name for name in ("0", "2"))
    assert (one / "events.jsonl").read_bytes() == (two / "events.jsonl").read_bytes()
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()


def test_interrupted_folder_goes_on_and_keeps_its_config(tmp_path):
    settings = SMALL | pace_of(td.FedBuff()) | {"privacy": NOISE, "secure": {"helpers": 2}}
    whole = td.run(Config(**settings))
    with pytest.raises(KeyboardInterrupt):
        td.run(Config(**settings), out=tmp_path / "run", observers=(InterruptAfter(40),))
    result = td.run(Config(**settings), out=tmp_path / "run", resume=True)
    assert result.model_sha256 == whole.model_sha256
    stored = td.load_config(tmp_path / "run/config.toml")
    assert td.run(stored).model_sha256 == whole.model_sha256, "a config that was resolved is the same run"


def test_losses_of_clients_are_not_told():
    _, events = run(secure={}, **pace_of(td.FedBuff()))
    assert all(event.training_loss is None for event in steps_of(events))


def test_upload_has_a_salt_and_a_sealed_seed_of_80_bytes_for_each_helper():
    plain, _ = run(encoding="grid", **pace_of(td.FedBuff()))
    for helpers, post_quantum, sealed in ((1, False, 80), (3, False, 240), (1, True, 1168)):
        secure = {"helpers": helpers, "post_quantum": post_quantum}
        masked, _ = run(secure=secure, **pace_of(td.FedBuff()))
        assert masked.engine.bytes - plain.engine.bytes == (SALT.length + sealed) * masked.engine.trips


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_models_of_other_types_have_the_bits_of_the_plain_grid_run(dtype):
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 3).to(dtype)
    data = {n: (torch.randn(8, 4, dtype=dtype), torch.arange(8) % 3) for n in range(12)}
    settings = {"buffer": {"size": 4, "once_per_client": True}, "pace": td.Asynchronous(concurrency=6)}
    common = settings | {"stop": td.Stop(steps=3)}
    masked = build(Config(secure={}, **common), module, data)
    plain = build(Config(encoding=masked.config.encoding, **common), module, data)
    for simulation in (masked, plain):
        list(simulation.engine.run())
    assert masked.model.dtype == dtype
    assert masked.model.equal(plain.model)


@pytest.mark.parametrize("helpers", [1, 2])
def test_noise_of_each_helper_is_the_whole_noise(helpers):
    settings = pace_of(td.FedBuff()) | {"stop": td.Stop(steps=1), "local": td.Local(steps=1, lr=1e-9)}
    privacy = NOISE.model_copy(update={"noise": td.Independent(), "clip": 0.2})
    private = build(Config(**(SMALL | settings | {"secure": {"helpers": helpers}, "privacy": privacy})))
    start = private.model.clone()
    list(private.engine.run())
    noise = (private.model - start) * 5  # the step is a mean of five uploads that are nearly zero
    assert float(noise.std()) == pytest.approx(0.5 * 0.2 * helpers**0.5, rel=0.1)


def test_budget_ends_a_secure_run():
    privacy = {"kind": "participation", "noise_multiplier": 1.0, "participations": 1, "epsilon": 10.0}
    config = pace_of(td.FedBuff()) | {"privacy": privacy | {"noise_from": "seed", "noise": "tree"}}
    masked, events = run(secure={}, **(config | {"stop": td.Stop(steps=6)}))
    allowed = masked.guarantee.allowed
    assert 0 < allowed < 6
    assert masked.aggregator.version == allowed
    assert events[-1].reason == "privacy budget"
    spent = [event.metrics["epsilon"] for event in steps_of(events)]
    assert spent == sorted(spent)
    assert spent[-1] <= 10.0


def test_statement_says_what_holds_against_whom(tmp_path):
    settings = SMALL | pace_of(td.FedBuff())
    td.run(Config(secure={}, **settings), out=tmp_path / "bare")
    bare = (tmp_path / "bare/privacy.md").read_text()
    assert "This is not differential privacy" in bare
    assert "| the server alone | the exact sum of each batch, and no single upload" in bare
    private = NOISE.model_copy(update={"noise_from": "system"})
    td.run(Config(secure={"helpers": 2}, privacy=private, **settings), out=tmp_path / "noisy")
    noisy = (tmp_path / "noisy/privacy.md").read_text()
    assert "| the server alone, or with all helpers but one | (epsilon, delta) as above" in noisy
    assert "| helpers | 2, each of which adds the whole noise (the variance is 2 times as large) |" in noisy
    assert "trusted to clip, to sum" not in noisy


class WithoutNumbers(torch.nn.Module):
    """A linear model, one of whose parameters has no numbers."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 10)
        self.nothing = torch.nn.Parameter(torch.zeros(0))

    def forward(self, x):
        return self.linear(x.flatten(1))


def test_a_model_with_an_empty_parameter_can_be_trained():
    settings = {name: value for name, value in SMALL.items() if name != "model"}
    config = Config(**settings, **pace_of(td.FedBuff()), secure=td.Secure(helpers=2))
    simulation = build(config, WithoutNumbers())
    for _ in simulation.engine.run():
        pass
    assert simulation.aggregator.version == 4
