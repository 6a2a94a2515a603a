"""Hugging Face data sets and flwr-datasets partitions as clients."""

import numpy as np
import pytest
import torch
from torch import nn

import tardigrad as td
from tardigrad.data.sets.hugging_face import from_hugging_face
from tardigrad.errors import ConfigError

datasets = pytest.importorskip("datasets", reason="needs datasets, an extra")

TABLE = {
    "user": ["bob", "ann", "bob", "ann", "bob"],
    "height": [1.0, 2.0, 3.0, 4.0, 5.0],
    "depth": [-1, -2, -3, -4, -5],
    "label": ["yes", "no", "no", "no", "yes"],
}


def table(**changes):
    return datasets.Dataset.from_dict(TABLE | changes)


def test_client_column_names_the_client_of_each_row():
    clients, test = from_hugging_face(table(), client="user", test=table(user=["x"] * 5))
    assert list(clients) == ["ann", "bob"]
    features, labels = clients["bob"]
    assert features.dtype == torch.float32
    assert features.tolist() == [[1, -1], [3, -3], [5, -5]]
    assert labels.tolist() == [1, 0, 1]  # no, yes
    assert len(test[1]) == 5


def test_integer_clients_and_labels_are_kept():
    clients, test = from_hugging_face(
        table(user=[7, 3, 7, 3, 7], label=[4, 0, 1, 2, 3]), client="user", features=["depth"]
    )
    assert test is None
    assert list(clients) == [3, 7]
    assert clients[7][0].tolist() == [-1, -3, -5]
    assert clients[7][1].tolist() == [4, 1, 3]


def test_transform_of_a_data_set_is_applied():
    def pictures(batch):
        return {
            "picture": [torch.full((2, 3, 3), x) for x in batch["height"]],
            "label": [word == "yes" for word in batch["label"]],
        }

    transformed = table().with_transform(pictures)
    clients, test = from_hugging_face([transformed], features="picture", test=transformed)
    for features, labels in (clients[0], test):
        assert features.dtype == torch.float32
        assert torch.equal(features, torch.arange(1.0, 6.0).view(5, 1, 1, 1).expand(5, 2, 3, 3))
        assert labels.tolist() == [1, 0, 0, 0, 1]
    clients, _ = from_hugging_face(transformed, client="user", features="picture")
    assert {name: len(labels) for name, (_, labels) in clients.items()} == {"ann": 2, "bob": 3}


@pytest.mark.parametrize("kind", [list, dict])
def test_class_numbers_are_the_same_in_all_partitions(kind):
    parts = [table(label=["yes"] * 5), table(label=["no"] * 5)]
    given = parts if kind is list else {"ann": parts[0], "bob": parts[1]}
    clients, _ = from_hugging_face(given, features="height")
    assert list(clients) == ([0, 1] if kind is list else ["ann", "bob"])
    assert [labels.tolist() for _, labels in clients.values()] == [[1] * 5, [0] * 5]


def test_client_column_of_partitions_is_not_a_feature():
    clients, _ = from_hugging_face([table(), table()], client="user")
    assert list(clients) == [0, 1]
    assert clients[0][0].shape == (5, 2)


@pytest.mark.parametrize(("shape", "wanted"), [((6, 4), (1, 6, 4)), ((6, 4, 3), (3, 6, 4))])
def test_images_become_floats_with_channels_first(shape, wanted):
    pytest.importorskip("PIL")
    pixels = np.random.default_rng(0).integers(256, size=(4, *shape), dtype=np.uint8)
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    data = datasets.Dataset.from_dict({"image": list(pixels), "label": [0, 1, 1, 0]}, features=kinds)
    clients, _ = from_hugging_face([data])
    features, labels = clients[0]
    assert features.shape == (4, *wanted)
    channels_first = pixels.reshape(4, 6, 4, -1).transpose(0, 3, 1, 2)
    assert np.allclose(features.numpy() * 255, channels_first)
    assert labels.tolist() == [0, 1, 1, 0]


def test_token_columns_stay_integers():
    data = datasets.Dataset.from_dict({"tokens": [[1, 2, 3], [4, 5, 6]], "label": [0, 1]})
    clients, _ = from_hugging_face([data])
    assert clients[0][0].dtype == torch.int64
    assert clients[0][0].tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        (lambda: table(), {}, "needs client ="),
        (lambda: datasets.DatasetDict(train=table(), test=table()), {}, "give one of the splits train, test"),
        (lambda: table(), {"client": "who"}, "no column 'who'; the columns are user, height, depth, label"),
        (lambda: table(), {"client": "user", "label": "y"}, "no column 'y'"),
        (lambda: table(), {"client": "user", "features": ["height", "x"]}, "no column 'x'"),
        (lambda: [table()], {}, "0, column 'user': not numbers of one shape"),
        (
            lambda: table(height=[1.0, None, 3.0, 4.0, 5.0]),
            {"client": "user"},
            "column 'height': not numbers",
        ),
        (lambda: table(height=[[1], [2, 3], [4], [5], [6]]), {"client": "user"}, "column 'height'"),
        (lambda: table(height=[[1, 2]] * 5), {"client": "user"}, "must be one column, or several"),
        (lambda: table(label=[0.5, 1, 0, 1, 0]), {"client": "user"}, "'label': labels must be whole numbers"),
        (lambda: [], {}, "no partitions"),
    ],
)
def test_error_for_unusable_data_says_what_is_wrong(data, settings, message):
    with pytest.raises(ConfigError, match=message):
        from_hugging_face(data(), **settings)


def federated(tmp_path, monkeypatch, **partitioners):
    """A real FederatedDataset of 30 rows, read from a local file without a download."""
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    flwr_datasets = pytest.importorskip("flwr_datasets", reason="needs flwr-datasets, an extra")
    file = tmp_path / "a.csv"
    file.write_text("x,z,label\n" + "".join(f"{i},{-i},{i % 3}\n" for i in range(30)))
    return flwr_datasets.FederatedDataset(
        dataset="csv",
        partitioners=partitioners,
        data_files=dict.fromkeys(partitioners, str(file)),
        cache_dir=str(tmp_path),
    )


def test_partitions_of_a_flwr_federated_dataset_are_clients(tmp_path, monkeypatch):
    clients, _ = from_hugging_face(federated(tmp_path, monkeypatch, train=4))
    assert list(clients) == [0, 1, 2, 3]
    rows = torch.cat([features for features, _ in clients.values()])
    labels = torch.cat([labels for _, labels in clients.values()])
    assert sorted(rows[:, 0].tolist()) == list(range(30))
    assert torch.equal(rows[:, 0] % 3, labels)


def test_partitions_of_a_flwr_partitioner_are_clients(monkeypatch):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    partitioner = pytest.importorskip("flwr_datasets.partitioner", reason="needs flwr-datasets, an extra")
    by_user = partitioner.NaturalIdPartitioner(partition_by="user")
    by_user.dataset = table()
    clients, _ = from_hugging_face(by_user, client="user")
    assert sorted(len(labels) for _, labels in clients.values()) == [2, 3]


def test_two_partitioned_splits_are_refused(tmp_path, monkeypatch):
    both = federated(tmp_path, monkeypatch, train=4, test=2)
    with pytest.raises(ConfigError, match="2 splits are partitioned"):
        from_hugging_face(both)


def test_federated_run_learns_from_a_data_set():
    random = np.random.default_rng(0)
    x = random.normal(size=(600, 2)).astype(np.float32)
    data = datasets.Dataset.from_dict(
        {"x": x.tolist(), "label": (x.sum(axis=1) > 0).astype(int), "user": [i % 10 for i in range(600)]}
    ).train_test_split(0.2, seed=0)
    clients, test = from_hugging_face(data["train"], client="user", features="x", test=data["test"])
    torch.manual_seed(0)
    result = td.run(
        clients=clients,
        test=test,
        model=nn.Linear(2, 2),
        pace=td.Asynchronous(concurrency=5),
        buffer=td.Buffer(size=5),
        local=td.Local(lr=0.5),
        stop=td.Stop(trips=50),
    )
    assert result.accuracy > 0.93
