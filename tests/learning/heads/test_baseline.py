"""The baseline: constant predictions against counts that are written out."""

import math

import pytest
import torch

import tardigrad as td
from tardigrad.learning.heads.baseline import baseline

WHOSE = "the clients' labels"


def test_commonest_class_of_the_clients_is_tried_on_the_test_set():
    learned, test = torch.tensor([1, 1, 1, 0]), torch.tensor([0, 0, 1, 2])
    found = baseline(td.MultiClass(), learned, WHOSE, test, outputs=4, names=["balanced_accuracy", "f1"])
    assert (found["says"], found["of"]) == ("always the commonest class", WHOSE)
    assert found["metrics"]["accuracy"] == 0.25
    assert found["metrics"]["balanced_accuracy"] == pytest.approx(1 / 3)


def test_93_percent_on_7_percent_positives_is_the_commoner_answer():
    labels = torch.tensor([1] * 7 + [0] * 93)
    found = baseline(td.Binary(), labels, WHOSE, labels, outputs=1, names=["auc", "f1"])["metrics"]
    assert found["accuracy"] == 0.93
    assert (found["auc"], found["f1"]) == (0.5, 0.0)
    assert found["loss"] == pytest.approx(-0.07 * math.log(0.07) - 0.93 * math.log(0.93))


def test_mean_predictor_has_the_standard_deviation_as_its_error():
    labels = torch.randn(200, 2, generator=torch.Generator().manual_seed(1))
    found = baseline(td.Regression(), labels, WHOSE, labels, outputs=2, names=["r2"])["metrics"]
    assert found["rmse"] == pytest.approx(float(labels.var(dim=0, correction=0).mean().sqrt()))
    assert found["r2"] == pytest.approx(0.0, abs=1e-6)


def test_tokens_are_counted_as_the_head_itself_would_count_them():
    head = td.NextToken(0, unscored=[1])
    generator = torch.Generator().manual_seed(2)
    learned, test = (torch.randint(0, 9, (n, 5), generator=generator) for n in (300, 40))
    found = baseline(head, learned, WHOSE, test, outputs=12, names=["top3"])["metrics"]
    constant = head.constant(learned)
    outputs = torch.cat([constant, torch.full((3,), -30.0)]).expand(40, 5, 12)
    assert found == pytest.approx(head.metrics([(outputs, test)]) | {"top3": found["top3"]})
    assert found["accuracy"] < found["top3"] < 1


def test_head_without_a_constant_has_no_baseline():
    class Own(td.Head):
        def loss(self, outputs, labels):
            return outputs.mean()

        def metrics(self, outputs):
            return {"loss": 0.0}

    assert baseline(Own(), torch.zeros(3), WHOSE, torch.zeros(3), 1) is None
