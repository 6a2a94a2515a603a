"""Examples in the forms that people have them."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import tardigrad as td
from tardigrad.data.clients import HoldingOut, given
from tardigrad.data.own_examples import features_and_labels, shapes_of
from tardigrad.learning.examples import tensors

X, MASK, Y = torch.arange(12.0).view(4, 3), torch.ones(4, 3), torch.tensor([0, 1, 1, 0])


class Items(Dataset):
    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def items(make):
    return Items(*(make(i) for i in range(4)))


SEVERAL = {
    "a tuple of tensors": ((X, MASK), Y),
    "a tuple of arrays": ((X.numpy(), MASK.numpy()), Y.tolist()),
    "a TensorDataset of three": TensorDataset(X, MASK, Y),
    "items with a tuple": items(lambda i: ((X[i], MASK[i]), int(Y[i]))),
}
NAMED = {
    "a dict and labels": ({"x": X, "mask": MASK}, Y),
    "a dict with labels": {"x": X, "mask": MASK, "labels": Y},
    "a dict with label": {"x": X.tolist(), "mask": MASK.numpy(), "label": Y.tolist()},
    "items that are dicts": items(lambda i: {"x": X[i].tolist(), "mask": MASK[i], "label": int(Y[i])}),
    "items with a dict": items(lambda i: ({"x": X[i].numpy(), "mask": MASK[i]}, Y[i])),
}
SINGLE = {
    "a pair": (X, Y),
    "rows in a tuple": (tuple(np.array(row) for row in X.tolist()), Y),
    "items": items(lambda i: (X[i].tolist(), int(Y[i]))),
}


@pytest.mark.parametrize(
    ("value", "names"),
    [
        *((value, ["0", "1"]) for value in SEVERAL.values()),
        *((value, ["x", "mask"]) for value in NAMED.values()),
        *((value, [""]) for value in SINGLE.values()),
    ],
    ids=[*SEVERAL, *NAMED, *SINGLE],
)
def test_forms_are_the_same_examples(value, names):
    features, labels = features_and_labels(value)
    assert torch.equal(labels, Y)
    found = list(tensors(features))
    assert [name for name, _ in found] == names
    for (_, tensor), expected in zip(found, (X, MASK)):
        assert torch.equal(tensor.float(), expected)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"x": X}, r"a dict must have the key 'labels' or 'label', and has x"),
        (({"x": X, "mask": MASK[:3]}, Y), r"3 features 'mask' and 4 labels"),
        (({}, Y), r"there are labels but no features"),
        ({"x": ["one", "two"], "label": [0, 1]}, r"expected a \(features, labels\) pair"),
        (items(lambda i: (X[i],)), r"an item has 1 part and needs two"),
    ],
)
def test_error_names_the_client_and_what_is_wrong(value, message):
    with pytest.raises(td.ConfigError, match=r"^clients\['ann'\]: .*" + message):
        given({"ann": value}, None)


def test_clients_must_have_the_same_inputs():
    with pytest.raises(td.ConfigError, match=r"^clients\['bob'\]: its examples have the shape"):
        given({"ann": {"x": X, "label": Y}, "bob": {"x": X, "z": X, "label": Y}}, None)
    with pytest.raises(td.ConfigError, match=r"^test: its examples have the shape \(3,\)"):
        given({"ann": {"x": X, "label": Y}}, (X, Y))


def test_floats_take_the_dtype_of_the_model_and_integers_stay():
    features, _ = given({"ann": {"x": X.double(), "n": Y, "label": Y}}, None, torch.bfloat16).clients.load(0)
    assert (features["x"].dtype, features["n"].dtype) == (torch.bfloat16, torch.int64)
    assert shapes_of(features) == {"x": (3,), "n": ()}


def test_held_out_examples_are_the_same_rows_of_every_input():
    clients = HoldingOut(given({"ann": ({"x": X, "first": X[:, 0]}, Y)}, None).clients, 0.5, seed=1)
    for features, labels in (clients.load(0), clients.held_out(0)):
        assert torch.equal(features["x"][:, 0], features["first"])
        assert len(labels) == 2
    rows = torch.cat([clients.load(0)[0]["first"], clients.held_out(0)[0]["first"]])
    assert torch.equal(rows.sort().values, X[:, 0])
