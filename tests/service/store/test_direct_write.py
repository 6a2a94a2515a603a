"""Writing past the page cache: whole pages directly, the rest as usual, and everything as usual otherwise."""

import errno
import os

import numpy as np
import pytest

from tardigrad.service.protocol.wire import digest
from tardigrad.service.store import direct_write
from tardigrad.service.store.direct_write import PAGE, SMALLEST, page_aligned, write_direct
from tardigrad.service.store.sqlite import SqliteStore

SIZE = 3 * SMALLEST + 5


@pytest.fixture
def payload():
    made = page_aligned(SIZE)
    made[:] = np.random.default_rng(5).integers(0, 256, SIZE, np.uint8)
    return made


@pytest.fixture
def descriptor(tmp_path):
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def test_whole_pages_are_written_directly_if_the_file_system_can(payload, descriptor):
    flags = direct_write.fcntl.fcntl(descriptor, direct_write.fcntl.F_GETFL)
    written = write_direct(descriptor, payload)
    assert written in (0, SIZE // PAGE * PAGE)
    assert os.pread(descriptor, SIZE, 0) == payload[:written].tobytes()
    assert direct_write.fcntl.fcntl(descriptor, direct_write.fcntl.F_GETFL) == flags


def test_payloads_that_are_small_or_begin_elsewhere_are_not_written_directly(payload, descriptor):
    assert write_direct(descriptor, payload[:1000]) == 0
    assert write_direct(descriptor, payload[8:]) == 0
    assert os.fstat(descriptor).st_size == 0


@pytest.mark.parametrize("after", [0, 1])
def test_a_file_system_without_direct_writes_gets_ordinary_ones(after, payload, tmp_path, monkeypatch):
    """It says so at once, or after some pages."""
    write, calls = os.pwrite, []

    def partly(descriptor, data, offset):
        calls.append(offset)
        if len(calls) > after:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return write(descriptor, data[:PAGE], offset)

    monkeypatch.setattr(direct_write.os, "pwrite", partly)
    store = SqliteStore(tmp_path)
    name = store.write(1, payload)
    assert (store.read(name, SIZE, digest(payload)) == payload).all()
    assert len(calls) <= after + 1
    store.close()


def test_a_longer_file_is_overwritten_and_cut(payload, tmp_path):
    store = SqliteStore(tmp_path)
    store.recycle([store.write(1, payload)])
    shorter = payload[: 2 * SMALLEST + 7]
    name = store.write(2, shorter)
    assert (tmp_path / "uploads" / name).stat().st_size == len(shorter)
    assert (store.read(name, len(shorter), digest(shorter)) == shorter).all()
    store.close()


def test_a_full_disk_is_an_error(payload, descriptor, monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(direct_write.fcntl, "fcntl", lambda *given: 0)  # whatever file system this is
    monkeypatch.setattr(direct_write.os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        write_direct(descriptor, payload)
