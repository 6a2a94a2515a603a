"""CIFAR-10, from small files of its binary and its Python version."""

import os
import pickle
import struct

import numpy as np
import pytest
import torch

import tardigrad as td
from data_files import assert_normalised, md5, need, training_set
from tardigrad.data.partition import IID, Central
from tardigrad.data.sets import cifar10
from tardigrad.data.sets.cifar10 import CIFAR10
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.reading import parse_config
from tardigrad.learning.images import CentreCrop, RandomCrop

ROWS = 20
NAMES = (*cifar10.TRAIN, cifar10.TEST)


@pytest.fixture
def images():
    """Six files' worth of images and labels."""
    random = np.random.default_rng(0)
    return random.integers(256, size=(6, ROWS, 3072), dtype=np.uint8), random.integers(10, size=(6, ROWS))


def write_cifar10(folder, images, monkeypatch, version):
    pixels, labels = images
    known = {}
    target = folder / f"cifar-10-batches-{version}"
    target.mkdir()
    for name, rows, answers in zip(NAMES, pixels, labels):
        if version == "bin":
            file = f"{name}.bin"
            content = np.concatenate([answers.astype(np.uint8)[:, None], rows], axis=1).tobytes()
        else:
            file = name
            content = python2_pickle(rows, answers.tolist())
        (target / file).write_bytes(content)
        known[file] = md5(content)
    monkeypatch.setattr(cifar10, "ROWS", ROWS)
    monkeypatch.setattr(cifar10, "MD5", known)
    return target


def python2_pickle(rows, labels):
    """A pickle as Python 2 and its NumPy wrote it: byte strings, and NumPy's old module names."""

    def short(text):  # SHORT_BINSTRING, or BINSTRING
        return (b"U" + bytes([len(text)]) if len(text) < 256 else b"T" + struct.pack("<I", len(text))) + text

    shape = b"(" + b"".join(b"M" + struct.pack("<H", n) for n in rows.shape) + b"t"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n"
        b"(cnumpy\nndarray\n(K\x00t" + short(b"b") + b"tR"
        b"(K\x01" + shape + b"cnumpy\ndtype\n(" + short(b"u1") + b"K\x00K\x01tR(K\x03" + short(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + short(rows.tobytes()) + b"tb"
    )  # fmt: skip
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return (
        b"\x80\x02}(" + short(b"data") + array + short(b"labels") + numbers
        + short(b"batch_label") + short(b"training batch 1 of 5") + b"u."
    )  # fmt: skip


@pytest.mark.parametrize("version", ["bin", "py"])
def test_both_versions_are_read(folder, images, monkeypatch, version):
    write_cifar10(folder, images, monkeypatch, version)
    data = CIFAR10().load()
    pixels, labels = images
    index = torch.tensor([99, 0, 41, 40, 0])  # any order, from several files
    expected = pixels[:5].reshape(100, 3, 32, 32)
    assert torch.equal(data.features[index], torch.from_numpy(expected[index.numpy()]))
    assert data.labels.tolist() == labels[:5].flatten().tolist()
    assert data.labels.dtype == data.test[1].dtype == torch.int64
    assert np.array_equal(data.test[0].numpy(), pixels[5].reshape(-1, 3, 32, 32))
    assert data.test[1].tolist() == labels[5].tolist()
    assert (data.shape, data.classes) == ((3, 32, 32), 10)


def test_both_versions_give_the_same_clients(folder, images, monkeypatch):
    binary = write_cifar10(folder, images, monkeypatch, "bin")
    one = CIFAR10(partition=IID(clients=7)).federation(3)
    first = [one.clients.load(client) for client in range(7)]
    binary.rename(folder / "hidden")
    write_cifar10(folder, images, monkeypatch, "py")
    other = CIFAR10(partition=IID(clients=7)).federation(3)
    for client, (features, labels) in enumerate(first):
        assert torch.equal(features, other.clients.load(client)[0])
        assert torch.equal(labels, other.clients.load(client)[1])


def test_binary_version_is_memory_mapped(folder, images, monkeypatch):
    write_cifar10(folder, images, monkeypatch, "bin")
    rows, _ = cifar10.read_binary(folder / "cifar-10-batches-bin" / "data_batch_1.bin")
    owner = rows
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    assert isinstance(owner, np.memmap)
    data = CIFAR10().load()
    assert data.test[0].stride() == (3073, 1024, 32, 1)  # in place, between the labels


def test_changing_loaded_images_does_not_change_the_files(folder, images, monkeypatch):
    write_cifar10(folder, images, monkeypatch, "bin")
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    CIFAR10().load().test[0].zero_()
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    ("version", "name", "damage", "says"),
    [
        ("bin", "data_batch_2.bin", lambda content: content[:-1], "truncated"),
        ("bin", "data_batch_2.bin", lambda content: content + b"1", "truncated"),
        ("bin", "test_batch.bin", lambda content: b"\x0b" + content[1:], "not the published file"),
        ("py", "data_batch_4", lambda content: content[:-9], "not the published file"),
    ],
)
def test_error_for_a_damaged_file_names_it(folder, images, monkeypatch, version, name, damage, says):
    file = write_cifar10(folder, images, monkeypatch, version) / name
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ConfigError, match=f"{name}: .*{says}"):
        CIFAR10().load()


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({b"data": 1}),
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": np.zeros((ROWS, 3071), dtype=np.uint8), b"labels": [0] * ROWS}),
        pickle.dumps({b"data": np.zeros((ROWS, 3072)), b"labels": [0] * ROWS}),
        pickle.dumps({b"data": np.zeros((ROWS, 3072), dtype=np.uint8), b"labels": ["a"] * ROWS}),
        b"no pickle at all",
        b"",
    ],
)
def test_pickle_with_other_content_is_refused(folder, images, monkeypatch, content):
    file = write_cifar10(folder, images, monkeypatch, "py") / "data_batch_1"
    file.write_bytes(content)
    monkeypatch.setitem(cifar10.MD5, "data_batch_1", md5(content))
    with pytest.raises(ConfigError, match="data_batch_1: not a file of CIFAR-10's python version"):
        CIFAR10().load()


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("proof",))


def test_pickle_cannot_call_functions(folder, images, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    file = write_cifar10(folder, images, monkeypatch, "py") / "data_batch_1"
    for content in (pickle.dumps({b"data": Evil()}), pickle.dumps(Evil(), protocol=2)):
        file.write_bytes(content)
        monkeypatch.setitem(cifar10.MD5, "data_batch_1", md5(content))
        with pytest.raises(ConfigError, match=r"it asks for .*mkdir, which no such file needs"):
            CIFAR10().load()
    assert not (tmp_path / "proof").exists()


def test_images_are_normalised_and_cropped(folder, images, monkeypatch):
    write_cifar10(folder, images, monkeypatch, "bin")
    federation = CIFAR10(partition=Central(), transforms=[CentreCrop(side=24)]).federation(0)
    assert federation.shape == (3, 24, 24)
    features, _ = federation.clients.load(0)
    assert features.dtype == torch.uint8
    out = federation.transform.evaluate(features)
    assert out.shape == (100, 3, 24, 24)
    expected = (features[:, 1, 4:28, 4:28] / 255 - 0.4822) / 0.2435
    assert torch.allclose(out[:, 1], expected, atol=1e-5)


def test_config_sets_partition_validation_and_transforms(folder, images, monkeypatch):
    write_cifar10(folder, images, monkeypatch, "bin")
    table = {
        "kind": "cifar10",
        "partition": {"kind": "shards", "clients": 5, "shards": 2},
        "validation": {"share": 0.4, "by": "client"},
        "transforms": [{"kind": "random_crop", "side": 24}, "flip"],
    }
    config = parse_config({"data": table, "local": {"batch_size": 5}}, "here")
    again = parse_config({"data": config.model_dump(mode="json")["data"]}, "here")
    assert again.data == config.data
    federation = config.data.federation(0)
    assert len(federation.clients) == 3
    assert len(federation.test[1]) == 40
    assert federation.shape == (3, 24, 24)


def test_result_of_a_run_depends_on_the_seed(folder, images, monkeypatch):
    write_cifar10(folder, images, monkeypatch, "bin")
    results = [
        td.run(
            seed=seed,
            data=CIFAR10(partition=IID(clients=10), transforms=[RandomCrop(padding=4)]),
            model=td.MLP(hidden=(8,)),
            pace=td.Asynchronous(concurrency=4),
            buffer=td.Buffer(size=2),
            local=td.Local(batch_size=5, lr=0.01),
            stop=td.Stop(trips=12),
        )
        for seed in (1, 1, 2)
    ]
    assert results[0].model_sha256 == results[1].model_sha256 != results[2].model_sha256


@pytest.mark.shared
def test_real_files_have_the_published_counts_and_statistics(real_folder):
    need(real_folder / "cifar-10-batches-bin")
    source = CIFAR10(partition=td.Dirichlet(clients=5000, alpha=0.1))
    federation = source.federation(0)
    assert len(federation.clients) == 5000
    features, labels = training_set(federation)
    assert np.bincount(labels.numpy()).tolist() == [5000] * 10
    assert np.bincount(federation.test[1].numpy()).tolist() == [1000] * 10
    assert_normalised(features, source)
