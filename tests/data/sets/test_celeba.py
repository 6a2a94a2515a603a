"""CelebA, from LEAF's JSON files and small images."""

import numpy as np
import pytest
import torch
from PIL import Image

from data_files import write_leaf
from tardigrad.data.sets import celeba
from tardigrad.data.sets.celeba import CelebA
from tardigrad.errors import ConfigError


def leaf(folder, name, users):
    """Write LEAF's JSON file of one part, from user -> [(image, label)]."""
    given = {
        user: ([image for image, _ in rows], [label for _, label in rows]) for user, rows in users.items()
    }
    write_leaf(folder / name / f"all_data_niid_0_keep_5_{name}_9.json", given)


TRAIN = {"2880": [("000001.jpg", 1.0), ("000002.jpg", 0.0)], "31": [("000003.jpg", 1)]}
TEST = {"2880": [("000004.jpg", 0)], "31": [("000005.jpg", 1.0)]}


@pytest.fixture
def faces(folder):
    """Five images of the published size: one colour, a grey left edge, and a gradient at the top."""
    target = folder / "celeba" / "raw" / "img_align_celeba"
    target.mkdir(parents=True)
    for number in range(1, 6):
        pixels = np.full((218, 178, 3), (40 * number, 255 - 40 * number, 90), dtype=np.uint8)
        pixels[:, :60] = 128
        pixels[:70] = np.arange(70, dtype=np.uint8)[:, None, None]
        Image.fromarray(pixels).save(target / f"{number:06}.jpg", quality=95)
    return target


def test_leaf_split_is_read(folder, faces):
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


def test_test_set_is_set_aside_if_leaf_has_none(folder, faces):
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


def test_faces_are_decoded_once_and_cached(folder, faces, monkeypatch):
    leaf(folder / "celeba", "train", TRAIN)
    leaf(folder / "celeba", "test", TEST)
    first, _ = CelebA().federation(0).clients.load(0)
    (cache,) = (folder / "celeba" / "raw").glob("*.npy")
    monkeypatch.setattr(celeba, "_decode", None)
    again, _ = CelebA().federation(0).clients.load(0)
    assert torch.equal(first, again)
    content = cache.read_bytes()
    for damaged in (content[:-5], b"", b"nonsense"):
        cache.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"\.npy: damaged; delete it, and it is made again"):
            CelebA().federation(0)


def test_faces_in_a_read_only_folder_are_not_cached(folder, faces, monkeypatch):
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
def test_error_for_a_damaged_image_names_it_and_leaves_no_cache(folder, faces, damage, says):
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
def test_wrong_label_or_image_name_is_refused(folder, faces, row, says):
    leaf(folder / "celeba", "train", {"31": [row]})
    leaf(folder / "celeba", "test", TEST)
    with pytest.raises(ConfigError, match=says):
        CelebA().federation(0)


def test_download_is_refused(folder):
    with pytest.raises(ConfigError, match="must be asked for"):
        CelebA(download=True).federation(0)
