"""MNIST and Fashion-MNIST, from small idx files."""

import numpy as np
import pytest

import tardigrad as td
from data_files import assert_normalised, idx_bytes, need, training_set, write_idx_pair
from tardigrad.data import idx
from tardigrad.data.partition import Central
from tardigrad.data.sets.mnist import MNIST, FashionMNIST
from tardigrad.errors import ConfigError

COUNTS = {"train": tuple([3] * 10), "t10k": tuple([1] * 10)}
KINDS = [(MNIST, "mnist"), (FashionMNIST, "fashion-mnist")]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("source", "name"), KINDS)
def test_plain_and_compressed_files_are_read(folder, monkeypatch, source, name, packed):
    monkeypatch.setattr(source, "COUNTS", COUNTS)
    train = write_idx_pair(folder / name, "train", list(range(10)) * 3, packed)
    test = write_idx_pair(folder / name, "t10k", range(10), packed, seed=1)
    for _ in range(2):  # the first load decompresses the files, the second finds the result
        federation = source(partition=Central()).federation(0)
        features, labels = federation.clients.load(0)
        assert np.array_equal(features[:, 0].numpy(), train)
        assert labels.tolist() == list(range(10)) * 3
        assert np.array_equal(federation.test[0][:, 0].numpy(), test)
        assert (federation.shape, federation.classes) == ((1, 28, 28), 10)
    stored, _, index = federation.clients.indexed(0)
    assert stored.shape == (30, 1, 28, 28)  # a client is a list of indices
    assert len(index) == 30
    assert (folder / name / "train-images-idx3-ubyte").exists()


def test_compressed_files_in_a_read_only_folder_are_read(folder, monkeypatch):
    monkeypatch.setattr(MNIST, "COUNTS", COUNTS)
    train = write_idx_pair(folder / "mnist", "train", list(range(10)) * 3)
    write_idx_pair(folder / "mnist", "t10k", range(10))
    before = sorted(folder.rglob("*"))
    monkeypatch.setattr(idx.os, "access", lambda *_: False)
    features, _ = MNIST(partition=Central()).federation(0).clients.load(0)
    assert np.array_equal(features[:, 0].numpy(), train)
    assert sorted(folder.rglob("*")) == before


def test_changing_loaded_images_does_not_change_the_files(folder, monkeypatch):
    monkeypatch.setattr(MNIST, "COUNTS", COUNTS)
    write_idx_pair(folder / "mnist", "train", list(range(10)) * 3, packed=False)
    write_idx_pair(folder / "mnist", "t10k", range(10), packed=False)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    MNIST().load().test[0].zero_()
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_different_numbers_of_images_and_labels_are_refused(folder):
    write_idx_pair(folder / "mnist", "train", range(10))
    (folder / "mnist" / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(9, dtype=np.uint8)))
    with pytest.raises(ConfigError, match="10 images, but 9 labels"):
        MNIST().load()


def test_labels_of_another_data_set_are_refused(folder, monkeypatch):
    monkeypatch.setattr(MNIST, "COUNTS", {"train": (4, 2) + (3,) * 8, "t10k": (1,) * 10})
    write_idx_pair(folder / "mnist", "train", list(range(10)) * 3)
    write_idx_pair(folder / "mnist", "t10k", range(10))
    with pytest.raises(ConfigError, match="these are not the labels of mnist"):
        MNIST().load()


def test_error_for_missing_files_names_file_and_folder(folder):
    with pytest.raises(ConfigError, match=r"put mnist/train-images-idx3-ubyte or .*\.gz into .*get mnist"):
        MNIST().load()


@pytest.mark.shared
def test_real_fashion_mnist_has_the_published_counts_and_statistics(real_folder):
    need(real_folder / "fashion-mnist")
    source = FashionMNIST()
    features, labels = training_set(source.federation(0))
    assert np.bincount(labels.numpy()).tolist() == [6000] * 10
    assert_normalised(features, source)


@pytest.mark.shared
def test_federated_run_learns_from_real_fashion_mnist(real_folder):
    need(real_folder / "fashion-mnist")
    result = td.run(
        data=FashionMNIST(),
        model=td.MLP(hidden=(100,)),
        pace=td.Asynchronous(concurrency=20),
        local=td.Local(lr=0.05, batch_size=32),
        stop=td.Stop(trips=200),
    )
    assert result.accuracy > 0.7


def test_some_of_the_examples_are_drawn_with_the_seed(folder, monkeypatch):
    monkeypatch.setattr(MNIST, "COUNTS", COUNTS)
    train = write_idx_pair(folder / "mnist", "train", list(range(10)) * 3)
    test = write_idx_pair(folder / "mnist", "t10k", range(10))
    drawn = [MNIST(partition=Central(), examples=12).federation(seed) for seed in (0, 0, 1)]
    images = [federation.clients.load(0)[0][:, 0].numpy() for federation in drawn]
    assert np.array_equal(images[0], images[1])
    assert not np.array_equal(images[0], images[2])
    every = {image.tobytes(): label for image, label in zip(train, list(range(10)) * 3, strict=True)}
    labels = drawn[0].clients.load(0)[1].tolist()
    assert labels == [every[image.tobytes()] for image in images[0]]
    assert len({image.tobytes() for image in images[0]}) == 12
    assert np.array_equal(drawn[0].test[0][:, 0].numpy(), test), "the test set is whole"
    whole = MNIST(partition=Central(), examples=30).federation(0).clients.load(0)[0][:, 0]
    assert np.array_equal(whole.numpy(), train), "all of them are all of them, in their order"
    with pytest.raises(ConfigError, match=r"data\.examples: 31 .* from 30 training examples"):
        MNIST(examples=31).federation(0)
