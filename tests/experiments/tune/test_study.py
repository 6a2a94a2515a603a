"""Studies whose trials are judged by a metric of which less is better."""

import random

import pytest

from tardigrad.core.metric import Metric
from tardigrad.experiments.compare.compare import Comparison
from tardigrad.experiments.runs.in_memory import InMemory
from tardigrad.experiments.tune import study
from tardigrad.experiments.tune.study import continue_study, findings, open_study, said
from tardigrad.experiments.tune.tune import subjects

pytest.importorskip("optuna")


def subject(folder, **tune):
    draw = random.Random(1)
    rows = ["client,x,price"]
    for n in range(120):
        x = draw.gauss(0, 1)
        rows.append(f"c{n % 4},{x:.4f},{3 * x + 2:.4f}")
    (folder / "t.csv").write_text("\n".join(rows) + "\n")
    comparison = Comparison(
        seeds=(0,), targets=(2.0,), entries={"a": {}},
        tune={"trials": 2, "ranges": "none", "spaces": {"a": {"local.lr": {"choices": [1e-9, 0.05]}}}} | tune,
        base={
            "head": "regression", "model": "mlp", "stop": {"trips": 24}, "local": {"lr": 1e-9},
            "data": {"kind": "files", "path": str(folder / "t.csv"), "label": "price"},
            "pace": {"kind": "asynchronous", "concurrency": 2}, "buffer": {"size": 2},
            "evaluation": {"every_steps": 1},
        },
    )  # fmt: skip
    (one,) = subjects(comparison, "file.toml")
    return one


def result_of(folder, **tune):
    one = subject(folder, **tune)
    opened = open_study(folder / "study.db", one)
    words = list(continue_study(opened, one))
    return findings(opened, one), words, [trial.user_attrs["settings"] for trial in opened.trials]


def test_best_trial_is_the_one_with_the_least_error(tmp_path):
    found, words, tried = result_of(tmp_path, trials=4)
    assert {"local.lr": 0.05} in tried
    assert found.best == {"local.lr": 0.05}
    assert (found.metric, found.lower_is_better) == ("rmse", True)
    assert 0 < found.value < 3
    assert words[0].startswith("RMSE ")


def test_trips_to_an_error_are_counted_and_a_miss_says_how_near_it_came(tmp_path):
    found, words, _ = result_of(tmp_path, objective="trips", trials=4)
    assert words[0].startswith("missed 2, came to ")
    assert found.reached
    assert found.best == {"local.lr": 0.05}
    assert found.value == round(found.value) > 0


def test_values_are_said_in_the_unit_of_their_metric():
    assert said(0.5, None) == "50.00%"
    assert said(-0.25, None, metric=Metric("r2")) == "R2 -0.25"


def test_settings_that_miss_the_target_with_a_seed_are_worse_than_those_that_reach_it_later(
    tmp_path, monkeypatch
):
    """The large rate takes 100 trips with one seed and misses with the other; the small one takes 600."""
    one = subject(tmp_path, objective="trips", seeds=[1, 2], trials=6, pruning=False)
    of_runs = {(0.05, 1): (-100.0, True), (0.05, 2): (-1050.0, False)}
    made = []
    monkeypatch.setattr(
        study, "_score", lambda judge, _: of_runs.get((made[-1].local.lr, made[-1].seed), (-600.0, True))
    )
    run = InMemory.run
    monkeypatch.setattr(
        InMemory, "run", lambda self, config, **more: made.append(config) or run(self, config, **more)
    )
    found_in = open_study(tmp_path / "study.db", one)
    list(continue_study(found_in, one))
    found = findings(found_in, one)
    assert {trial.user_attrs["settings"]["local.lr"] for trial in found_in.trials} == {1e-9, 0.05}
    assert (found.best, found.reached, found.value) == ({"local.lr": 1e-9}, True, 600.0)
