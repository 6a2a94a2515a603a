"""A helper or a server that was put back from a backup, and folders that are not the right ones."""

import shutil

import pytest
from secure_world import World, closing, refused

from tardigrad.errors import ConfigError, RunError
from tardigrad.secure.helper_refusals import RefusalKind


def test_greeting_notices_a_side_that_was_put_back(world, state):
    receipts = [state.receipt.receipt]
    for version in range(3):
        receipts.append(world.round([state], version)[2][0].receipt)
    hashes = [bytes.fromhex(one.hash) for one in receipts]
    state.greet("run-1", hashes[3], 3)
    state.greet("run-1", hashes[2], 2)  # the server was killed before it stored the last
    for receipt, version, who in (
        (hashes[1], 1, "server"), (b"", 0, "server"), (hashes[2], 3, "server"), (hashes[3], 4, "helper"),
        (bytes(32), 3, "server"),
    ):  # fmt: skip
        refused(RefusalKind.HISTORY, f"the {who} was put back", state.greet, "run-1", receipt, version)
    refused(RefusalKind.HISTORY, "not in run-2", state.greet, "run-2", b"", 0)


def test_helper_without_its_folder_is_noticed(world, tmp_path):
    with world.reopened(tmp_path / "helper") as state:
        refused(RefusalKind.HISTORY, "knows of no run", state.greet, "run-1", bytes(32), 5)


def test_folder_that_was_copied_or_put_back_is_refused(world, tmp_path):
    with world.open(tmp_path / "helper") as state:
        world.round([state], 0)
    shutil.copytree(tmp_path / "helper", tmp_path / "copy")
    with pytest.raises(ConfigError, match="copied or put back from a backup"):
        world.reopened(tmp_path / "copy")
    with world.reopened(tmp_path / "copy", moved=True) as state:  # the operator knows better
        assert state.receipt.receipt.version == 1


@pytest.mark.parametrize("part", ["helper.db", "releases.log"])
def test_part_of_a_folder_that_was_put_back_is_noticed(world, tmp_path, part):
    with world.open(tmp_path / "helper") as state:
        world.round([state], 0)
    file = tmp_path / "helper" / part
    before = file.read_bytes()
    with world.reopened(tmp_path / "helper") as state:
        world.round([state], 1)
        state.close(*closing(world, 3, world.filled([state], 2)))
    file.write_bytes(before)  # in place: the file stays the same one
    with pytest.raises(ConfigError, match="part of the folder was put back"):
        world.reopened(tmp_path / "helper")


def test_folder_is_opened_once(world, state, tmp_path):
    with pytest.raises(ConfigError, match="somebody else is running it"):
        world.reopened(tmp_path / "helper")


def test_folder_of_another_server_or_helper_is_refused(world, tmp_path):
    with world.open(tmp_path / "helper"):
        pass
    other = World()
    with pytest.raises(ConfigError, match="give the same --keys and --server"):
        other.reopened(tmp_path / "helper")


def test_damaged_database_is_refused(world, tmp_path):
    (tmp_path / "helper").mkdir()
    (tmp_path / "helper" / "helper.db").write_bytes(b"no database" * 1000)
    with pytest.raises(RunError, match=r"helper\.db is damaged"):
        world.reopened(tmp_path / "helper")
