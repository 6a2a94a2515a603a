"""Simulations with a ClientApp: weights by examples, and the order of a recorded run."""

import json

import numpy as np
import pytest

pytest.importorskip("flwr")

from direct_grid import DirectGrid
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import tardigrad as td
from tardigrad.core.events import ModelMoved, UploadReceived
from tardigrad.errors import ConfigError
from tardigrad.flower import AsyncStrategy, replay, simulate
from tardigrad.flower.app_trainer import _examples, _script

START = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
NODES = [{"partition-id": part} for part in range(3)]
app = ClientApp()


@app.train()
def train(message, context):
    """Go a third of the way to the number of the node."""
    part = context.node_config["partition-id"]
    w = message.content["arrays"]["w"].numpy()
    arrays = ArrayRecord({"w": Array(w + (part - w) / np.float32(3))})
    metrics = MetricRecord({"num-examples": 5 + 7 * part})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def config(**keywords):
    return td.Config(**{"buffer": {"size": 2, "weights": "examples"}, "stop": {"steps": 7}} | keywords)


def test_a_replay_weighs_by_the_examples_that_the_run_had(tmp_path):
    strategy = AsyncStrategy(config(), out=tmp_path / "run", fraction_evaluate=0.0)
    strategy.start(DirectGrid(app, (1, 2, 7)), START)
    again = replay(tmp_path / "run", app, START, dict(zip(("11", "12", "13"), NODES)))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert again.model_sha256 == summary["model_sha256"]


def test_a_simulation_with_weights_needs_the_numbers_of_examples():
    with pytest.raises(ConfigError, match="examples: nodes weigh by them"):
        simulate(config(), app, START, NODES)
    plain = config(
        algorithm="fedavg", pace={"kind": "synchronous", "cohort": 3}, buffer={"weights": "examples"},
        stop={"steps": 1},
    )  # fmt: skip
    result = simulate(plain, app, START, NODES, examples=[5, 12, 19])
    assert result.model["w"].tolist() == pytest.approx(3 * [(12 * 1 + 19 * 2) / 36 / 3])


def upload(trip, client, time, start_version):
    return UploadReceived(trip, client, 0.0, time, start_version, 0, 0, 1.0, True, None, 1)


def test_arrivals_of_one_moment_are_replayed_in_the_order_of_the_log():
    events = [
        upload(1, "bob", 5.0, 0),
        upload(0, "ann", 5.0, 0),
        ModelMoved(1, 2, 5.0, 0),
        upload(4, "ann", 6.0, 1),
        upload(2, "bob", 6.0, 0),
    ]
    uploads, trips = _script(events)
    assert [one.trip for one in uploads] == [0, 1, 2, 4]
    assert [int(start) for start, _ in trips] == [0, 0, 1, 2]
    assert [end for _, end in trips] == [2.0, 1.0, 4.0, 3.0]
    assert len({start for start, _ in trips}) == 4


def test_uploads_that_weigh_nothing_do_not_say_how_many_examples_a_node_has():
    def late(client, staleness, weight):
        return UploadReceived(0, client, 0.0, 1.0, 0, staleness, staleness, weight, True, None, 1)

    gated = config(algorithm={"kind": "cgad", "staleness": {"cutoff": 2}})
    assert _examples(gated, [late("ann", 0, 5.0), late("ann", 2, 0.0)], ["ann", "bob"]) == [5, 1]
    with pytest.raises(ConfigError, match="all uploads of node bob were so late"):
        _examples(gated, [late("ann", 0, 5.0), late("bob", 3, 0.0)], ["ann", "bob"])


def test_simulated_nodes_may_be_adversaries():
    plain = config(buffer={"size": 3}, pace={"kind": "synchronous", "cohort": 3}, algorithm="fedavg")
    honest = simulate(plain.model_copy(update={"stop": td.Stop(steps=1)}), app, START, NODES)
    all_lie = {"adversaries": td.SignFlip(share=1.0), "stop": td.Stop(steps=1)}
    flipped = simulate(plain.model_copy(update=all_lie), app, START, NODES)
    assert flipped.model["w"].tolist() == pytest.approx([-x for x in honest.model["w"].tolist()])
