"""Inputs and outputs of modules: tensors, tuples, dicts, and objects with logits."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tardigrad.learning.examples import described, logits_of, mapped, predicted, take, tensors
from tardigrad.learning.head import MultiClass
from tardigrad.learning.heads.module_loss import ModuleLoss

X, Z = torch.arange(6.0).view(3, 2), torch.arange(3)
INDEX = torch.tensor([2, 0])


class Inputs(nn.Module):
    """Returns what it was called with."""

    def forward(self, *positional, **named):
        return SimpleNamespace(logits=(positional, named), loss=torch.tensor(1.0))


def test_take_selects_the_same_rows_of_every_tensor():
    assert take(X, INDEX).tolist() == [[4.0, 5.0], [0.0, 1.0]]
    first, second = take((X, Z), INDEX)
    assert (first.tolist(), second.tolist()) == ([[4.0, 5.0], [0.0, 1.0]], [2, 0])
    assert take({"z": Z}, INDEX)["z"].tolist() == [2, 0]


def test_mapping_keeps_the_structure():
    assert isinstance(mapped(X, torch.neg), torch.Tensor)
    assert [list(part.shape) for part in mapped((X, Z), torch.neg)] == [[3, 2], [3]]
    assert list(mapped({"a": X, "b": Z}, torch.neg)) == ["a", "b"]


@pytest.mark.parametrize(
    ("features", "names"), [(X, [""]), ((X, Z), ["0", "1"]), ({"a": X, "b": Z}, ["a", "b"])]
)
def test_every_tensor_has_a_name(features, names):
    assert [name for name, _ in tensors(features)] == names
    assert described(features).count("of torch.") == len(names)


@pytest.mark.parametrize(
    ("features", "positional", "named"),
    [(X, (X,), {}), ((X, Z), (X, Z), {}), ({"a": X, "b": Z}, (), {"a": X, "b": Z})],
)
def test_tuples_are_positional_and_dicts_are_keyword_arguments(features, positional, named):
    got_positional, got_named = predicted(Inputs(), MultiClass(), features, Z)
    assert len(got_positional) == len(positional)
    assert all(a is b for a, b in zip(got_positional, positional))
    assert got_named.keys() == named.keys()


@pytest.mark.parametrize("features", [X, (X, Z), {"a": X}])
def test_module_that_computes_its_loss_is_given_the_labels(features):
    outputs = predicted(Inputs(), ModuleLoss(), features, Z)
    assert outputs.logits[1]["labels"] is Z
    assert outputs.loss == 1.0


def test_logits_are_taken_from_objects_and_dicts_only():
    assert logits_of(X) is X
    assert logits_of({"logits": X}) is X
    assert logits_of(SimpleNamespace(logits=X)) is X
    pair = (X, Z)
    assert logits_of(pair) is pair
