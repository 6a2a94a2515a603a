"""Tables of comparisons whose runs are judged by other metrics than accuracy, and the baseline in them."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import tardigrad as td
from tardigrad.core.metric import Metric
from tardigrad.experiments.compare.compare import Comparison
from tardigrad.experiments.compare.outcome import Outcome, Point
from tardigrad.experiments.compare.tables import cells, comma_separated, headings, markdown, show
from tardigrad.experiments.compare.tabulate import metric_of

RMSE = Metric("rmse", lower_is_better=True)
MEAN = {"says": "always the mean", "of": "the clients' labels", "metrics": {"rmse": 9.5}}
COMMONEST = {
    "says": "always the commonest class",
    "of": "the clients' labels",
    "metrics": {"accuracy": 0.935},
}


def outcome(label, seed, values, metric, baseline=None):
    curve = [Point(100 * i, 10 * i, i / 2, 1e6 * i, value) for i, value in enumerate(values)]
    summary = {"oracle": False, "baseline": baseline}
    return Outcome(label, seed, Path(label), summary, curve, metric=metric)


def comparison(*targets, labels=("a", "b")):
    return Comparison(seeds=(0, 1), targets=targets, entries={label: {} for label in labels})


def rmse_table():
    good = [outcome("a", seed, [9.0, 4.0, 2.0], RMSE, MEAN) for seed in (0, 1)]
    bad = [outcome("b", seed, [9.0, 5.0, 4.0, 3.9, 3.9], RMSE, MEAN) for seed in (0, 1)]
    return comparison(3.0).table([*good, *bad])


def test_less_is_better_where_the_metric_says_so():
    table = rmse_table()
    a, b = table["rows"]
    assert metric_of(table) == RMSE
    assert a["targets"]["3.0"]["trips"]["mean"] == 200
    assert b["targets"]["3.0"]["reached"] == 0
    (missed,) = table["missed"]["3.0"]
    assert missed.startswith("b missed 3 with every seed: the nearest came to 3.9, 0.9 short; it had stopped")


def test_tables_name_the_metric_and_do_not_call_it_percent():
    table = rmse_table()
    assert "RMSE at the end" in headings(3.0, RMSE)
    said = io.StringIO()
    show(table, Console(file=said, width=120))
    assert "to 3 RMSE" in said.getvalue()
    assert "accuracy" not in said.getvalue() + markdown(table)
    assert comma_separated(table).splitlines()[0].count("rmse_mean") == 1
    assert cells(table, 3.0)[0][8] == "2 ± 0"


def test_baseline_is_the_last_row_and_says_where_it_comes_from():
    table = rmse_table()
    assert cells(table, 3.0)[-1] == ["always the mean", *["-"] * 7, "9.5 ± 0", "-"]
    text = markdown(table)
    assert "Always the mean: learned from the clients' labels, evaluated on the test set" in text


def test_target_that_a_constant_prediction_reaches_is_said_to_mean_little():
    runs = [outcome("a", seed, [0.5, 0.94], Metric(), COMMONEST) for seed in (0, 1)]
    table = comparison(0.9, 0.95, labels=("a",)).table(runs)
    assert table["sentences"]["0.9"] == ["This target means little: always the commonest class gets 93.5 %"]
    assert table["sentences"]["0.95"] == []
    assert "metric" not in table, "files of comparisons by accuracy are as they were"


def test_entries_that_are_judged_by_different_metrics_are_refused():
    runs = [outcome("a", 0, [9.0, 2.0], RMSE), outcome("b", 0, [0.1, 0.9], Metric())]
    with pytest.raises(td.ConfigError, match=r"different metrics \(accuracy, rmse\); set evaluation\.main"):
        comparison(0.9).table(runs)
    failed = replace(runs[1], error="boom")
    assert metric_of(comparison(3.0).table([runs[0], failed])) == RMSE


@pytest.mark.parametrize(
    ("base", "target"), [({"head": "regression"}, 3.0), ({"evaluation": {"main": "rmse"}}, 3.0)]
)
def test_targets_beyond_1_need_a_metric_that_has_such_values(base, target):
    fine = Comparison(targets=(target,), base=base, entries={"a": {}})
    assert fine.config("a", 0, "file.toml").seed == 0
    wrong = Comparison(targets=(90.0,), entries={"a": {}})
    with pytest.raises(td.ConfigError, match=r"targets: 90 is no accuracy, which is from 0 to 1"):
        wrong.config("a", 0, "file.toml")
