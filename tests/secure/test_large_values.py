"""The large values of a helper."""

import os

import pytest

from tardigrad.secure.large_values import ZEROS, LargeValues


@pytest.fixture
def values(tmp_path):
    return LargeValues(tmp_path / "values")


def test_value_is_replaced_by_one_of_the_same_number(values):
    values.store("step", 1, b"longer than the next")
    values.store("step", 1, b"next")
    assert values.load("step", 1) == b"next"


def test_only_other_numbers_of_the_same_name_are_deleted(values, tmp_path):
    for name in ("step", "noise"):
        for number in (1, 2, 12):
            values.store(name, number, f"{name} {number}".encode())
    values.keep("step", 2)
    assert [values.load("step", number) for number in (1, 2, 12)] == [b"", b"step 2", b""]
    assert values.load("noise", 12) == b"noise 12"


@pytest.mark.parametrize("size", [0, 5, len(ZEROS), len(ZEROS) + 7])
def test_secret_value_is_overwritten_before_it_is_deleted(values, tmp_path, size):
    values.store("noise", 1, b"x" * size)
    os.link(tmp_path / "values" / "noise-1.bin", tmp_path / "seen")  # the same bytes on the disk
    values.keep("noise", 2, secret=True)
    assert (tmp_path / "seen").read_bytes() == bytes(size)
    assert list((tmp_path / "values").iterdir()) == []


def test_others_cannot_read_values(values, tmp_path):
    values.store("noise", 1, b"x")
    assert (tmp_path / "values").stat().st_mode & 0o077 == 0
    assert (tmp_path / "values" / "noise-1.bin").stat().st_mode & 0o077 == 0
