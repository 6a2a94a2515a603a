"""Metrics: their direction, their texts, and stop rules about them."""

import pytest

import tardigrad as td
from tardigrad.core.metric import Metric, top_k


def test_direction_is_known_by_name_or_given():
    lower = {name for name in ("accuracy", "auc", "r2", "loss", "mae", "rmse", "perplexity", "top5", "cost")
             if Metric.named(name).lower_is_better}  # fmt: skip
    assert lower == {"loss", "mae", "rmse", "perplexity"}
    assert Metric.named("cost", "lower").lower_is_better
    assert not Metric.named("loss", "higher").lower_is_better


def test_best_gain_and_shortfall_follow_the_direction():
    rmse, accuracy = Metric.named("rmse"), Metric()
    assert (rmse.best([3.0, 1.0]), accuracy.best([0.3, 0.1])) == (1.0, 0.3)
    assert rmse.best([], default=7.0) == 7.0
    assert (rmse.gain(3.0, 1.0), accuracy.gain(0.1, 0.4)) == (2.0, pytest.approx(0.3))
    assert rmse.short_of(3.5, 3.0) == "0.5 short"


@pytest.mark.parametrize("name", ["top", "top0", "top5x", "topk", "accuracy"])
def test_names_that_are_no_top_k(name):
    assert top_k(name) is None


@pytest.mark.parametrize(
    ("settings", "metrics", "reason"),
    [
        ({"target": 0.9}, {"accuracy": 0.9}, "target"),
        ({"target": 0.9}, {"accuracy": 0.89}, None),
        ({"target": 0.9, "metric": "auc"}, {"accuracy": 0.95, "auc": 0.8}, None),
        ({"target": 0.9, "metric": "auc"}, {"auc": 0.9}, "target"),
        ({"target": 3.0, "metric": "rmse"}, {"rmse": 3.1}, None),
        ({"target": 3.0, "metric": "rmse"}, {"rmse": 3.0}, "target"),
        ({"target": 3.0, "metric": "cost", "better": "lower"}, {"cost": 1.0}, "target"),
        ({"target": 3.0, "metric": "rmse"}, {}, None),
        ({"accuracy": 0.5, "target": 3.0, "metric": "rmse"}, {"accuracy": 0.6, "rmse": 9.0}, "accuracy"),
    ],
)
def test_run_stops_at_the_target_of_any_metric(settings, metrics, reason):
    assert td.Stop(trips=10, **settings).reason(5, 1, 0.5, metrics) == reason


def test_metric_without_a_target_is_refused():
    with pytest.raises(ValueError, match="give target too"):
        td.Stop(trips=10, metric="auc")
