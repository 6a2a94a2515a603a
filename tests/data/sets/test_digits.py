"""scikit-learn's handwritten digits."""

import numpy as np
import pytest
import torch

from tardigrad.data.partition import IID, Central, Dirichlet
from tardigrad.data.sets.digits import Digits, load_digits


def test_shapes_types_and_values():
    (x, y), (test_x, test_y) = load_digits()
    assert x.shape == (1437, 1, 8, 8)
    assert test_x.shape == (360, 1, 8, 8)
    assert x.dtype == test_x.dtype == torch.float32
    assert y.dtype == test_y.dtype == torch.int64
    assert (x.min(), x.max()) == (0.0, 1.0)
    assert set(y.tolist()) == set(test_y.tolist()) == set(range(10))


def test_training_and_test_set_are_fixed_and_disjoint():
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
def test_federation_has_all_training_examples(partition, clients):
    federation = Digits(partition=partition).federation(seed=0)
    assert len(federation.clients) == clients
    assert sum(federation.clients.examples(c) for c in range(clients)) == 1437
    features, labels = federation.clients.load(0)
    assert features.shape[1:] == federation.shape == (1, 8, 8)
    assert len(labels) == federation.clients.examples(0)
    assert federation.classes == 10
    assert len(federation.test[1]) == 360


def test_partition_depends_on_the_seed():
    a, b, other = (Digits().federation(seed) for seed in (1, 1, 2))
    assert torch.equal(a.clients.load(3)[0], b.clients.load(3)[0])
    assert a.clients.load(3)[1].tolist() != other.clients.load(3)[1].tolist()
