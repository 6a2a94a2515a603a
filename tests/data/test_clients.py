"""Clients: parts of a data set, data that the caller passes, and held-out examples."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from tardigrad.data.clients import Given, HoldingOut, given
from tardigrad.data.dataset import Holders
from tardigrad.errors import ConfigError
from tardigrad.learning.heads import Binary


def partitioned(sizes):
    """Clients of these sizes; the feature of an example is its number n, and its label is 10 n."""
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    numbers = torch.arange(sum(sizes))
    return Holders(numbers.float().unsqueeze(1), numbers * 10, parts)


def test_partitioned_clients_have_their_own_examples():
    clients = partitioned([3, 1, 4])
    assert len(clients) == 3
    assert [clients.examples(c) for c in range(3)] == [3, 1, 4]
    features, labels = clients.load(2)
    assert features.flatten().tolist() == [4, 5, 6, 7]
    assert labels.tolist() == [40, 50, 60, 70]
    assert clients.held_out(2) is None
    assert clients.name(2) == 2


# -- holding out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("source", [partitioned, lambda sizes: Given({
    i: (np.arange(n)[:, None] + 100.0 * i, np.arange(n) + 100 * i) for i, n in enumerate(sizes)
}, torch.float32)], ids=["partitioned", "given"])  # fmt: skip
def test_held_out_examples_are_not_training_examples(share, source):
    sizes = [1, 2, 3, 10, 40]
    whole = source(sizes)
    clients = HoldingOut(whole, share, seed=1)
    assert len(clients) == 5
    for client, size in enumerate(sizes):
        features, labels = clients.load(client)
        held_out = clients.held_out(client)
        assert len(labels) == clients.examples(client) >= 1
        if size == 1:
            assert held_out is None
            continue
        assert len(held_out[1]) == min(max(1, round(share * size)), size - 1)
        together = torch.cat([labels, held_out[1]])
        assert sorted(together.tolist()) == sorted(whole.load(client)[1].tolist())
        paired = {(x.item(), y.item()) for x, y in zip(*whole.load(client))}
        assert {(x.item(), y.item()) for x, y in zip(features, labels)} <= paired
        assert {(x.item(), y.item()) for x, y in zip(*held_out)} <= paired


def test_held_out_examples_depend_only_on_seed_and_client():
    a, b, other = (HoldingOut(partitioned([20, 20]), 0.3, seed) for seed in (1, 1, 2))
    b.load(1)
    assert a.load(0)[1].tolist() == b.load(0)[1].tolist()
    assert sorted(a.load(0)[1].tolist()) != sorted(other.load(0)[1].tolist())
    positions = [set(a.held_out(c)[1].sub(200 * c).tolist()) for c in range(2)]
    assert positions[0] != positions[1]


def test_holding_out_keeps_the_names_of_clients():
    own = Given({"ann": (np.ones((4, 2)), np.zeros(4, int))}, torch.float32)
    assert HoldingOut(own, 0.5, seed=0).name(0) == "ann"


# -- data that the caller passes -----------------------------------------------------------------------

X, Y = np.arange(12.0).reshape(4, 3), np.array([0, 2, 1, 2])


class Rows(Dataset):
    """A map-style data set over a list of rows."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


@pytest.mark.parametrize(
    "value",
    [
        (X, Y),
        [X, Y],
        (torch.from_numpy(X), torch.from_numpy(Y)),
        (X.tolist(), Y.tolist()),
        (X, torch.from_numpy(Y).to(torch.int16)),
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
        Rows([(X[i], int(Y[i])) for i in range(4)]),
        Rows([(torch.from_numpy(X[i]), torch.tensor(Y[i])) for i in range(4)]),
        Rows([(X[i].tolist(), Y[i]) for i in range(4)]),
    ],
    ids=[
        "numpy",
        "list of two",
        "torch",
        "lists",
        "mixed",
        "TensorDataset",
        "Dataset",
        "of torch",
        "of lists",
    ],
)
def test_arrays_tensors_lists_and_datasets_are_accepted(value):
    federation = given({"ann": value, "bob": (X[:2], Y[:2])}, test=(X, Y))
    clients = federation.clients
    assert [clients.name(c) for c in range(2)] == ["ann", "bob"]
    assert [clients.examples(c) for c in range(2)] == [4, 2]
    features, labels = clients.load(0)
    assert features.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert features.tolist() == X.tolist()
    assert labels.tolist() == Y.tolist()
    assert federation.shape == (3,)
    assert federation.classes == 3
    assert federation.test[1].tolist() == Y.tolist()


def test_test_set_is_optional_and_may_have_more_labels():
    assert given({0: (X, Y)}, None).test is None
    assert given({0: (X, Y)}, (X, Y + 4)).classes == 7


def test_float_features_take_the_given_dtype_and_integers_stay_int64():
    assert given({0: (X, Y)}, None, torch.float64).clients.load(0)[0].dtype == torch.float64
    assert given({0: (X.astype(int), Y)}, None).clients.load(0)[0].dtype == torch.int64
    assert given({0: (X, Y / 2)}, None, torch.float64, Binary()).clients.load(0)[1].dtype == torch.float64


def test_client_ids_may_be_any_hashable():
    clients = given({7: (X, Y), "ann": (X, Y), (1, "a"): (X, Y)}, None).clients
    assert [clients.name(c) for c in range(3)] == [7, "ann", "(1, 'a')"]


BAD = {
    "no pair": X,
    "three things": (X, Y, Y),
    "one thing": (X,),
    "nothing": None,
    "a number": 5,
    "words": (X, ["a", "b", "c", "d"]),
    "more features": (X, Y[:3]),
    "more labels": (X[:3], Y),
    "empty": (X[:0], Y[:0]),
    "empty dataset": Rows([]),
    "ragged": ([[1.0], [1.0, 2.0]], [0, 1]),
}


@pytest.mark.parametrize("case", BAD)
def test_error_for_bad_data_names_the_client(case):
    with pytest.raises(ConfigError, match=r"^clients\['bob'\]: ") as caught:
        given({"ann": (X, Y), "bob": BAD[case]}, None)
    assert "\n" not in str(caught.value)


class Endless(IterableDataset):
    def __iter__(self):
        yield X[0], Y[0]


WORSE = {
    "two numbers": (1.0, 2),
    "a ragged dataset": Rows([([1.0], 0), ([1.0, 2.0], 1)]),
    "a dataset without labels": Rows([(X[0],), (X[1],)]),
    "a dataset without a length": Endless(),
    "features of another shape": (X[:, :2], Y),
}


@pytest.mark.parametrize("case", WORSE)
def test_error_for_malformed_arrays_and_datasets_names_the_client(case):
    with pytest.raises(ConfigError, match=r"clients\['bob'\]: "):
        given({"ann": (X, Y), "bob": WORSE[case]}, None)


def test_error_for_a_bad_test_set_names_it():
    with pytest.raises(ConfigError, match="test"):
        given({"ann": (X, Y)}, (X, Y[:2]))


def test_empty_mapping_of_clients_is_refused():
    with pytest.raises(ConfigError, match=r"^clients: the mapping is empty"):
        given({}, None)


def test_nan_in_features_is_named_with_client_and_example():
    x, y = np.ones((4, 2)), [0, 1, 0, 1]
    x[2, 1] = np.nan
    says = r"clients\['ann'\]: its features have missing values \(NaN in 1 example of 4, first in number 2\)"
    with pytest.raises(ConfigError, match=says):
        given({"bob": (np.ones((4, 2)), y), "ann": (x, y)}, None)
    with pytest.raises(ConfigError, match=r"test: its features have missing values"):
        given({"bob": (np.ones((4, 2)), y)}, (x, y))
