"""A private run keeps neither the losses of clients nor metrics that were not requested."""

import dataclasses
import json

import pytest
import torch

import tardigrad as td
from observers import InterruptAfter
from tardigrad.core.download_sizes import DownloadSizes
from tardigrad.core.event_log import to_record
from tardigrad.core.snapshot import read_snapshot
from tardigrad.core.upload import Upload
from tardigrad.experiments.runs.server_assembly import build_server
from tardigrad.privacy.settings import LocalPrivacy, Participation
from tardigrad.service.protocol.wire import layout_of, size_of
from tardigrad.service.server.model_state import ModelState
from tardigrad.service.server.run_state import RunState
from tardigrad.service.store.contract import JournalEntry

CENTRAL = Participation(noise_multiplier=1.0, participations=8, separation=3)
LOSS, EXAMPLES, STEPS, ACCURACY = 0.123456789, 717171, 535353, 0.987654321


def parts(privacy):
    generator = torch.Generator().manual_seed(1)
    y = torch.tensor([0, 1, 0, 1])
    clients = {i: (torch.randn(4, 3, generator=generator), y) for i in range(30)}
    torch.manual_seed(0)
    config = td.Config(
        privacy=privacy, stop=td.Stop(steps=24), buffer=td.Buffer(size=7), pace=td.Asynchronous(concurrency=7)
    )
    return {"config": config, "model": torch.nn.Linear(3, 2), "clients": clients, "test": clients[0]}


@pytest.mark.parametrize("privacy", [CENTRAL, LocalPrivacy(noise_multiplier=1.0, participations=24), None])
def test_the_snapshot_of_a_private_simulation_has_no_losses(privacy, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        td.run(**parts(privacy), out=tmp_path / "run", observers=(InterruptAfter(30),))
    _, document = read_snapshot(tmp_path / "run/snapshot.safetensors")
    assert document["engine"]["aggregator"]["buffers"][-1]["members"], "somebody is in the buffer"
    assert bool(document["engine"]["losses"]) == (privacy is None)
    assert td.run(**parts(privacy), out=tmp_path / "run", resume=True).steps == 24


class Nowhere:
    def record(self, events):
        pass


def served(privacy):
    config = td.Config(
        data={"kind": "synthetic", "clients": 30, "examples": 6}, model={"kind": "mlp", "hidden": [4]},
        privacy=privacy, stop=td.Stop(steps=8), buffer=td.Buffer(size=3), pace=td.Asynchronous(concurrency=5),
    )  # fmt: skip
    plan = build_server(config).plan
    plan = dataclasses.replace(plan, evaluate=None)  # a server without data of its own
    values = ModelState(
        plan.aggregator, Nowhere(), None, tell_losses=not plan.private, keep_finite=not plan.private
    )
    size = size_of(layout_of(plan.aggregator.broadcast()))
    return RunState(
        plan.book, plan.stop, plan.evaluation, DownloadSizes(size), size, centrally=plan.private
    ), values  # fmt: skip


@pytest.mark.parametrize("privacy", [CENTRAL, None])
def test_a_private_server_keeps_neither_losses_nor_offered_metrics(privacy):
    run_state, values = served(privacy)
    vector = values.aggregator.broadcast()["model"]
    for number in range(2):
        values.do(run_state.apply(JournalEntry("check_in", float(number), client=f"client {number}")), None)
    for trip in range(2):
        entry = JournalEntry(
            "deliver", 3.0, trip=trip, examples=EXAMPLES, steps=STEPS, loss=LOSS, evaluated=99,
            metrics=json.dumps({"accuracy": ACCURACY}),
        )  # fmt: skip
        upload = Upload({"delta": torch.zeros_like(vector)}, EXAMPLES, STEPS, LOSS)
        values.do(run_state.apply(entry), lambda upload=upload: upload)
    _, document = values.snapshot()
    kept = json.dumps([document, run_state.state(), [to_record(event) for event in run_state.last_reports()]])
    values.close()
    assert len(document["aggregator"]["buffers"][-1]["members"]) == 2
    for number in (LOSS, ACCURACY):
        assert (str(number) in kept) == (privacy is None)
    for number in (EXAMPLES, STEPS):
        assert str(number) not in kept
