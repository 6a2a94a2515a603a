"""Snapshots: round trips, crashes in the middle of writing, and every kind of damage."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tardigrad.core import snapshot
from tardigrad.core.snapshot import digest, read_snapshot, write_snapshot
from tardigrad.errors import RunError

TENSORS = {
    "state/model": torch.tensor([1.0, -2.5, float("nan"), float("-inf"), -0.0]),
    "double": torch.tensor([[1.0, 1e-300]], dtype=torch.float64),
    "whole": torch.tensor([2**62, -1]),
    "bits": torch.tensor([True, False]),
    "half": torch.tensor([1.5, 2.5], dtype=torch.bfloat16),
    "number": torch.tensor(3.5),
    "nothing": torch.zeros(0),
    "names with spaces/and é": torch.ones(1),
}
DOCUMENT = {"version": 3, "list": [1, "zwei", None, True, 0.1], "nested": {"π": {"é": []}}}


def same_bits(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert digest({"x": a}) == digest({"x": b})


@pytest.fixture
def file(tmp_path):
    return tmp_path / "snapshot.safetensors"


def test_snapshot_is_read_back_as_it_was_written(file):
    write_snapshot(file, TENSORS, DOCUMENT)
    tensors, document = read_snapshot(file)
    assert document == DOCUMENT
    assert tensors.keys() == TENSORS.keys()
    for name in TENSORS:
        same_bits(tensors[name], TENSORS[name])


def test_only_the_snapshot_is_left_in_the_folder(file):
    write_snapshot(file, TENSORS, DOCUMENT)
    assert [p.name for p in file.parent.iterdir()] == [file.name]


def test_snapshot_without_tensors_is_read_back(file):
    write_snapshot(file, {}, {"empty": True})
    assert read_snapshot(file) == ({}, {"empty": True})


def test_one_tensor_under_several_names_is_stored_once(file):
    big = torch.arange(10_000.0)
    write_snapshot(file, {"a": big}, {})
    once = file.stat().st_size
    write_snapshot(file, {"a": big, "b": big, "c": big}, {})
    assert file.stat().st_size < once + 1000
    tensors, _ = read_snapshot(file)
    assert tensors.keys() == {"a", "b", "c"}
    for name in "abc":
        same_bits(tensors[name], big)


def test_equal_tensors_that_are_not_one_stay_apart(file):
    write_snapshot(file, {"a": torch.ones(3), "b": torch.ones(3)}, {})
    tensors, _ = read_snapshot(file)
    tensors["a"].add_(1)
    assert tensors["b"].tolist() == [1.0, 1.0, 1.0]


def test_views_into_one_tensor_are_read_back(file):
    whole = torch.arange(6.0)
    write_snapshot(file, {"whole": whole, "head": whole[:2], "tail": whole[4:], "every": whole[::2]}, {})
    tensors, _ = read_snapshot(file)
    assert {name: t.tolist() for name, t in tensors.items()} == {
        "whole": [0, 1, 2, 3, 4, 5], "head": [0, 1], "tail": [4, 5], "every": [0, 2, 4],
    }  # fmt: skip


def test_one_memory_under_two_types_is_read_back(file):
    x = torch.tensor([1.0, 2.0])
    write_snapshot(file, {"a": x, "b": x.view(torch.int32)}, {})
    tensors, _ = read_snapshot(file)
    same_bits(tensors["a"], x)
    same_bits(tensors["b"], x.view(torch.int32))


def test_tensor_that_requires_a_gradient_is_written(file):
    write_snapshot(file, {"x": torch.ones(2, requires_grad=True)}, {})
    assert read_snapshot(file)[0]["x"].tolist() == [1.0, 1.0]


# -- a crash leaves the old file ----------------------------------------------------------------------


class Crash(Exception):
    pass


def crash(*_, **__):
    raise Crash


def crash_half_way(file, *_):
    file.write(b"half of a")
    raise Crash


@pytest.mark.parametrize(
    ("target", "name", "how"),
    [(snapshot, "write_over", crash_half_way), (os, "fsync", crash), (Path, "replace", crash)],
    ids=["while writing", "before it is on disk", "before it is in place"],
)
def test_a_crash_leaves_the_old_file(file, monkeypatch, target, name, how):
    write_snapshot(file, {"x": torch.ones(3)}, {"version": 1})
    with monkeypatch.context() as patch:
        patch.setattr(target, name, how)
        with pytest.raises(Crash):
            write_snapshot(file, {"x": torch.zeros(3)}, {"version": 2})
    tensors, document = read_snapshot(file)
    assert (tensors["x"].tolist(), document) == ([1.0, 1.0, 1.0], {"version": 1})
    write_snapshot(file, {"x": torch.zeros(3)}, {"version": 2})  # what was left behind is no obstacle
    assert read_snapshot(file)[1] == {"version": 2}


# -- damage -------------------------------------------------------------------------------------------


def one_sentence(error, file):
    text = str(error)
    assert str(file) in text
    assert "\n" not in text
    assert "--resume" in text
    assert error.exit_code == 3


def is_refused(file):
    with pytest.raises(RunError) as caught:
        read_snapshot(file)
    one_sentence(caught.value, file)
    return str(caught.value)


@pytest.fixture
def good(file):
    write_snapshot(file, {"x": torch.tensor([1.0, 2.0]), "y": torch.tensor([3])}, {"version": 1})
    return file.read_bytes()


def test_file_that_was_truncated_anywhere_is_refused(file, good):
    for length in [*range(0, len(good), 17), *range(len(good) - 20, len(good))]:
        file.write_bytes(good[:length])
        is_refused(file)


@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80])
def test_file_with_a_flipped_byte_anywhere_is_refused(file, good, flip):
    for place in range(len(good)):
        file.write_bytes(good[:place] + bytes([good[place] ^ flip]) + good[place + 1 :])
        is_refused(file)


def test_file_with_bytes_added_at_the_end_is_refused(file, good):
    file.write_bytes(good + b"\0" * 8)
    is_refused(file)


def test_a_flipped_byte_in_the_tensors_is_found_by_the_checksum(file, good):
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert "checksum" in is_refused(file)


def test_file_of_another_format_is_refused(file):
    save_file({"x": torch.ones(1)}, file, {"format": "tardigrad-snapshot-99"})
    assert "tardigrad-snapshot-99" in is_refused(file)


def test_a_model_file_is_not_a_snapshot(file):
    save_file({"x": torch.ones(1)}, file)
    assert "is not a tardigrad-snapshot-1 file" in is_refused(file)


def test_file_without_a_checksum_is_refused(file):
    save_file({"x": torch.ones(1)}, file, {"format": "tardigrad-snapshot-1"})
    is_refused(file)


@pytest.mark.parametrize("content", [b"", b"hello\n", b"# a text file\n" * 100, bytes(range(256)) * 10])
def test_file_that_is_not_a_safetensors_file_is_refused(file, content):
    file.write_bytes(content)
    is_refused(file)


def test_folder_in_place_of_a_file_is_refused(file):
    file.mkdir()
    is_refused(file)


def test_a_missing_file_is_named(file):
    with pytest.raises(RunError, match="no such snapshot") as caught:
        read_snapshot(file)
    assert str(file) in str(caught.value)


# -- the digest ---------------------------------------------------------------------------------------


def test_digest_depends_on_names_shapes_types_and_bits():
    x = torch.zeros(4)
    different = [
        {"x": x},
        {"y": x},
        {"x": x.view(2, 2)},
        {"x": x.to(torch.int32)},
        {"x": -x},
        {"x": x, "y": x},
        {},
    ]
    assert len({digest(tensors) for tensors in different}) == len(different)
    assert digest({"a": x, "b": x + 1}) == digest({"b": x + 1, "a": x})
    assert digest({"x": x[::2]}) == digest({"x": x[::2].clone()})
