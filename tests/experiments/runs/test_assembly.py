"""What does not fit is said in one sentence before anything is trained."""

import numpy as np
import pytest
import torch

import tardigrad as td

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
    "labels with fractions": ({"clients": {0: (X, Y + 0.5)}}, r"^clients\[0\]: its labels are torch.float(32|64) from 0.5 on"),
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
def test_one_sentence(case):
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


def test_an_error_of_the_users_own_is_told_by_a_worker():
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
