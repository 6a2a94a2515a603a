"""FLAIR, from a small file like the one that pfl-research writes."""

import json
import os
import pickle
import sys

import numpy as np
import pytest
import torch

from tardigrad.data.sets.flair import FLAIR
from tardigrad.errors import ConfigError
from tardigrad.learning.heads import MultiLabel
from tardigrad.learning.images import RandomCrop

USERS = {"train": {"b@N1": 3, "a@N2": 5}, "val": {"c": 2}, "test": {"d": 4, "e": 3}}


@pytest.fixture
def flair(folder):
    """The file that pfl-research's script writes, with images of 32 x 32."""
    h5py = pytest.importorskip("h5py")
    (folder / "flair").mkdir()
    file = folder / "flair" / "flair_federated.hdf5"
    random = np.random.default_rng(0)
    with h5py.File(file, "w") as out:
        for part, users in USERS.items():
            for user, size in users.items():
                group = f"/{part}/{user}"
                for prefix, classes in (("labels", 17), ("fine_grained_labels", 40)):
                    table = random.random((size, classes)) < 0.2
                    rows, columns = np.nonzero(table)
                    out[f"{group}/{prefix}_row"] = rows.astype(np.uint16)
                    out[f"{group}/{prefix}_col"] = columns.astype(np.uint8)
                out[f"{group}/image_ids"] = np.asarray([f"{user}{i}" for i in range(size)], dtype="S")
                out.create_dataset(
                    f"{group}/images", data=random.integers(256, size=(size, 32, 32, 3), dtype=np.uint8)
                )
        for prefix, classes in (("label", 17), ("fine_grained_label", 40)):
            out[f"/metadata/{prefix}_mapping"] = json.dumps({f"l{i:02}": i for i in range(classes)})
    return file


CROP = (RandomCrop(side=28),)


@pytest.mark.parametrize(("labels", "classes"), [("coarse", 17), ("fine", 40)])
def test_images_and_labels_of_users_are_read(flair, labels, classes):
    import h5py

    federation = FLAIR(labels=labels, transforms=CROP).federation(0)
    assert isinstance(federation.head, MultiLabel)
    assert (federation.shape, federation.classes) == ((3, 28, 28), classes)
    assert [federation.clients.name(client) for client in range(2)] == ["a@N2", "b@N1"]
    assert [federation.clients.examples(client) for client in range(2)] == [5, 3]
    features, found = federation.clients.load(0)
    prefix = "labels" if labels == "coarse" else "fine_grained_labels"
    with h5py.File(flair) as content:
        group = content["train/a@N2"]
        images = group["images"][:]
        ones = set(zip(group[f"{prefix}_row"][:].tolist(), group[f"{prefix}_col"][:].tolist()))
    assert np.array_equal(features.permute(0, 2, 3, 1).numpy(), images)
    assert found.shape == (5, classes)
    assert {tuple(place) for place in found.nonzero().tolist()} == ones
    assert torch.equal(federation.clients.labels(0), found)
    assert federation.transform.train(features, torch.Generator()).shape == (5, 3, 28, 28)


def test_test_set_is_a_sample_of_other_users(flair):
    everything = FLAIR(transforms=CROP, test_examples=None).federation(0).test
    assert everything[0].shape == (7, 3, 32, 32)
    some, same, other = (FLAIR(transforms=CROP, test_examples=4).federation(seed).test for seed in (0, 0, 5))
    assert some[0].shape == (4, 3, 32, 32)
    assert torch.equal(some[0], same[0])
    assert not torch.equal(some[0], other[0])
    for image, label in zip(*some):
        (place,) = [i for i in range(7) if torch.equal(everything[0][i], image)]
        assert torch.equal(everything[1][place], label)
    assert len(FLAIR(transforms=CROP, test="val").federation(0).test[1]) == 2


def test_at_most_takes_the_first_images_of_a_user(flair):
    all_of_it = FLAIR(transforms=CROP).federation(0).clients
    few = FLAIR(transforms=CROP, at_most=4).federation(0).clients
    assert [few.examples(client) for client in range(2)] == [4, 3]
    for got, whole in zip(few.load(0), all_of_it.load(0)):
        assert torch.equal(got, whole[:4])


def test_file_is_opened_again_in_another_process(flair):
    clients = FLAIR(transforms=CROP).federation(0).clients
    expected = clients.load(0)[0].sum().item()
    assert pickle.loads(pickle.dumps(clients)).load(0)[0].sum().item() == expected
    opened = clients._opened
    clients._opened = (-1, opened[1])  # as after a fork
    assert clients.load(0)[0].sum().item() == expected
    assert clients._opened[0] == os.getpid()


def test_truncated_file_is_refused(flair):
    flair.write_bytes(flair.read_bytes()[:3000])
    with pytest.raises(ConfigError, match=r"flair_federated\.hdf5: truncated or not HDF5"):
        FLAIR().federation(0)


@pytest.mark.parametrize(
    ("removed", "says"),
    [
        ("metadata/label_mapping", "not the file that pfl-research prepares"),
        ("train", "not the file that pfl-research prepares"),
        ("train/a@N2/images", "not the file that pfl-research prepares"),
        ("train/b@N1/image_ids", "not the file that pfl-research prepares"),
        ("test/d/labels_col", "test/d: damaged"),
        ("test/e/images", "test/e: damaged"),
    ],
)
def test_file_with_missing_groups_is_refused(flair, removed, says):
    import h5py

    with h5py.File(flair, "a") as content:
        del content[removed]
    with pytest.raises(ConfigError, match=says):
        FLAIR(transforms=CROP).federation(0)


def test_label_index_out_of_range_is_refused(flair):
    import h5py

    with h5py.File(flair, "a") as content:
        content["train/b@N1/labels_col"][0] = 17
    federation = FLAIR(transforms=CROP).federation(0)
    with pytest.raises(ConfigError, match="train/b@N1: damaged"):
        federation.clients.load(1)


def test_error_without_h5py_names_the_extra(flair, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"needs h5py: pip install .*'\.\[data\]'"):
        FLAIR().federation(0)
