"""Evaluation: metrics are right for every batch size, and nothing else is changed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tardigrad.learning.evaluate import evaluate
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.heads import MultiClass


def test_accuracy_and_loss_equal_values_computed_by_hand():
    # The model is the identity: it predicts the larger of two features. Four of five are right.
    flat = FlatModule(nn.Linear(2, 2, bias=False))
    features = torch.tensor([[2.0, 0.0], [0.0, 2.0], [3.0, 1.0], [1.0, 3.0], [2.0, 0.0]])
    labels = torch.tensor([0, 1, 0, 1, 1])
    metrics = evaluate(flat, MultiClass(), torch.tensor([1.0, 0.0, 0.0, 1.0]), features, labels)
    right, wrong = torch.tensor(-2.0).exp().log1p().item(), torch.tensor(2.0).exp().log1p().item()
    assert metrics["accuracy"] == 0.8
    assert metrics["loss"] == pytest.approx((4 * right + wrong) / 5)


def make():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
    flat = FlatModule(module)
    features = torch.randn(50, 6)
    return flat, flat.vector.clone(), features, torch.randint(3, (50,))


@pytest.mark.parametrize("batch_size", [1, 7, 50, 1024])
def test_metrics_do_not_depend_on_the_batch_size(batch_size):
    flat, vector, features, labels = make()
    flat.module.eval()
    with torch.no_grad():
        outputs = flat.module(features)
    metrics = evaluate(flat, MultiClass(), vector, features, labels, batch_size=batch_size)
    assert metrics["loss"] == pytest.approx(float(F.cross_entropy(outputs, labels)), rel=1e-5)
    assert metrics["accuracy"] == pytest.approx(float((outputs.argmax(1) == labels).double().mean()))


def test_dropout_is_off_and_random_state_is_unchanged():
    flat, vector, features, labels = make()
    flat.module.train()
    before = torch.get_rng_state()
    first = evaluate(flat, MultiClass(), vector, features, labels)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert evaluate(flat, MultiClass(), vector, features, labels) == first


def test_evaluated_vector_is_unchanged():
    flat, vector, features, labels = make()
    other = vector + 1
    kept = other.clone()
    evaluate(flat, MultiClass(), other, features, labels)
    assert torch.equal(other, kept)
    with torch.no_grad():
        flat.vector.zero_()
    assert torch.equal(other, kept)


def test_gradients_can_be_computed_after_an_evaluation():
    # Tensors made in inference mode must not break the gradients of later training.
    flat, vector, features, labels = make()
    evaluate(flat, MultiClass(), vector, features, labels)
    flat.module.train()
    F.cross_entropy(flat.module(features), labels).backward()
    assert flat.gradient.abs().sum() > 0
