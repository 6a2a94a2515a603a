"""idx files: a file that is truncated, damaged or of another format is named."""

import gzip

import numpy as np
import pytest

from data_files import (
    idx_bytes,
)
from tardigrad.data import idx
from tardigrad.data.idx import read_idx
from tardigrad.errors import ConfigError

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
def test_error_for_a_malformed_idx_file_names_it(tmp_path, monkeypatch, content, says, packed, writable):
    monkeypatch.setattr(idx.os, "access", lambda *_: writable)
    file = tmp_path / ("images.gz" if packed else "images")
    file.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(ConfigError, match=rf"{file.name}: .*{says}"):
        read_idx(file, 3)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("damage", [lambda c: c[:-9], lambda c: c[: len(c) // 2], lambda c: b"no gzip", None])
def test_error_for_a_damaged_gzip_file_names_it(tmp_path, monkeypatch, damage, writable):
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
