"""Runs on a real SuperLink with real SuperNodes, on loopback."""

import itertools
import json
import sys

import pytest

pytest.importorskip("flwr")

from flower_harness import EXAMPLES, Federation, make_app, wait_for
from flwr.app import ArrayRecord, ConfigRecord

from tardigrad.core.event_log import read_events
from tardigrad.core.events import TripGivenUp, UploadReceived
from tardigrad.core.snapshot import read_snapshot
from tardigrad.flower import replay


@pytest.fixture
def federation(tmp_path):
    with Federation(tmp_path) as federation:
        yield federation


def trips_so_far(out):
    file = out / "snapshot.safetensors"
    return read_snapshot(file, "")[1]["engine"]["trips"] if file.exists() else 0


def test_killed_nodes_and_a_killed_server_app_do_not_end_a_run_and_it_can_be_replayed(federation, tmp_path):
    out, app = tmp_path / "out", make_app(tmp_path / "app")
    for number in range(3):
        federation.add_node(number, of=3, slow=4.0 if number == 2 else 0.0)
    federation.run(app, out=str(out), trips=9, nodes=3)
    wait_for(lambda: trips_so_far(out) >= 2, "the first uploads")
    federation.kill_server_app()
    before = trips_so_far(out)
    federation.run(app, out=str(out), trips=9, nodes=3)
    wait_for(lambda: trips_so_far(out) > before, "the next uploads")
    federation.kill(federation.nodes[1])
    wait_for((out / "summary.json").exists, "the end of the run")
    events = list(read_events(out / "events.jsonl"))
    uploads = [event for event in events if isinstance(event, UploadReceived)]
    assert len(uploads) == 9, federation.said()
    assert any(isinstance(event, TripGivenUp) for event in events)

    sys.path.insert(0, str(EXAMPLES / "asynchronous"))
    try:
        from digits_app.client_app import app as client_app
        from digits_app.task import make_model
    finally:
        sys.path.pop(0)
    names = sorted({str(upload.client) for upload in uploads})
    summary = json.loads((out / "summary.json").read_text())
    assert len(names) == 3
    digests = set()
    for order in itertools.permutations(range(3)):  # which node had which part of the data, nobody says
        nodes = {name: {"partition-id": part, "num-partitions": 3} for name, part in zip(names, order)}
        arrays, told = ArrayRecord(make_model().state_dict()), ConfigRecord({"lr": 0.1})
        result = replay(out, client_app, arrays, nodes, run_config={"local-epochs": 1}, train_config=told)
        digests.add(result.model_sha256)
    assert len(digests) == 6
    assert summary["model_sha256"] in digests
