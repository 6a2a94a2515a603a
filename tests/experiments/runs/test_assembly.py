"""The assembly: what does not fit is refused in one sentence before anything is written or trained."""

import numpy as np
import pytest
import torch

import tardigrad as td
from tardigrad.experiments.forecast.forecast import forecast
from tardigrad.experiments.runs.result import RunTotals
from tardigrad.experiments.runs.server_assembly import assemble_server, build_server
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.privacy.settings import LocalPrivacy

X = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
Y = np.arange(20) % 2
MODEL = torch.nn.Linear(4, 2)
STOP = td.Stop(trips=5)


def run(clients=None, model=MODEL, **settings):
    clients = dict.fromkeys(range(10), (X, Y)) if clients is None else clients
    return td.run(model=model, clients=clients, **({"stop": STOP, "buffer": td.Buffer(size=1)} | settings))


# ruff: noqa: E501
CASES = {
    "a list of clients": ({"clients": [(X, Y)]}, r"^clients: must be a mapping .* not a list"),
    "features of another width": ({"clients": {0: (X[:, :3], Y)}}, r"^model: it does not fit the data"),
    "features that are integers": ({"clients": {0: (X.astype(int), Y)}}, r"^model: it does not fit .*int64"),
    "labels beyond the outputs": ({"clients": {0: (X, Y), 1: (X, Y + 3)}}, r"^model: it has 2 outputs, but .* 4;"),
    "negative labels": ({"clients": {0: (X, Y), "b": (X, Y - 5)}}, r"^clients\['b'\]: its labels are torch.int64 from -5 on"),
    "labels that are no numbers": ({"clients": {0: (X, np.full(20, np.nan))}}, r"clients\[0\]: its labels are not"),
    "labels with fractions": ({"clients": {0: (X, Y + 0.5)}}, r"^clients\[0\]: its labels are fractions such as 0.5"),
    "a test set of another width": ({"test": (X[:, :3], Y)}, r"^test: its examples have the shape \(3,\)"),
    "a test set with negative labels": ({"test": (X, Y - 1)}, r"^test: its labels are"),
    "a negative number of workers": ({"workers": -1}, r"^workers: must be 'auto', a whole number"),
    "half a worker": ({"workers": 1.5}, r"^workers: must be 'auto', a whole number"),
    "time that does not pass": ({"stop": td.Stop(virtual_time=1), "delay": {"kind": "constant", "duration": 0}}, r"^stop.virtual_time: with delay.duration = 0 no time"),
    "two trips of a client at once": ({"pace": {"kind": "scripted", "trips": [[0, 0, 0], [0, 0, 0]]}}, r"^pace: client 0 would start at 0"),
    "a class for a model": ({"model": torch.nn.Linear}, r"^model: must be a torch.nn.Module"),
    "a setting that is unknown": ({"foo": 1}, r"unknown key 'foo'"),
    "a setting of the wrong type": ({"stop": "soon"}, r"^stop: "),
    "a value out of range": ({"seed": -1}, r"^seed: must be greater than or equal to 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_is_refused_in_one_sentence(case):
    settings, sentence = CASES[case]
    with pytest.raises(td.ConfigError, match=sentence) as error:
        run(**settings)
    assert "\n" not in str(error.value)


def test_settings_change_a_config_and_are_checked():
    config = td.Config(stop=STOP, buffer=td.Buffer(size=1))
    assert td.run(config, model=MODEL, clients={0: (X, Y)}, seed=3).client_trips == 5
    with pytest.raises(td.ConfigError, match="stop"):
        td.run(config, model=MODEL, clients={0: (X, Y)}, stop={"trips": -1})


class Fails(torch.nn.Linear):
    def forward(self, x):
        if self.training:
            raise ValueError("boom")
        return super().forward(x)


def test_error_in_the_users_module_is_told_by_a_worker():
    with pytest.raises(td.RunError, match=r"trip \d+ of client \d+: ValueError: boom"):
        run(model=Fails(4, 2), workers=2)
    with pytest.raises(ValueError, match="boom"):
        run(model=Fails(4, 2))


def test_models_in_half_precision_have_a_fingerprint():
    assert len(run(model=torch.nn.Linear(4, 2, dtype=torch.bfloat16)).model_sha256) == 64


def test_a_snapshot_of_another_model_is_refused(tmp_path):
    settings = {"out": tmp_path / "run", "snapshot_seconds": 0}
    run(model=MODEL, **settings)
    (tmp_path / "run/summary.json").unlink()
    wider = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    with pytest.raises(td.ConfigError, match="the model changed since"):
        run(model=wider, resume=True, **settings)


POISSON = {"privacy": {"kind": "poisson", "noise_multiplier": 1.0}, "pace": td.Poisson(probability=0.5)}
REFUSED = {
    "by the config": ({"buffer": td.Buffer(size=100)}, "buffer.size"),
    "by the algorithm": (
        {"algorithm": td.MasFL(), "stop": td.Stop(virtual_time=5), "buffer": td.Buffer(size=2)}, "stop.steps",
    ),
    "by a layer": (
        POISSON | {"algorithm": td.FedBuff(momentum="approximation"), "buffer": td.Buffer(), "stop": td.Stop(steps=2)},
        "privacy.versions",
    ),
    "by the planner": ({"pace": {"kind": "scripted", "trips": [[0, 2, 0], [1, 1, 0]]}}, "pace: client 0 would"),
    "by the delays": ({"delay": {"kind": "trace", "file": "no.csv"}}, r"delay\.file"),
    "by the executor": ({"workers": "ray:many"}, "workers"),
    "by the model": ({"model": torch.nn.Linear(3, 2)}, "model: it does not fit the data"),
    "by the guard": ({"guard": "guard.json"}, "--guard: is for private runs"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_run_creates_no_folder(case, tmp_path):
    settings, message = REFUSED[case]
    with pytest.raises(td.ConfigError, match=message):
        run(out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


class StopAfterTwo:
    """An observer that interrupts a run after two batches of events."""

    def begin(self, config, history):
        self.left = 2

    def see(self, events):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt

    def end(self):
        pass


def test_refused_resumption_changes_no_file(tmp_path):
    out = tmp_path / "run"
    private = {
        "privacy": {"kind": "participation", "noise_multiplier": 1.0, "participations": 5, "separation": 1},
        "buffer": td.Buffer(size=2, once_per_client=True), "stop": td.Stop(steps=5), "out": out,
        "pace": td.Asynchronous(concurrency=3),
    }  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        run(**private, observers=(StopAfterTwo(),), snapshot_seconds=0)
    before = contents(out)
    assert {"snapshot.safetensors", "releases.log", "privacy.json"} <= set(before)
    for change in (
        {"seed": 5},
        {"model": torch.nn.Linear(3, 2)},
        {"workers": "ray:many"},
        {"guard": out / "g"},
    ):
        with pytest.raises(td.ConfigError):
            run(**(private | change), resume=True)
        assert contents(out) == before, change
    assert run(**private, resume=True).steps == 5


def test_plan_has_the_clients_of_the_run():
    # the delay of a client depends on its examples, without those that it holds out
    config = td.Config(
        data={"kind": "synthetic", "clients": 30, "examples": 10}, model=td.MLP(hidden=(4,)),
        pace=td.Asynchronous(concurrency=5), buffer=td.Buffer(size=5), stop=td.Stop(trips=60),
        delay={"kind": "exponential_by_examples"}, evaluation=td.Evaluation(held_out=0.5),
    )  # fmt: skip
    assert forecast(config, trips=60).virtual_time == td.run(config).virtual_time


def test_simulation_and_server_are_assembled_alike():
    config = td.Config(
        data=td.Digits(partition=td.IID(clients=20)), model=td.MLP(hidden=(4,)), stop=td.Stop(trips=50),
        pace=td.Asynchronous(concurrency=5), buffer=td.Buffer(size=5, most_per_client=2),
        evaluation=td.Evaluation(held_out=0.25),
    )  # fmt: skip
    simulated, served = build(config).assembly, build_server(config).assembly
    assert simulated.config == served.config
    assert simulated.inputs() == served.inputs()
    assert simulated.situation == served.situation
    assert torch.equal(simulated.flat.vector, served.flat.vector)
    assert [simulated.clients.examples(c) for c in range(20)] == [
        served.clients.examples(c) for c in range(20)
    ]


def test_server_leaves_the_callers_module_alone():
    module = torch.nn.Linear(4, 2)
    assembly = assemble_server(td.Config(data=None, model=None, service={"population": 100}), module)
    assert assembly.flat.module is not module
    assert torch.equal(assembly.flat.module.weight, module.weight)


@pytest.mark.parametrize("make", [lambda config: build(config).assembly, assemble_server])
def test_epsilon_of_local_privacy_counts_uploads_of_which_no_step_was_made(make):
    assembly = make(
        td.Config(
            data=td.Digits(partition=td.IID(clients=20)), model=td.MLP(hidden=(4,)), stop=td.Stop(steps=20),
            pace=td.Asynchronous(concurrency=5), buffer=td.Buffer(size=2),
            privacy=LocalPrivacy(noise_multiplier=1.0, participations=8, noise_from="seed"),
        )
    )  # fmt: skip
    totals = RunTotals(assembly.flat.vector, 30, 1, 1.0, 0, 0, {}, {}, "steps")
    assert assembly.result(totals, 1.0, 30.0).epsilon == assembly.guarantee.epsilon()
    assert assembly.guarantee.epsilon() > assembly.guarantee.epsilon(1), "or this test shows nothing"
