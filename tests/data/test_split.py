"""Examples set aside: no client trains on them, and every client keeps at least one example."""

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from tardigrad.data.dataset import DataSet
from tardigrad.data.partition import IID, Central, Dirichlet, Natural
from tardigrad.data.split import Aside, SetAside
from tardigrad.errors import ConfigError

PARTS = [np.arange(10 * i, 10 * i + 1 + i) for i in range(10)]  # clients of 1 to 10 examples


def take(aside, parts=PARTS, seed=0):
    return aside.take(parts, np.random.default_rng(seed))


def test_by_client_sets_whole_clients_aside():
    left, kept, aside = take(Aside(share=0.3, by="client"))
    assert len(left) == len(kept) == 7
    assert all(np.array_equal(part, PARTS[client]) for part, client in zip(left, kept))
    others = set(range(10)) - set(kept)
    assert aside.tolist() == sorted(i for client in others for i in PARTS[client].tolist())
    assert take(Aside(share=0.3, by="client"), seed=1)[1] != kept


@pytest.mark.parametrize(("share", "clients"), [(0.001, 1), (0.999, 9)])
def test_by_client_leaves_at_least_one_client_on_each_side(share, clients):
    left, _, _ = take(Aside(share=share, by="client"))
    assert 10 - len(left) == clients


@pytest.mark.parametrize("share", [0.05, 0.5, 0.99])
def test_by_example_every_client_keeps_at_least_one_example(share):
    left, kept, aside = take(Aside(share=share, by="example"))
    assert kept == list(range(10))
    assert min(len(part) for part in left) >= 1
    assert sorted([*np.concatenate(left).tolist(), *aside.tolist()]) == np.concatenate(PARTS).tolist()
    assert all(set(part.tolist()) <= set(whole.tolist()) for part, whole in zip(left, PARTS))


def test_by_example_the_share_is_exact_on_average():
    parts = list(np.arange(20_000).reshape(-1, 4))  # a tenth of four examples is rounded to zero or one
    left, _, aside = take(Aside(share=0.1), parts)
    assert len(aside) == pytest.approx(2000, rel=0.1)
    assert {len(part) for part in left} == {3, 4}


def test_share_that_sets_nothing_aside_is_refused():
    with pytest.raises(ConfigError, match="nothing at all"):
        take(Aside(share=0.5), [np.array([0]), np.array([1])])
    with pytest.raises(ConfigError, match="there is one client"):
        take(Aside(by="client"), [np.arange(9)])


def test_number_is_short_for_a_share():
    adapter = TypeAdapter(SetAside)
    assert adapter.validate_python(0.2) == Aside(share=0.2)
    assert adapter.validate_python({"share": 0.2, "by": "client"}) == Aside(share=0.2, by="client")
    for wrong in (0, 1, 1.5, True, "a tenth"):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)


DATA = DataSet(
    features=torch.arange(60, dtype=torch.uint8).reshape(60, 1, 1, 1),
    labels=torch.arange(60) % 3,
    test=(torch.zeros(5, 1, 1, 1, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64)),
    shape=(1, 1, 1),
    classes=3,
    users=np.array([f"user {i // 6}" for i in range(60)]),
)


def held(clients):
    return [clients.load(client)[0].flatten().tolist() for client in range(len(clients))]


def all_held(clients):
    return [example for part in held(clients) for example in part]


def test_evaluation_set_is_the_test_set_or_what_is_set_aside():
    clients, test = DATA.divide(IID(clients=6), 0, None)
    assert test is DATA.test
    assert sorted(all_held(clients)) == list(range(60))
    clients, test = DATA.divide(IID(clients=6), 0, Aside(share=0.25))
    assert sorted(all_held(clients) + test[0].flatten().tolist()) == list(range(60))
    assert torch.equal(test[1], test[0].flatten().long() % 3)


def test_setting_aside_does_not_move_examples_between_clients():
    everything, _ = DATA.divide(Dirichlet(clients=10), 4, None)
    less, _ = DATA.divide(Dirichlet(clients=10), 4, Aside(share=0.3))
    assert all(set(b) <= set(a) for a, b in zip(held(everything), held(less)))


def test_users_keep_their_examples_when_some_are_drawn():
    for drawn in (DATA.sample(20, 0), DATA.sample(60, 1)):
        clients, test = drawn.divide(Natural(), 0, Aside(share=0.3, by="client"), None)
        assert len(test[1]) + len(all_held(clients)) == len(drawn.labels)
        for client, part in enumerate(held(clients)):
            number = int(clients.name(client).removeprefix("user "))
            assert {example // 6 for example in part} == {number}
            assert clients.load(client)[1].tolist() == [example % 3 for example in part]


def test_natural_clients_keep_their_names():
    clients, _ = DATA.divide(Natural(), 0, Aside(share=0.3, by="client"), None)
    assert len(clients) == 7
    for client, part in enumerate(held(clients)):
        number = int(clients.name(client).removeprefix("user "))
        assert part == list(range(6 * number, 6 * number + 6))
    assert DATA.divide(IID(clients=6), 0)[0].name(3) == 3


def test_validation_set_and_test_set_are_disjoint():
    tested, test = DATA.divide(Natural(), 0, Aside(share=0.2, by="client"), None)
    tuned, validation = DATA.divide(Natural(), 0, Aside(share=0.2, by="client"), Aside(share=0.2))
    assert len(tested) == len(tuned) == 8
    trained, validated = set(all_held(tuned)), set(validation[0].flatten().tolist())
    assert trained | validated == set(all_held(tested))  # tuning never sees the test set
    assert not trained & validated
    assert not validated & set(test[0].flatten().tolist())


def test_clients_index_into_the_shared_tensors():
    clients, _ = DATA.divide(Central(), 0)
    features, labels, index = clients.indexed(0)
    assert features is DATA.features
    assert labels is DATA.labels
    assert index.tolist() == list(range(60))
    assert torch.equal(clients.labels(0), DATA.labels)
