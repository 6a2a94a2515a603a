"""CIFAR-10, MNIST and its kin, CelebA and FLAIR, from small files in their publishers' formats."""

import gzip
import hashlib
import json
import os
import pickle
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tardigrad as td
from tardigrad.data.partition import IID, Central
from tardigrad.data.sets import celeba, cifar10
from tardigrad.data.sets import mnist as idx
from tardigrad.data.sets.celeba import CelebA
from tardigrad.data.sets.cifar10 import CIFAR10
from tardigrad.data.sets.flair import FLAIR
from tardigrad.data.sets.mnist import EMNIST, MNIST, FashionMNIST, read_idx
from tardigrad.errors import ConfigError
from tardigrad.experiments.config import parse_config
from tardigrad.learning.head import MultiLabel
from tardigrad.learning.images import CentreCrop, RandomCrop

REAL = Path(os.environ.get("TARDIGRAD_DATA", "nowhere"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TARDIGRAD_DATA", str(tmp_path))
    return tmp_path


def md5(content):
    return hashlib.md5(content).hexdigest()


def everybody(clients):
    """Features and labels of all clients together."""
    loaded = [clients.load(client) for client in range(len(clients))]
    return torch.cat([features for features, _ in loaded]), torch.cat([labels for _, labels in loaded])


# -- CIFAR-10 ----------------------------------------------------------------------------------------

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
    """As Python 2 and its numpy wrote it: byte strings, and numpy's old module names."""

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
def test_cifar10(folder, images, monkeypatch, version):
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


def test_both_versions_of_cifar10_are_one_data_set(folder, images, monkeypatch):
    binary = write_cifar10(folder, images, monkeypatch, "bin")
    one = CIFAR10(partition=IID(clients=7)).federation(3)
    first = [one.clients.load(client) for client in range(7)]
    binary.rename(folder / "hidden")
    write_cifar10(folder, images, monkeypatch, "py")
    other = CIFAR10(partition=IID(clients=7)).federation(3)
    for client, (features, labels) in enumerate(first):
        assert torch.equal(features, other.clients.load(client)[0])
        assert torch.equal(labels, other.clients.load(client)[1])


def test_cifar10s_binary_version_is_mapped_not_read(folder, images, monkeypatch):
    write_cifar10(folder, images, monkeypatch, "bin")
    rows, _ = cifar10.read_binary(folder / "cifar-10-batches-bin" / "data_batch_1.bin")
    owner = rows
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    assert isinstance(owner, np.memmap)
    data = CIFAR10().load()
    assert data.test[0].stride() == (3073, 1024, 32, 1)  # in place, between the labels


def test_what_is_read_is_never_written_back(folder, images, monkeypatch):
    write_cifar10(folder, images, monkeypatch, "bin")
    monkeypatch.setattr(MNIST, "COUNTS", COUNTS)
    write_pair(folder / "mnist", "train", list(range(10)) * 3, packed=False)
    write_pair(folder / "mnist", "t10k", range(10), packed=False)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    CIFAR10().load().test[0].zero_()
    MNIST().load().test[0].zero_()
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
def test_a_damaged_file_of_cifar10_is_named(folder, images, monkeypatch, version, name, damage, says):
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
def test_another_pickle_is_refused(folder, images, monkeypatch, content):
    file = write_cifar10(folder, images, monkeypatch, "py") / "data_batch_1"
    file.write_bytes(content)
    monkeypatch.setitem(cifar10.MD5, "data_batch_1", md5(content))
    with pytest.raises(ConfigError, match="data_batch_1: not a file of CIFAR-10's python version"):
        CIFAR10().load()


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("proof",))


def test_a_pickle_can_call_nothing(folder, images, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    file = write_cifar10(folder, images, monkeypatch, "py") / "data_batch_1"
    for content in (pickle.dumps({b"data": Evil()}), pickle.dumps(Evil(), protocol=2)):
        file.write_bytes(content)
        monkeypatch.setitem(cifar10.MD5, "data_batch_1", md5(content))
        with pytest.raises(ConfigError, match=r"it asks for .*mkdir, which no such file needs"):
            CIFAR10().load()
    assert not (tmp_path / "proof").exists()


def test_cifar10_is_normalised_and_cropped(folder, images, monkeypatch):
    write_cifar10(folder, images, monkeypatch, "bin")
    federation = CIFAR10(partition=Central(), transforms=[CentreCrop(side=24)]).federation(0)
    assert federation.shape == (3, 24, 24)
    features, _ = federation.clients.load(0)
    assert features.dtype == torch.uint8
    out = federation.transform.evaluate(features)
    assert out.shape == (100, 3, 24, 24)
    expected = (features[:, 1, 4:28, 4:28] / 255 - 0.4822) / 0.2435
    assert torch.allclose(out[:, 1], expected, atol=1e-5)


# -- idx files ---------------------------------------------------------------------------------------


def idx_bytes(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_pair(folder, stem, labels, packed=True, seed=0):
    pixels = np.random.default_rng(seed).integers(256, size=(len(labels), 28, 28), dtype=np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for ending, array in (("images-idx3-ubyte", pixels), ("labels-idx1-ubyte", np.asarray(labels, np.uint8))):
        content = idx_bytes(array)
        if packed:
            (folder / f"{stem}-{ending}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / f"{stem}-{ending}").write_bytes(content)
    return pixels


COUNTS = {"train": tuple([3] * 10), "t10k": tuple([1] * 10)}
KINDS = [(MNIST, "mnist"), (FashionMNIST, "fashion-mnist")]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("source", "name"), KINDS)
def test_mnist_and_fashion_mnist(folder, monkeypatch, source, name, packed):
    monkeypatch.setattr(source, "COUNTS", COUNTS)
    train = write_pair(folder / name, "train", list(range(10)) * 3, packed)
    test = write_pair(folder / name, "t10k", range(10), packed, seed=1)
    for _ in range(2):  # packed files are unpacked by the first, found by the second
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


def test_a_folder_that_cannot_be_written_to_is_read_all_the_same(folder, monkeypatch):
    monkeypatch.setattr(MNIST, "COUNTS", COUNTS)
    train = write_pair(folder / "mnist", "train", list(range(10)) * 3)
    write_pair(folder / "mnist", "t10k", range(10))
    before = sorted(folder.rglob("*"))
    monkeypatch.setattr(idx.os, "access", lambda *_: False)
    features, _ = MNIST(partition=Central()).federation(0).clients.load(0)
    assert np.array_equal(features[:, 0].numpy(), train)
    assert sorted(folder.rglob("*")) == before


GOOD = idx_bytes(np.zeros((5, 28, 28), dtype=np.uint8))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (GOOD[:-1], "announces 5 x 28 x 28 bytes and has 3919"),
        (GOOD + b"1", "announces 5 x 28 x 28 bytes and has 3921"),
        (idx_bytes(np.zeros(5, dtype=np.uint8)), "begins with 00000801, and 00000803 would be right"),
        (b"\x00\x00\x0d\x03" + GOOD[4:], "begins with 00000d03"),
        (GOOD[:9], "not an idx file"),
        (b"", "begins with nothing"),
        (b"<html>there is no such file</html>", "not an idx file"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("writable", [True, False])
def test_a_wrong_idx_file_is_named(tmp_path, monkeypatch, content, says, packed, writable):
    monkeypatch.setattr(idx.os, "access", lambda *_: writable)
    file = tmp_path / ("images.gz" if packed else "images")
    file.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(ConfigError, match=rf"{file.name}: .*{says}"):
        read_idx(file, 3)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("damage", [lambda c: c[:-9], lambda c: c[: len(c) // 2], lambda c: b"no gzip", None])
def test_a_damaged_gzip_file_is_named(tmp_path, monkeypatch, damage, writable):
    monkeypatch.setattr(idx.os, "access", lambda *_: writable)
    content = gzip.compress(
        idx_bytes(np.random.default_rng(0).integers(256, size=(5, 28, 28), dtype=np.uint8))
    )
    wrong = content[:2000] + bytes([content[2000] ^ 1]) + content[2001:]
    file = tmp_path / "images.gz"
    file.write_bytes(damage(content) if damage else wrong)
    with pytest.raises(ConfigError, match=r"images\.gz: truncated or not gzip"):
        read_idx(file, 3)
    assert list(tmp_path.iterdir()) == [file]


def test_images_and_labels_must_belong_together(folder):
    write_pair(folder / "mnist", "train", range(10))
    (folder / "mnist" / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(9, dtype=np.uint8)))
    with pytest.raises(ConfigError, match="10 images, but 9 labels"):
        MNIST().load()


def test_fashion_mnist_in_mnists_folder_is_found_out(folder, monkeypatch):
    monkeypatch.setattr(MNIST, "COUNTS", {"train": (4, 2) + (3,) * 8, "t10k": (1,) * 10})
    write_pair(folder / "mnist", "train", list(range(10)) * 3)
    write_pair(folder / "mnist", "t10k", range(10))
    with pytest.raises(ConfigError, match="these are not the labels of mnist"):
        MNIST().load()


def test_missing_files_are_named(folder):
    with pytest.raises(ConfigError, match=r"put mnist/train-images-idx3-ubyte or .*\.gz into .*get mnist"):
        MNIST().load()
    with pytest.raises(ConfigError, match=r"put emnist/emnist-balanced-train-images-idx3-ubyte or"):
        EMNIST(split="balanced").load()


@pytest.fixture
def small_emnist(monkeypatch):
    sizes = {"letters": (52, 26), "balanced": (47, 47), "byclass": (62, 62)}
    monkeypatch.setattr(idx, "EMNIST_EXAMPLES", sizes)
    return sizes


@pytest.mark.parametrize("where", ["emnist", "emnist/gzip"])
@pytest.mark.parametrize(("split", "first", "classes"), [("letters", 1, 26), ("balanced", 0, 47)])
def test_emnist(folder, small_emnist, where, split, first, classes):
    train, test = small_emnist[split]
    pixels = write_pair(folder / where, f"emnist-{split}-train", [first + i % classes for i in range(train)])
    write_pair(folder / where, f"emnist-{split}-test", [first + i % classes for i in range(test)])
    federation = EMNIST(split=split, partition=Central()).federation(0)
    features, labels = federation.clients.load(0)
    assert federation.classes == classes
    assert labels.tolist() == [i % classes for i in range(train)]
    assert torch.equal(features[5, 0], torch.from_numpy(pixels[5].T.copy()))  # stood on its side


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([1] * 51, "51 labels, and 52 would be right"),
        ([0] * 52, "beyond the 26"),
        ([27] * 52, "beyond the 26"),
    ],
)
def test_wrong_labels_of_emnist(folder, small_emnist, labels, says):
    write_pair(folder / "emnist", "emnist-letters-train", labels)
    with pytest.raises(ConfigError, match=f"labels-idx1-ubyte.*{says}"):
        EMNIST().load()


# -- CelebA ------------------------------------------------------------------------------------------


def leaf(folder, name, users):
    """LEAF's JSON: user -> [(image, label)]."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    document = {
        "users": list(users),
        "num_samples": [len(rows) for rows in users.values()],
        "user_data": {
            user: {"x": [row[0] for row in rows], "y": [row[1] for row in rows]}
            for user, rows in users.items()
        },
    }
    (folder / name / f"all_data_niid_0_keep_5_{name}_9.json").write_text(json.dumps(document))


TRAIN = {"2880": [("000001.jpg", 1.0), ("000002.jpg", 0.0)], "31": [("000003.jpg", 1)]}
TEST = {"2880": [("000004.jpg", 0)], "31": [("000005.jpg", 1.0)]}


@pytest.fixture
def faces(folder):
    """Five faces of the published size, each of one colour with a grey left edge and a shaded brow."""
    target = folder / "celeba" / "raw" / "img_align_celeba"
    target.mkdir(parents=True)
    for number in range(1, 6):
        pixels = np.full((218, 178, 3), (40 * number, 255 - 40 * number, 90), dtype=np.uint8)
        pixels[:, :60] = 128
        pixels[:70] = np.arange(70, dtype=np.uint8)[:, None, None]
        Image.fromarray(pixels).save(target / f"{number:06}.jpg", quality=95)
    return target


def test_celeba_with_leafs_split(folder, faces):
    leaf(folder / "celeba", "train", TRAIN)
    leaf(folder / "celeba", "test", TEST)
    federation = CelebA().federation(0)
    assert [federation.clients.name(client) for client in range(2)] == ["2880", "31"]
    features, labels = federation.clients.load(0)
    assert features.shape == (2, 3, 32, 32)
    assert features.dtype == torch.uint8
    assert labels.tolist() == [1, 0]
    assert federation.clients.load(1)[1].tolist() == [1]
    assert federation.test[1].tolist() == [0, 1]
    assert federation.classes == 2
    assert features[1, :, 16, 28].tolist() == pytest.approx([80, 175, 90], abs=4)  # its own image
    assert features[1, :, 16, 2].tolist() == pytest.approx([128, 128, 128], abs=4)
    assert federation.test[0][0, :, 16, 28].tolist() == pytest.approx([160, 95, 90], abs=4)
    out = federation.transform.evaluate(features)
    assert torch.allclose(out, (features / 255 - 0.5) / 0.5, atol=1e-6)


def test_faces_are_resized_then_cropped(folder, faces):
    leaf(folder / "celeba", "train", TRAIN)
    leaf(folder / "celeba", "test", TEST)
    with Image.open(faces / "000001.jpg") as image:
        small = image.resize((32, 39), Image.Resampling.BILINEAR).crop((0, 4, 32, 36))
    features, _ = CelebA().federation(0).clients.load(0)
    assert np.array_equal(features[0].numpy(), np.asarray(small).transpose(2, 0, 1))


def test_celeba_without_a_split_sets_clients_aside(folder, faces):
    many = {str(user): [(f"{1 + (user + i) % 5:06}.jpg", i % 2) for i in range(3)] for user in range(20)}
    leaf(folder / "celeba", "all_data", many)
    federation = CelebA(test=0.2).federation(0)
    assert len(federation.clients) == 20
    trained = sum(federation.clients.examples(client) for client in range(20))
    assert trained + len(federation.test[1]) == 60
    assert 5 < len(federation.test[1]) < 20
    federation = CelebA().federation(0)
    assert len(federation.clients) == 18
    assert len(federation.test[1]) == 6
    names = {federation.clients.name(client) for client in range(18)}
    assert names < set(many)


def test_faces_are_decoded_once(folder, faces, monkeypatch):
    leaf(folder / "celeba", "train", TRAIN)
    leaf(folder / "celeba", "test", TEST)
    first, _ = CelebA().federation(0).clients.load(0)
    (cache,) = (folder / "celeba" / "raw").glob("*.npy")
    monkeypatch.setattr(celeba, "_decoded", None)
    again, _ = CelebA().federation(0).clients.load(0)
    assert torch.equal(first, again)
    content = cache.read_bytes()
    for damaged in (content[:-5], b"", b"nonsense"):
        cache.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"\.npy: damaged; delete it, and it is made again"):
            CelebA().federation(0)


def test_faces_of_a_folder_that_cannot_be_written_to(folder, faces, monkeypatch):
    leaf(folder / "celeba", "train", TRAIN)
    leaf(folder / "celeba", "test", TEST)
    monkeypatch.setattr(celeba.os, "access", lambda *_: False)
    assert len(CelebA().federation(0).clients) == 2
    assert not list(folder.rglob("*.npy"))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda file: file.unlink(), r"000003\.jpg: missing; LEAF's files name it"),
        (lambda file: file.write_bytes(file.read_bytes()[:700]), r"000003\.jpg: truncated or not an image"),
        (lambda file: file.write_text("no image"), r"000003\.jpg: truncated or not an image"),
    ],
)
def test_a_damaged_face_is_named_and_nothing_kept(folder, faces, damage, says):
    leaf(folder / "celeba", "train", TRAIN)
    leaf(folder / "celeba", "test", TEST)
    damage(faces / "000003.jpg")
    with pytest.raises(ConfigError, match=says):
        CelebA().federation(0)
    assert not list(folder.rglob("*.npy*"))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (("000001.jpg", 2), "user 31: a label y is neither 0 nor 1"),
        (("../../secret.jpg", 1), "is not the name of an image"),
    ],
)
def test_wrong_rows_of_leaf(folder, faces, row, says):
    leaf(folder / "celeba", "train", {"31": [row]})
    leaf(folder / "celeba", "test", TEST)
    with pytest.raises(ConfigError, match=says):
        CelebA().federation(0)


def test_celeba_cannot_be_fetched(folder):
    with pytest.raises(ConfigError, match="must be asked for"):
        CelebA(download=True).federation(0)


# -- FLAIR -------------------------------------------------------------------------------------------

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
def test_flair(flair, labels, classes):
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


def test_flair_tests_on_other_users(flair):
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


def test_flair_takes_the_first_images_of_a_user(flair):
    all_of_it = FLAIR(transforms=CROP).federation(0).clients
    few = FLAIR(transforms=CROP, at_most=4).federation(0).clients
    assert [few.examples(client) for client in range(2)] == [4, 3]
    for got, whole in zip(few.load(0), all_of_it.load(0)):
        assert torch.equal(got, whole[:4])


def test_flair_is_opened_anew_in_every_process(flair):
    clients = FLAIR(transforms=CROP).federation(0).clients
    expected = clients.load(0)[0].sum().item()
    assert pickle.loads(pickle.dumps(clients)).load(0)[0].sum().item() == expected
    opened = clients._opened
    clients._opened = (-1, opened[1])  # as after a fork
    assert clients.load(0)[0].sum().item() == expected
    assert clients._opened[0] == os.getpid()


def test_a_truncated_flair_file(flair):
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
def test_another_hdf5_file(flair, removed, says):
    import h5py

    with h5py.File(flair, "a") as content:
        del content[removed]
    with pytest.raises(ConfigError, match=says):
        FLAIR(transforms=CROP).federation(0)


def test_labels_beyond_the_table(flair):
    import h5py

    with h5py.File(flair, "a") as content:
        content["train/b@N1/labels_col"][0] = 17
    federation = FLAIR(transforms=CROP).federation(0)
    with pytest.raises(ConfigError, match="train/b@N1: damaged"):
        federation.clients.load(1)


def test_without_h5py(flair, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"needs h5py: pip install 'tardigrad\[data\]'"):
        FLAIR().federation(0)


# -- as part of a config -----------------------------------------------------------------------------


def test_a_config_names_all_of_it(folder, images, monkeypatch):
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


def test_a_run_on_small_files(folder, images, monkeypatch):
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


# -- the real ones -----------------------------------------------------------------------------------


def real(name):
    if not (REAL / name).exists():
        pytest.skip(f"{name} is not in the folder of TARDIGRAD_DATA")


@pytest.mark.shared
def test_the_real_cifar10():
    real("cifar-10-batches-bin")
    source = CIFAR10(partition=td.Dirichlet(clients=5000, alpha=0.1))
    federation = source.federation(0)
    assert len(federation.clients) == 5000
    features, labels = everybody(federation.clients)
    assert np.bincount(labels.numpy()).tolist() == [5000] * 10
    assert np.bincount(federation.test[1].numpy()).tolist() == [1000] * 10
    assert_normalised(features, source)


@pytest.mark.shared
def test_the_real_fashion_mnist():
    real("fashion-mnist")
    source = FashionMNIST()
    features, labels = everybody(source.federation(0).clients)
    assert np.bincount(labels.numpy()).tolist() == [6000] * 10
    assert_normalised(features, source)


def assert_normalised(features, source):
    """The constants are the mean and standard deviation of each channel."""
    for channel, mean, deviation in zip(features.unbind(1), source.MEAN, source.DEVIATION, strict=True):
        weights = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        values = torch.arange(256) / 255
        assert (weights * values).sum().item() == pytest.approx(mean, abs=1e-4)
        assert (weights * (values - mean) ** 2).sum().sqrt().item() == pytest.approx(deviation, abs=1e-4)


@pytest.mark.shared
def test_a_run_learns_from_the_real_fashion_mnist():
    real("fashion-mnist")
    result = td.run(
        data=FashionMNIST(),
        model=td.MLP(hidden=(100,)),
        pace=td.Asynchronous(concurrency=20),
        local=td.Local(lr=0.05, batch_size=32),
        stop=td.Stop(trips=200),
    )
    assert result.accuracy > 0.7
