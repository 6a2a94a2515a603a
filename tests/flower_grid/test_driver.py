"""The driver of a Flower grid, with nodes in this process."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from local_nodes import START, LocalNodes, grid_run, pulled, run_nodes

import tardigrad as td
from tardigrad.core.event_log import read_events
from tardigrad.core.events import ModelEvaluated, ModelMoved, TripGivenUp, UploadReceived
from tardigrad.errors import RunError
from tardigrad.experiments.runs.drive import Drive
from tardigrad.experiments.runs.run_folder import RunFolder
from tardigrad.flower_grid.carrier import Reply

SLOW = {1: 1.0, 2: 1.3, 3: 10.0}


def config(**keywords):
    return td.Config(**{"buffer": {"size": 2}, "stop": {"steps": 6}} | keywords)


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


def flat(arrays):
    return np.concatenate([np.asarray(array, np.float64).reshape(-1) for array in arrays.values()])


def test_fedbuff_is_the_formula_of_the_paper_over_the_recorded_arrivals():
    result, events = run_nodes(
        config(algorithm={"kind": "fedbuff", "lr": 0.7}, stop={"steps": 14}), LocalNodes(SLOW)
    )
    model, versions, buffer = flat(START), [flat(START)], []
    for upload in of(UploadReceived, events):
        start = versions[upload.start_version]
        buffer.append((1 + upload.staleness) ** -0.5 * (start - (start + (int(upload.client) - start) / 10)))
        if len(buffer) == 2:
            model, buffer = model - 0.7 * sum(buffer) / 2, []
            versions.append(model)
    assert result.steps == 14
    assert max(upload.staleness for upload in of(UploadReceived, events)) >= 3
    assert np.allclose(flat({n: t.numpy() for n, t in result.model.items()}), model, atol=1e-6)


def test_nobody_waits_for_the_slow_node():
    _, events = run_nodes(config(), LocalNodes(SLOW))
    assert [upload.client for upload in of(UploadReceived, events)][:6] == ["1", "2", "1", "2", "1", "2"]


def test_a_node_has_one_message_at_a_time():
    nodes = LocalNodes(SLOW)
    run_nodes(config(stop={"steps": 14}), nodes)
    assert sum(order.node == 3 for order in nodes.orders) == 2


def test_rounds_are_counted_as_flower_counts_them():
    nodes = LocalNodes(SLOW)
    run_nodes(config(algorithm="fedavg", pace={"kind": "synchronous", "cohort": 3}, buffer={}), nodes)
    assert [order.config["server-round"] for order in nodes.orders] == [r for r in range(1, 7) for _ in "123"]


def test_fedasync_takes_the_models_of_nodes():
    result, events = run_nodes(config(algorithm="fedasync", buffer={}, stop={"trips": 1}), LocalNodes(SLOW))
    (upload,) = of(UploadReceived, events)
    expected = flat(START) * 0.4 + 0.6 * (flat(START) + (int(upload.client) - flat(START)) / 10)
    assert np.allclose(flat({n: t.numpy() for n, t in result.model.items()}), expected, atol=1e-6)


def test_ca2fl_keeps_the_last_delta_of_each_node_on_the_server():
    result, events = run_nodes(config(algorithm="ca2fl", stop={"steps": 3}), LocalNodes(SLOW))
    model, versions, cached, buffer, mean = flat(START), [flat(START)], {}, [], 0.0
    for upload in of(UploadReceived, events):
        start = versions[upload.start_version]
        delta = -(int(upload.client) - start) / 10
        buffer.append(delta - cached.get(upload.client, 0.0))
        cached[upload.client] = delta
        if len(buffer) == 2:
            model = model - (mean + sum(buffer) / 2)
            mean, buffer = mean + sum(buffer) / 3, []
            versions.append(model)
    assert np.allclose(flat({n: t.numpy() for n, t in result.model.items()}), model, atol=1e-6)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda reply: replace(reply, error="ValueError: no data"), "ValueError: no data"),
        (lambda reply: replace(reply, arrays={}), "'w' and 'b' missing"),
        (lambda reply: replace(reply, arrays={**reply.arrays, "c": np.ones(1)}), "'c' unknown"),
        (lambda reply: replace(reply, arrays={**reply.arrays, "w": np.ones((2, 1))}), "the shape (2, 1)"),
        (lambda reply: replace(reply, arrays={**reply.arrays, "b": np.array(np.nan)}), "not finite"),
        (lambda reply: replace(reply, arrays={**reply.arrays, "b": np.array("x")}), "and not numbers"),
        (lambda reply: replace(reply, metrics={"num-examples": 0.5}), "'num-examples' is 0.5"),
    ],
)
def test_a_bad_reply_is_one_sentence_in_the_log_and_the_others_go_on(spoil, said, caplog):
    def train(order):
        return spoil(pulled(order)) if order.node == 2 else pulled(order)

    with caplog.at_level(logging.WARNING, logger="flwr.tardigrad"):
        result, events = run_nodes(config(), LocalNodes(SLOW, train))
    assert result.steps == 6
    assert {upload.client for upload in of(UploadReceived, events)} <= {"1", "3"}
    assert {given.client for given in of(TripGivenUp, events)} == {"2"}
    assert all(said in record.getMessage() for record in caplog.records)


def test_a_run_fails_when_every_trip_does():
    with pytest.raises(RunError, match=r"15 trips have failed one after the other.*no data"):
        run_nodes(config(), LocalNodes(SLOW, lambda order: Reply("", error="no data")))


def test_a_node_that_goes_does_not_stop_the_run(caplog):
    nodes = LocalNodes(SLOW)

    def train(order):
        if len(nodes.orders) > 6:
            nodes.seconds.pop(3, None)
        return pulled(order)

    nodes.train = train
    with caplog.at_level(logging.WARNING, logger="flwr.tardigrad"):
        result, events = run_nodes(config(), nodes)
    assert result.steps == 6
    assert [given.client for given in of(TripGivenUp, events)] == ["3"]
    assert "it has gone" in caplog.text


def test_a_node_that_comes_later_takes_part():
    nodes = LocalNodes({1: 1.0, 2: 1.3})

    def train(order):
        if len(nodes.orders) > 4:
            nodes.seconds[7] = 0.5
        return pulled(order)

    nodes.train = train
    many = config(service={"population": 5}, pace={"kind": "asynchronous", "concurrency": 3})
    _, events = run_nodes(many, nodes)
    assert "7" in {upload.client for upload in of(UploadReceived, events)}


def test_a_silent_node_is_given_up_after_the_ticket_time():
    nodes = LocalNodes(SLOW, lambda order: None if order.node == 3 else pulled(order))
    _, events = run_nodes(config(stop={"steps": 20}), nodes, ticket_seconds=5.0)
    given = of(TripGivenUp, events)
    assert {one.client for one in given} == {"3"}
    assert 5.0 <= given[0].time - given[0].start_time < 7.0


def test_weights_by_examples_need_them(caplog):
    def train(order):
        return replace(pulled(order), metrics={})

    with pytest.raises(RunError, match="'num-examples' is nan"):
        run_nodes(config(buffer={"size": 2, "weights": "examples"}), LocalNodes(SLOW, train))


def test_examples_weigh():
    result, events = run_nodes(
        config(buffer={"size": 3, "weights": "examples"}, stop={"steps": 1}),
        LocalNodes({1: 1.0, 2: 1.1, 3: 1.2}),
    )
    ends = [flat(START) + (n - flat(START)) / 10 for n in (1, 2, 3)]
    expected = sum(n * end for n, end in zip((1, 2, 3), ends)) / 6
    assert [upload.weight for upload in of(UploadReceived, events)] == [1.0, 2.0, 3.0]
    assert np.allclose(flat({n: t.numpy() for n, t in result.model.items()}), expected, atol=1e-6)


def test_statistics_are_averaged_and_integers_stay():
    arrays = START | {
        "norm.running_mean": np.array([4.0, 8.0], np.float32),
        "norm.num_batches_tracked": np.array(3),
    }
    momentum = {"kind": "fedbuff", "momentum": {"kind": "ema"}}
    result, events = run_nodes(config(algorithm=momentum, stop={"steps": 1}), LocalNodes(SLOW), arrays=arrays)
    assert [upload.client for upload in of(UploadReceived, events)] == ["1", "2"]
    own = torch.tensor([4.0, 8.0])
    mean = (own + (1 - own) / 10 + own + (2 - own) / 10) / 2
    assert torch.allclose(result.model["norm.running_mean"], mean)
    assert result.model["norm.num_batches_tracked"] == 3
    assert list(result.model) == list(arrays)


def test_nodes_evaluate_when_they_are_free():
    def evaluate(order):
        return Reply("", metrics={"accuracy": order.node / 10, "num-examples": order.node})

    nodes = LocalNodes({1: 1.0, 2: 1.3, 3: 1.7}, evaluate=evaluate)
    _, events = run_nodes(config(evaluation={"every_steps": 3}), nodes, fraction=1.0)
    found = of(ModelEvaluated, events)
    assert [event.version for event in found] == [0, 3, 6]
    assert found[0].metrics == {"accuracy": pytest.approx((0.1 + 0.4 + 0.9) / 6)}
    assert (found[0].clients, found[0].examples, found[0].federated) == (3, 6, True)
    evaluated = [order for order in nodes.orders if order.kind == "evaluate"]
    assert {order.config["server-round"] for order in evaluated} == {0, 3, 6}


def test_a_central_evaluation_can_end_the_run():
    result, _ = run_nodes(
        config(evaluation={"every_steps": 1}, stop={"steps": 50, "accuracy": 0.3}),
        LocalNodes(SLOW),
        evaluate=lambda version, arrays: {"accuracy": version / 10},
    )
    assert (result.steps, result.stopped_by, result.accuracy) == (3, "accuracy", 0.3)


def test_training_metrics_become_the_loss_of_a_step():
    _, events = run_nodes(config(stop={"steps": 2}), LocalNodes({1: 1.0, 2: 1.0}))
    assert [event.training_loss for event in of(ModelMoved, events)] == [1.0, 0.5]


def interrupted(path, nodes, settings, after):
    """Run in a folder until a number of lists of events, and leave it as a killed process does."""
    folder = RunFolder(path)
    run = grid_run(settings, nodes)
    folder.create(run.assembly.config, run.assembly.inputs())
    drive = Drive(run, folder, snapshot_seconds=1000.0)

    class Kill:
        def begin(self, config, history):
            pass

        def see(self, events):
            if run.engine.trips == after - 1:
                drive.save()
            if run.engine.trips == after:
                raise SystemError("killed")

        def end(self):
            pass

    with pytest.raises(SystemError):
        drive.run((Kill(),))
    folder.close()


def test_a_killed_run_goes_on_from_its_snapshot_and_gives_up_what_was_under_way(tmp_path):
    settings = config(algorithm={"kind": "fedbuff", "momentum": {"kind": "ema"}})
    interrupted(tmp_path / "run", LocalNodes(SLOW), settings, after=5)
    nodes = LocalNodes(
        {11: 1.0, 12: 1.3, 13: 10.0}, lambda order: pulled(replace(order, node=order.node - 10))
    )
    folder = RunFolder(tmp_path / "run")
    run = grid_run(settings, nodes)
    snapshot = folder.reopen(run.assembly.config, run.assembly.inputs())
    assert snapshot is not None
    before = snapshot[1]["engine"]
    folder.go_on()
    result = Drive(run, folder, snapshot).run()
    folder.close()
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    assert result.steps == 6
    assert len(of(TripGivenUp, events)) == len(before["book"]["in_flight"]) > 0
    assert len(of(UploadReceived, events)) == result.client_trips
    times = [event.time for event in events[1:]]
    assert times == sorted(times)
    assert {order.version for order in nodes.orders} == set(range(before["aggregator"]["version"], 6))
