"""The head of a module that computes its own loss."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from tardigrad.errors import ConfigError
from tardigrad.learning.heads.module_loss import ModuleLoss

LOGITS = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
LABELS = torch.tensor([0, 1, 1])


def output(logits, labels):
    return SimpleNamespace(logits=logits, loss=F.cross_entropy(logits, labels))


def test_loss_is_that_of_the_module_as_attribute_or_key():
    loss = torch.tensor(0.5)
    assert ModuleLoss().loss(SimpleNamespace(loss=loss), LABELS) is loss
    assert ModuleLoss().loss({"loss": loss}, LABELS) is loss


@pytest.mark.parametrize("outputs", [LOGITS, {"logits": LOGITS}, SimpleNamespace(loss=None)])
def test_module_without_a_loss_is_refused(outputs):
    with pytest.raises(ConfigError, match=r"^head: the module .* returned no `loss`; give the head"):
        ModuleLoss().loss(outputs, LABELS)


def test_metrics_are_means_over_all_batches():
    batches = [
        (output(LOGITS[:2], LABELS[:2]), LABELS[:2]),
        (output(LOGITS[2:], LABELS[2:]), LABELS[2:]),
    ]
    metrics = ModuleLoss().metrics(batches)
    assert metrics["loss"] == pytest.approx(float(F.cross_entropy(LOGITS, LABELS)))
    assert metrics["accuracy"] == pytest.approx(2 / 3)


def test_labels_of_minus_100_do_not_count_and_positions_have_no_accuracy():
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, -100, 2], [-100, -100, 0]])
    batches = []
    for x, y in zip(logits.split(1), labels.split(1)):
        batches.append((output(x.transpose(1, 2), y), y))
    metrics = ModuleLoss().metrics(batches)
    assert metrics == {"loss": pytest.approx(float(F.cross_entropy(logits.transpose(1, 2), labels)))}
