"""Regression against NumPy and SciPy."""

import math

import numpy as np
import pytest
import torch
from scipy.special import huber
from sklearn import metrics as sk

import tardigrad as td
from tardigrad.learning.heads import Regression


def pairs(targets=1, n=37):
    random = np.random.default_rng(5)
    return random.normal(size=(n, targets)) * 3, random.normal(size=(n, targets)) * 2


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("squared", lambda e: (e**2).mean()),
        ("absolute", lambda e: np.abs(e).mean()),
        ("huber", lambda e: huber(1.5, e).mean()),
    ],
)
def test_loss_and_metrics_equal_numpy_and_do_not_depend_on_batches(loss, expected, targets):
    found, truth = pairs(targets)
    head = Regression(loss=loss, delta=1.5)
    outputs, labels = torch.from_numpy(found), torch.from_numpy(truth)
    assert float(head.loss(outputs, labels)) == pytest.approx(expected(found - truth))
    got = head.metrics(zip(outputs.split((5, 30, 2)), labels.split((5, 30, 2))))
    assert got == pytest.approx(
        {
            "loss": expected(found - truth),
            "rmse": math.sqrt(sk.mean_squared_error(truth.ravel(), found.ravel())),
            "mae": sk.mean_absolute_error(truth.ravel(), found.ravel()),
        }
    )
    assert tuple(got) == head.names


def test_column_of_outputs_fits_a_list_of_labels():
    found, truth = pairs()
    outputs, labels = torch.from_numpy(found), torch.from_numpy(truth)
    assert Regression().loss(outputs, labels.flatten()) == Regression().loss(outputs, labels)
    with pytest.raises(td.ConfigError, match="one output for each target"):
        Regression().loss(outputs.expand(-1, 2), labels.flatten())


def test_half_precision_outputs_take_labels_of_any_type():
    outputs = torch.tensor([[1.0], [2.0]], dtype=torch.bfloat16)
    assert float(Regression().loss(outputs, torch.tensor([1, 4]))) == 2.0
    assert Regression().metrics([(outputs, torch.tensor([1, 4]))])["mae"] == 1.0


@pytest.mark.parametrize("loss", ["squared", "absolute", "huber"])
def test_no_other_constant_is_better_than_the_baseline(loss):
    """For Huber's loss the median is not exactly the best; it is for large delta no worse than the mean."""
    truth = torch.from_numpy(pairs(2)[1])
    head = Regression(loss=loss, delta=0.01)
    best = float(head.loss(head.constant(truth).expand(37, 2), truth))
    for shift in (-0.5, 0.5):
        assert best < float(head.loss((head.constant(truth) + shift).expand(37, 2), truth))
