"""EMNIST, from small idx files."""

import pytest
import torch

from data_files import write_idx_pair
from tardigrad.data.partition import Central
from tardigrad.data.sets import emnist
from tardigrad.data.sets.emnist import EMNIST
from tardigrad.errors import ConfigError


@pytest.fixture
def small_emnist(monkeypatch):
    sizes = {"letters": (52, 26), "balanced": (47, 47), "byclass": (62, 62)}
    monkeypatch.setattr(emnist, "EXAMPLES", sizes)
    return sizes


@pytest.mark.parametrize("where", ["emnist", "emnist/gzip"])
@pytest.mark.parametrize(("split", "first", "classes"), [("letters", 1, 26), ("balanced", 0, 47)])
def test_splits_are_read(folder, small_emnist, where, split, first, classes):
    train, test = small_emnist[split]
    pixels = write_idx_pair(
        folder / where, f"emnist-{split}-train", [first + i % classes for i in range(train)]
    )
    write_idx_pair(folder / where, f"emnist-{split}-test", [first + i % classes for i in range(test)])
    federation = EMNIST(split=split, partition=Central()).federation(0)
    features, labels = federation.clients.load(0)
    assert federation.classes == classes
    assert labels.tolist() == [i % classes for i in range(train)]
    assert torch.equal(features[5, 0], torch.from_numpy(pixels[5].T.copy()))  # transposed


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([1] * 51, "51 labels, and 52 would be right"),
        ([0] * 52, "beyond the 26"),
        ([27] * 52, "beyond the 26"),
    ],
)
def test_wrong_number_or_range_of_labels_is_refused(folder, small_emnist, labels, says):
    write_idx_pair(folder / "emnist", "emnist-letters-train", labels)
    with pytest.raises(ConfigError, match=f"labels-idx1-ubyte.*{says}"):
        EMNIST().load()


def test_error_for_missing_files_names_file_and_folder(folder):
    with pytest.raises(ConfigError, match=r"put emnist/emnist-balanced-train-images-idx3-ubyte or"):
        EMNIST(split="balanced").load()
