"""Atomic writes: a reader finds the old text or the new one, whatever happens in between."""

import os
from pathlib import Path

import pytest

from tardigrad.core.files import partial_of, replace, sync_folder, write_text


class Crash(Exception):
    pass


def crash(*_, **__):
    raise Crash


@pytest.fixture
def file(tmp_path):
    return tmp_path / "summary.json"


def test_text_is_written_and_nothing_else_is_left_in_the_folder(file):
    write_text(file, "one\n")
    write_text(file, "two, \u00fc\n")
    assert file.read_bytes() == "two, \u00fc\n".encode()
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(
    ("target", "name"),
    [(Path, "write_text"), (os, "fsync"), (Path, "replace")],
    ids=["while writing", "before it is on disk", "before it is in place"],
)
def test_crash_leaves_the_old_text(file, monkeypatch, target, name):
    write_text(file, "old")
    with monkeypatch.context() as patch:
        patch.setattr(target, name, crash)
        with pytest.raises(Crash):
            write_text(file, "new")
    assert file.read_text() == "old"
    write_text(file, "new")  # the partial file that was left is overwritten
    assert file.read_text() == "new"


def test_file_and_folder_are_synced_around_the_renaming(file, monkeypatch):
    calls = []
    fsync, rename = os.fsync, Path.replace

    def noted_fsync(descriptor):
        calls.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def noted_rename(self, target):
        calls.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_rename)
    partial_of(file).write_text("text")
    replace(partial_of(file), file)
    assert calls == ["summary.json.partial", "rename", file.parent.name]


def test_folder_that_does_not_exist_cannot_be_synced(tmp_path):
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "missing")
