"""Data loaders and Hugging Face data sets as a client's examples."""

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import tardigrad as td
from tardigrad.data.clients import given
from tardigrad.data.loaders import without_loader

FEATURES, LABELS = torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
ROWS = TensorDataset(FEATURES, LABELS)


class Scaled(Dataset):
    """A map-style data set with a transform, as torchvision's have one."""

    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 6

    def __getitem__(self, row):
        return self.transform(FEATURES[row]), LABELS[row]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(ROWS)


def loaded(data):
    return given({"ann": data}, None).clients.load(0)


LOADERS = {
    "in order": (DataLoader(ROWS, batch_size=4), range(6)),
    "shuffled": (DataLoader(ROWS, batch_size=4, shuffle=True, drop_last=True), range(6)),
    "without batches": (DataLoader(ROWS, batch_size=None), range(6)),
    "a sampled subset": (DataLoader(ROWS, sampler=SubsetRandomSampler([5, 0, 3])), [0, 3, 5]),
    "of a Subset": (DataLoader(Subset(ROWS, [4, 1]), shuffle=True), [4, 1]),
}


@pytest.mark.parametrize("case", LOADERS)
def test_a_loader_gives_every_example_once(case):
    loader, rows = LOADERS[case]
    features, labels = loaded(loader)
    assert torch.equal(features, FEATURES[list(rows)])
    assert torch.equal(labels, LABELS[list(rows)])


def test_the_transform_of_the_data_set_is_applied():
    features, _ = loaded(DataLoader(Scaled(lambda x: x / 2), batch_size=2))
    assert torch.equal(features, FEATURES / 2)


def test_a_collate_function_of_ones_own_is_used():
    lines = [(torch.ones(length), length % 2) for length in (1, 3, 2)]

    def padded(rows):
        texts, labels = zip(*rows)
        return torch.nn.utils.rnn.pad_sequence(texts, batch_first=True), torch.tensor(labels)

    features, labels = loaded(DataLoader(lines, batch_size=2, collate_fn=padded))
    assert features.tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 0]]
    assert labels.tolist() == [1, 1, 0]


def test_other_data_is_returned_as_it_is():
    for data in ((FEATURES, LABELS), ROWS, {"x": FEATURES, "label": LABELS}):
        assert without_loader("clients[0]", data) is data


@pytest.mark.parametrize("data", [Stream(), DataLoader(Stream(), batch_size=2)])
def test_a_stream_is_refused_with_the_reason(data):
    with pytest.raises(
        td.ConfigError, match=r"clients\['ann'\]: Stream is a stream without a length"
    ) as caught:
        loaded(data)
    assert "\n" not in str(caught.value)


class Pairs(torch.utils.data.Sampler):
    def __iter__(self):
        return iter([[0, 0], [1, 1]])

    def __len__(self):
        return 2


@pytest.mark.parametrize(
    ("loader", "name"),
    [
        (DataLoader(ROWS, sampler=WeightedRandomSampler([1.0] * 6, 6)), "WeightedRandomSampler"),
        (DataLoader(ROWS, sampler=RandomSampler(ROWS, replacement=True)), "RandomSampler"),
        (DataLoader(ROWS, batch_sampler=Pairs()), "Pairs"),
    ],
)
def test_a_sampler_that_does_not_give_every_example_once_is_refused(loader, name):
    with pytest.raises(
        td.ConfigError, match=rf"clients\['ann'\]: the DataLoader draws its examples by a {name}"
    ):
        loaded(loader)


# -- Hugging Face -------------------------------------------------------------------------------------------


@pytest.fixture
def hugging_face():
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"x": FEATURES.tolist(), "label": LABELS.tolist()})


def test_rows_of_a_hugging_face_data_set_are_tensors(hugging_face):
    rows = without_loader("clients[0]", hugging_face)
    assert isinstance(rows, Dataset)
    assert len(rows) == 6
    assert torch.equal(rows[2]["x"], FEATURES[2])
    assert rows[2]["label"] == 2


def test_the_transform_of_a_hugging_face_data_set_is_applied(hugging_face):
    def doubled(batch):
        return {"x": [2 * torch.tensor(x) for x in batch["x"]], "label": batch["label"]}

    transformed = hugging_face.with_transform(doubled)
    for data in (transformed, DataLoader(transformed, shuffle=True)):
        rows = without_loader("clients[0]", data)
        assert torch.equal(torch.stack([rows[i]["x"] for i in range(len(rows))]), 2 * FEATURES)


def test_a_hugging_face_stream_is_refused(hugging_face):
    with pytest.raises(td.ConfigError, match="stream without a length"):
        loaded(hugging_face.to_iterable_dataset())
