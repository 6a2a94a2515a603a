"""Class weights against sums that are written out."""

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

import tardigrad as td
from tardigrad.learning.heads.class_weights import balanced

GENERATOR = torch.Generator().manual_seed(3)
SCORES, LABELS = torch.randn(30, 3, generator=GENERATOR), torch.randint(3, (30,), generator=GENERATOR)
LOGITS, ANSWERS = torch.randn(30, generator=GENERATOR), torch.randint(2, (30,), generator=GENERATOR)


def test_weighted_mean_of_cross_entropy():
    head = td.MultiClass(class_weights=(1.0, 5.0, 0.5))
    weights = np.array([1.0, 5.0, 0.5])[LABELS.numpy()]
    logs = SCORES.double().log_softmax(1).numpy()[np.arange(30), LABELS.numpy()]
    expected = -(weights * logs).sum() / weights.sum()
    assert float(head.loss(SCORES, LABELS)) == pytest.approx(expected, rel=1e-5)
    batches = list(zip(SCORES.split((7, 1, 22)), LABELS.split((7, 1, 22))))
    assert head.metrics(batches)["loss"] == pytest.approx(expected, rel=1e-5)
    assert head.metrics(batches)["accuracy"] == td.MultiClass().metrics(batches)["accuracy"]


def test_weighted_mean_of_binary_cross_entropy():
    head = td.Binary(class_weights=(1.0, 9.0))
    truth, chances = ANSWERS.numpy(), LOGITS.double().sigmoid().numpy()
    weights = np.where(truth, 9.0, 1.0)
    expected = -(weights * np.where(truth, np.log(chances), np.log1p(-chances))).sum() / weights.sum()
    assert float(head.loss(LOGITS[:, None], ANSWERS)) == pytest.approx(expected, rel=1e-5)
    batches = zip(LOGITS.split((7, 1, 22)), ANSWERS.split((7, 1, 22)))
    assert head.metrics(batches)["loss"] == pytest.approx(expected, rel=1e-5)


def test_in_multilabel_a_yes_counts_by_the_weight_of_its_class():
    truth = (SCORES.flip(0) > 0.5).long()
    chances = SCORES.double().sigmoid().numpy()
    terms = np.where(truth, np.array([2.0, 3.0, 4.0]) * np.log(chances), np.log1p(-chances))
    found = td.MultiLabel(class_weights=(2.0, 3.0, 4.0)).loss(SCORES, truth)
    assert float(found) == pytest.approx(-terms.mean(), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_take_the_type_of_the_outputs(dtype):
    assert td.MultiClass(class_weights=(1.0, 2.0, 3.0)).loss(SCORES.to(dtype), LABELS).dtype == dtype


def test_balanced_weights_are_scikit_learns():
    counts = torch.bincount(LABELS, minlength=3)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=LABELS.numpy())
    assert balanced(counts.tolist(), 30) == pytest.approx(expected)
    assert balanced([10, 0], 10) == (0.5, 1.0)


def test_balanced_weights_that_nobody_computed_are_refused():
    with pytest.raises(td.ConfigError, match="only a simulation without privacy knows; give numbers"):
        td.MultiClass(class_weights="balanced").loss(SCORES, LABELS)
