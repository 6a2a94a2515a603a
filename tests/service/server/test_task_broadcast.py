"""Versions as clients download them."""

import torch

import tardigrad as td
from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.core.situation import Situation
from tardigrad.service.protocol.wire import CHUNK, packed
from tardigrad.service.server.model_state import ModelState
from tardigrad.service.server.task_broadcast import Broadcast
from tardigrad.service.store.sqlite import SqliteStore

VECTORS = {
    "model": torch.randn(CHUNK // 2, generator=torch.Generator().manual_seed(2)),
    "short": torch.ones(3),
}


def test_a_download_goes_on_while_its_version_is_moved_to_a_file(tmp_path):
    store = SqliteStore(tmp_path)
    broadcast = Broadcast(dict(VECTORS))
    download = broadcast.chunks()
    found = [next(download)]
    broadcast.move_to(store.temporary())
    assert not broadcast.in_memory
    found += download
    assert [len(chunk) for chunk in found] == [CHUNK, CHUNK, 12]
    assert b"".join(found) == b"".join(broadcast.chunks()) == packed(VECTORS).tobytes()
    assert all(torch.equal(broadcast.vectors[name], vector) for name, vector in VECTORS.items())
    broadcast.rest()
    assert b"".join(broadcast.chunks()) == packed(VECTORS).tobytes()
    assert list((tmp_path / "uploads").iterdir()) == []  # it has no name, so that a crash leaves nothing
    store.close()


def test_a_version_shares_the_tensors_of_the_model():
    aggregator = Aggregator(td.FedBuff(), torch.zeros(10), Situation(2, 2))
    state = ModelState(aggregator, None, None, tell_losses=False, keep_finite=False)
    assert state.broadcasts[0].vectors["model"].data_ptr() == aggregator.state["model"].data_ptr()
    state.close()
