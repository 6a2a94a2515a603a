"""The keys of noise: one for each step, on disk before its use, destroyed when it is no longer needed."""

import os
import stat

import pytest
import torch

from tardigrad.errors import RunError
from tardigrad.privacy.keys import NoiseKeys


@pytest.fixture
def file(tmp_path):
    return tmp_path / "noise.keys"


def test_each_number_keeps_a_key_of_its_own(file):
    keys = NoiseKeys(file)
    drawn = [keys[number] for number in range(5)]
    assert len(set(drawn)) == 5
    assert all(len(key) == 32 for key in drawn)
    again = NoiseKeys(file)
    assert [again[number] for number in range(5)] == drawn
    assert torch.equal(again.normals(3)(100), keys.normals(3)(100))
    assert not torch.equal(again.normals(3)(100), again.normals(4)(100))
    assert NoiseKeys()[0] not in drawn


def test_only_the_owner_can_read_the_keys(file):
    old = os.umask(0)
    try:
        keys = NoiseKeys(file)
        keys[1], keys[2]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        later = NoiseKeys(file)
        later[1]
        later.forget()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    finally:
        os.umask(old)


def test_key_is_on_disk_before_it_is_returned(file):
    keys = NoiseKeys(file)
    for number in (7, 3):
        assert keys[number].hex() in file.read_text()


def test_forgotten_keys_are_destroyed(file):
    keys = NoiseKeys(file)
    first = keys[1]
    keys.forget()
    assert not file.exists()
    assert keys[1] != first, "never asked for again: the step is in the snapshot"
    keys.forget()
    keys.forget()
    assert not list(file.parent.iterdir())


def test_keys_of_an_earlier_process_are_kept_until_requested(file):
    dead = NoiseKeys(file)
    drawn = {number: dead[number] for number in range(5, 10)}
    second = NoiseKeys(file)
    assert [second[5], second[6]] == [drawn[5], drawn[6]]
    second.forget()  # a snapshot after step 6
    assert drawn[6].hex() not in file.read_text()
    third = NoiseKeys(file)  # the second died, too
    assert [third[number] for number in (7, 8, 9)] == [drawn[7], drawn[8], drawn[9]]
    assert second[7] == drawn[7]
    third.forget()
    assert not file.exists()


def test_incomplete_last_line_is_ignored(file):
    keys = NoiseKeys(file)
    first = keys[1]
    with file.open("ab") as more:
        more.write(b"2 0123")
    second = NoiseKeys(file)
    assert file.read_bytes().endswith(b"2 0123"), "who only reads changes nothing"
    assert second[1] == first
    own = second[2]
    third = NoiseKeys(file)
    assert (third[1], third[2]) == (first, own)


KEY = "ab" * 32


@pytest.mark.parametrize(
    "text",
    ["1 nothing", "1", f"one {KEY}", f"1 {KEY} 2", f"1 {KEY[:-2]}", f"1 {KEY}ab", f"2 {KEY}\n\n3 {KEY}",
     f"1 {KEY}\n1 {'cd' * 32}", "\xff\xfe"],
)  # fmt: skip
def test_a_damaged_file_is_refused(file, text):
    file.write_bytes(text.encode("latin-1") + b"\n")
    with pytest.raises(RunError, match=r"noise\.keys is damaged.* noise twice .*Start a new run"):
        NoiseKeys(file)
