"""td.tune: tuning in Python, with and without objects of the caller."""

import io

import optuna
import pytest
import rich.console
import torch

import tardigrad as td
from tardigrad.experiments.tune.tune import STUDIES

BASE = {
    "local": td.Local(lr=0.05, batch_size=8),
    "pace": {"kind": "asynchronous", "concurrency": 2},
    "buffer": {"size": 2},
    "stop": {"trips": 6},
    "evaluation": {"every_trips": 3},
}
SEARCH = {"trials": 2, "ranges": "none", "spaces": {"A": {"local.lr": {"choices": [0.1, 0.2]}}}}


class Scaled(td.SumOnly):
    """An algorithm of the caller's own, with something to tune."""

    scale: float = 1.0

    def step(self, state, buffer):
        state["model"] = state["model"] - self.scale * buffer.mean()
        return {}


def examples(seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(20, 3, generator=generator)
    return features, (features[:, 0] > 0).long()


def test_own_model_and_algorithm_are_tuned_and_the_trials_are_kept(tmp_path):
    torch.manual_seed(0)
    spaces = {"own": {"algorithm.scale": {"choices": [0.5, 2.0]}, "local.lr": {"choices": [0.1, 0.2]}}}
    given = {
        "base": BASE,
        "settings": SEARCH | {"spaces": spaces},
        "model": torch.nn.Linear(3, 2),
        "clients": {name: examples(number) for number, name in enumerate("abc")},
        "test": examples(9),
        "out": tmp_path,
    }
    found = td.tune({"own": {"algorithm": Scaled(scale=2.0)}}, **given)
    assert found.table["per_entry"]["own"]["trials"] == 2
    assert found.best["own"]["algorithm.scale"] in (0.5, 2.0)
    assert found.best["own"]["local.lr"] in (0.1, 0.2)
    again = td.tune({"own": {"algorithm": Scaled(scale=2.0)}}, **given)
    assert again.table == found.table
    assert list(found.to_pandas()["entry"]) == ["own"]
    shown = io.StringIO()
    rich.console.Console(file=shown, width=150).print(found)
    assert "algorithm.scale" in shown.getvalue()
    assert "algorithm.scale" in found._repr_html_()
    entries = {"own": {"algorithm": Scaled(scale=2.0)}}
    for changed in ({"clients": given["clients"] | {"a": examples(7)}}, {"model": torch.nn.Linear(3, 2)}):
        with pytest.raises(td.ConfigError, match="its model or data"):
            td.tune(entries, **given | changed)


def test_tuned_entries_are_a_file_that_compare_takes(tmp_path):
    data = {"kind": "digits", "partition": {"kind": "iid", "clients": 5}}
    found = td.tune(
        {"A": td.Config(algorithm=td.FedBuff(momentum=td.EMA(beta=0.5)))},
        base=BASE | {"data": data}, settings=td.Tune(**SEARCH), seeds=[0], targets=[0.05], out=tmp_path / "t",
    )  # fmt: skip
    compared = td.compare(found.file, out=tmp_path / "c")
    assert compared.failed == {}
    (folder,) = (tmp_path / "c").glob("A-seed0-*")
    config = td.load_config(folder / "config.toml")
    assert config.local.lr == found.best["A"]["local.lr"]
    assert config.algorithm == td.FedBuff(momentum=td.EMA(beta=0.5))
    assert config.local.batch_size == 8


def test_wrong_search_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(td.ConfigError, match=r"unknown key 'tune\.trails'; did you mean 'trials'"):
        td.tune({"A": {}}, settings={"trails": 3}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_head_of_the_caller_s_own_is_tuned_by_its_own_metric(tmp_path):
    """Trips to a value of which less is better, and a trial that diverges is the worst."""
    x = torch.linspace(-1, 1, 20)[:, None]
    given = {
        "base": BASE | {"stop": {"trips": 40}}, "head": td.Regression(), "model": torch.nn.Linear(1, 1),
        "clients": {"a": (x, 3 * x), "b": (x, 3 * x)}, "test": (x, 3 * x),
    }  # fmt: skip
    spaces = {"A": {"local.lr": {"choices": [1e20, 0.2]}}}
    search = {"trials": 6, "ranges": "none", "spaces": spaces}
    found = td.tune({"A": {}}, settings=search, **given, out=tmp_path / "metric")
    assert found.best["A"] == {"local.lr": 0.2}
    study = optuna.load_study(study_name="A", storage=f"sqlite:///{tmp_path / 'metric' / STUDIES}")
    assert study.best_trial.user_attrs["settings"] == {"local.lr": 0.2}
    to = {"objective": "trips", **search}
    reached = td.tune({"A": {}}, settings=to, targets=[0.9], **given, out=tmp_path / "trips")
    assert 0 < reached.table["per_entry"]["A"]["value"] < 40


@pytest.mark.parametrize(
    "given",
    [
        {"model": "mlp"},
        {"model": {"kind": "mlp", "hidden": [4]}},
        {"model": td.MLP(hidden=(4,))},
        {"head": "multiclass"},
        {"head": {"kind": "multiclass"}},
        {"head": td.MultiClass()},
    ],
    ids=str,
)
def test_model_and_head_may_be_given_as_to_run(tmp_path, given):
    data = {"kind": "digits", "partition": {"kind": "iid", "clients": 5}}
    for _ in range(2):  # the second finds the study of the first
        found = td.tune({"A": {}}, base=BASE | {"data": data}, settings=SEARCH, out=tmp_path, **given)
        assert found.table["per_entry"]["A"]["trials"] == 2
