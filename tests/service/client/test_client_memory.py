"""A client's memory on disk."""

import sys
from pathlib import Path

import pytest
import torch

from tardigrad.core.snapshot import write_snapshot
from tardigrad.core.upload import Upload
from tardigrad.errors import ConfigError, RunError
from tardigrad.service.client.client_memory import ClientMemory, TrainedUpload


def test_files_of_others_in_a_clients_folder_are_left_alone(tmp_path):
    memory = ClientMemory(tmp_path)
    for trip in (10, 9):
        memory.keep(TrainedUpload(trip, 0, Upload({"delta": torch.ones(2)}, 1, 1, 0.5), {}, {}, 0))
    for name in ("abc", "", "-1", "007", "9 (copy)"):
        (tmp_path / f"pending-{name}.safetensors").write_text("not ours")
    assert [finished.trip for finished in memory.pending()] == [9, 10]
    assert (tmp_path / "pending-abc.safetensors").exists()
    write_snapshot(tmp_path / "pending-11.safetensors", {}, {"trip": 11})
    with pytest.raises(RunError, match=r"pending-11\.safetensors: is not a trip"):
        memory.pending()


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        ClientMemory(tmp_path / "file" / "state")
    assert str(caught.value) == (
        f"--state {tmp_path}/file/state: cannot be used (Not a directory); give a folder of your own"
    )


def test_next_trip_is_written_over_the_last_whose_seeds_are_gone(tmp_path):
    memory, seeds = ClientMemory(tmp_path), (bytes(range(32)),)
    for trip, size in ((0, 50), (1, 5), (2, 500)):
        upload = Upload({"delta": torch.full((size,), float(trip))}, 1, 1, 0.5)
        memory.keep(TrainedUpload(trip, 0, upload, {}, {}, 0, seeds=seeds))
        (found,) = memory.pending()
        assert (found.trip, found.seeds) == (trip, seeds)
        assert torch.equal(found.upload.vectors["delta"], upload.vectors["delta"])
        memory.drop(trip)
        memory.drop(trip)  # a second time does nothing
        assert [file.name for file in tmp_path.iterdir()] == ["spare"]
        assert seeds[0].hex().encode() not in (tmp_path / "spare").read_bytes()
    assert memory.pending() == []


@pytest.mark.parametrize("moment", ["replace", "open"])
def test_client_that_is_killed_while_it_drops_a_trip_goes_on(tmp_path, monkeypatch, moment):
    memory = ClientMemory(tmp_path)
    for trip in (0, 1):
        upload = Upload({"delta": torch.full((50,), float(trip))}, 1, 1, 0.5)
        memory.keep(TrainedUpload(trip, 0, upload, {}, {}, 0))
        with monkeypatch.context() as patch:
            patch.setattr(Path, moment, lambda *_, **__: sys.exit())
            with pytest.raises(SystemExit):
                memory.drop(trip)
        for found in ClientMemory(tmp_path).pending():  # whole, if it is still there
            assert torch.equal(found.upload.vectors["delta"], torch.full((50,), float(found.trip)))
            memory.drop(found.trip)
    assert ClientMemory(tmp_path).pending() == []


def test_trip_that_was_read_stays_as_it_was_when_its_file_is_written_over(tmp_path):
    upload, other = (Upload({"delta": torch.full((50,), value)}, 1, 1, 0.5) for value in (1.0, 2.0))
    memory = ClientMemory(tmp_path)
    memory.keep(TrainedUpload(0, 0, upload, {"h": torch.full((50,), 3.0)}, {}, 0))
    (found,) = memory.pending()
    memory.commit(found)
    memory.keep(TrainedUpload(1, 0, other, {}, {}, 0))
    assert torch.equal(found.upload.vectors["delta"], upload.vectors["delta"])
    assert torch.equal(memory.memory["h"], torch.full((50,), 3.0))
