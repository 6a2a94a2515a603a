"""Data sets that a config can name."""

import time

import numpy as np
import pytest
import torch

from tardigrad.data.catalogue import Digits, Synthetic
from tardigrad.data.partition import IID, Central, Dirichlet
from tardigrad.data.sets.digits import load_digits


def test_digits():
    (x, y), (test_x, test_y) = load_digits()
    assert x.shape == (1437, 1, 8, 8)
    assert test_x.shape == (360, 1, 8, 8)
    assert x.dtype == test_x.dtype == torch.float32
    assert y.dtype == test_y.dtype == torch.int64
    assert (x.min(), x.max()) == (0.0, 1.0)
    assert set(y.tolist()) == set(test_y.tolist()) == set(range(10))


def test_digits_are_always_the_same_and_never_in_both_sets():
    (x, y), (test_x, _) = load_digits()
    (again, labels), _ = load_digits()
    assert torch.equal(x, again)
    assert torch.equal(y, labels)
    images = torch.cat([x, test_x]).flatten(1)
    from sklearn.datasets import load_digits as original

    expected = np.sort(original().data.astype(np.float32) / 16, axis=0)
    assert np.array_equal(np.sort(images.numpy(), axis=0), expected)


@pytest.mark.parametrize(
    ("partition", "clients"), [(Dirichlet(clients=50), 50), (IID(clients=7), 7), (Central(), 1)]
)
def test_a_federation_of_digits(partition, clients):
    federation = Digits(partition=partition).federation(seed=0)
    assert len(federation.clients) == clients
    assert sum(federation.clients.examples(c) for c in range(clients)) == 1437
    features, labels = federation.clients.load(0)
    assert features.shape[1:] == federation.shape == (1, 8, 8)
    assert len(labels) == federation.clients.examples(0)
    assert federation.classes == 10
    assert len(federation.test[1]) == 360


def test_the_seed_decides_who_holds_what():
    a, b, other = (Digits().federation(seed) for seed in (1, 1, 2))
    assert torch.equal(a.clients.load(3)[0], b.clients.load(3)[0])
    assert a.clients.load(3)[1].tolist() != other.clients.load(3)[1].tolist()


def test_synthetic_clients_are_made_on_touch():
    began = time.monotonic()
    federation = Synthetic(clients=1_000_000, examples=12, features=5, classes=3).federation(seed=0)
    clients = federation.clients
    assert len(clients) == 1_000_000
    assert clients.examples(999_999) == 12
    features, labels = clients.load(999_999)
    assert time.monotonic() - began < 2.0
    assert features.shape == (12, 5)
    assert set(labels.tolist()) <= {0, 1, 2}
    assert torch.equal(clients.load(999_999)[0], features)
    assert not torch.equal(clients.load(0)[0], features)
    assert (federation.shape, federation.classes) == ((5,), 3)


def test_synthetic_classes_can_be_told_apart():
    federation = Synthetic(clients=50, examples=40, features=20, classes=4).federation(seed=0)
    data = [federation.clients.load(c) for c in range(50)]
    features, labels = (torch.cat([d[part] for d in data]) for part in (0, 1))
    centres = torch.stack([features[labels == k].mean(0) for k in range(4)])
    test_x, test_y = federation.test
    nearest = torch.cdist(test_x, centres).argmin(1)
    assert (nearest == test_y).double().mean() > 0.9
