"""AsyncStrategy with Flower's own messages and ClientApps, in one process."""

import json
import logging

import numpy as np
import pytest

pytest.importorskip("flwr")

import torch
from direct_grid import DirectGrid
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import load_file

import tardigrad as td
from tardigrad.core.event_log import read_events
from tardigrad.core.events import TripGivenUp, UploadReceived
from tardigrad.errors import ConfigError, RunError
from tardigrad.flower import AsyncStrategy, ClientHalf, replay, simulate

LOOKS = (1, 2, 7)


def module():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))


def data(part):
    random = np.random.default_rng(part)
    features = torch.tensor(random.normal(size=(12, 4)), dtype=torch.float32)
    return features, torch.tensor(random.integers(0, 2, 12))


def first_arrays():
    return ArrayRecord(module().state_dict())


def config(**keywords):
    return td.Config(
        **{"buffer": {"size": 2}, "stop": {"steps": 6}, "evaluation": {"every_steps": 3}} | keywords
    )


app = ClientApp()


def loaded(message):
    model = module()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


@app.train()
def train(message, context):
    model, (features, labels) = loaded(message), data(context.node_config["partition-id"])
    optimiser = torch.optim.SGD(model.parameters(), lr=message.content["config"]["lr"])
    for _ in range(2):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimiser.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(labels)})
    arrays = ArrayRecord(model.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    model, (features, labels) = loaded(message), data(context.node_config["partition-id"])
    loss = torch.nn.functional.cross_entropy(model(features), labels).item()
    return Message(RecordDict({"m": MetricRecord({"loss": loss, "num-examples": 12})}), reply_to=message)


def start(strategy, grid, **keywords):
    return strategy.start(grid, first_arrays(), train_config=ConfigRecord({"lr": 0.2}), **keywords)


def test_the_result_is_flowers_and_the_folder_is_ours(tmp_path):
    grid = DirectGrid(app, LOOKS)
    result = start(AsyncStrategy(config(), out=tmp_path / "run"), grid)
    saved = load_file(tmp_path / "run" / "model.safetensors")
    own = result.arrays.to_torch_state_dict()
    assert all(torch.equal(own[name], saved[name]) for name in module().state_dict())
    assert list(result.evaluate_metrics_clientapp) == [0, 3, 6]
    assert result.evaluate_metrics_clientapp[6]["loss"] < result.evaluate_metrics_clientapp[0]["loss"]
    assert set(result.train_metrics_clientapp) == set(range(1, 7))
    trained = [message for message in grid.messages if message.metadata.message_type == "train"]
    assert trained[0].content["config"] == {"lr": 0.2, "server-round": 1}
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 6


@pytest.mark.parametrize("algorithm", ["fedbuff", "fedasync", "ca2fl", "fadas"])
def test_a_replay_in_the_simulator_has_the_same_bits(tmp_path, algorithm):
    buffer = {} if algorithm == "fedasync" else {"size": 2}
    grid = DirectGrid(app, LOOKS)
    start(AsyncStrategy(config(algorithm=algorithm, buffer=buffer), out=tmp_path / "run"), grid)
    nodes = {str(11 + part): {"partition-id": part, "num-partitions": 3} for part in range(3)}
    told = ConfigRecord({"lr": 0.2})
    again = replay(tmp_path / "run", app, first_arrays(), nodes, train_config=told)
    assert again.model_sha256 == json.loads((tmp_path / "run" / "summary.json").read_text())["model_sha256"]
    swapped = dict(zip(nodes, [*list(nodes.values())[1:], nodes["11"]]))
    other = replay(tmp_path / "run", app, first_arrays(), swapped, train_config=told)
    assert other.model_sha256 != again.model_sha256


def test_a_client_app_can_be_simulated_in_virtual_time():
    nodes = [{"partition-id": part, "num-partitions": 3} for part in range(3)]
    results = [
        simulate(
            config(delay="log_normal"), app, first_arrays(), nodes, train_config=ConfigRecord({"lr": 0.2})
        )
        for _ in range(2)
    ]
    assert results[0].steps == 6
    assert results[0].model_sha256 == results[1].model_sha256


def test_a_simulated_client_app_is_the_same_as_a_client_of_ours():
    plain = config(algorithm="fedavg", pace={"kind": "synchronous", "cohort": 3}, buffer={})
    nodes = [{"partition-id": part, "num-partitions": 3} for part in range(3)]
    flowers = simulate(plain, app, first_arrays(), nodes, train_config=ConfigRecord({"lr": 0.2}))
    ours = td.run(
        plain, model=module(), clients={part: data(part) for part in range(3)},
        local=td.Local(lr=0.2, epochs=2, batch_size=12),
    )  # fmt: skip
    for name, value in ours.model.items():
        assert torch.allclose(flowers.model[name], value, atol=1e-6)


def killed(strategy, looks):
    """Start a run and have it end without a warning after so many looks for replies."""
    grid = DirectGrid(app, LOOKS)
    pull, calls = grid.pull_messages, []

    def broken(identities):
        calls.append(1)
        if len(calls) > looks:
            raise SystemError("killed")
        return pull(identities)

    grid.pull_messages = broken
    with pytest.raises(SystemError):
        start(strategy, grid)


def test_an_interrupted_run_goes_on(tmp_path):
    out, settings = tmp_path / "run", config(stop={"steps": 30})
    killed(AsyncStrategy(settings, out=out, fraction_evaluate=0.0, snapshot_seconds=0.0), looks=31)
    grid = DirectGrid(app, LOOKS)
    start(AsyncStrategy(settings, out=out, fraction_evaluate=0.0), grid)
    events = list(read_events(out / "events.jsonl"))
    assert any(isinstance(event, TripGivenUp) for event in events)
    assert sum(isinstance(event, UploadReceived) and event.accepted for event in events) == 60
    assert grid.messages[0].content["config"]["server-round"] > 1


def test_an_interrupted_private_run_releases_no_version_twice(tmp_path):
    privacy = {"kind": "participation", "noise_multiplier": 1.0, "participations": 40, "separation": 1}
    settings = config(stop={"steps": 12}, privacy=privacy, algorithm={"kind": "fedbuff", "lr": 0.01})
    out = tmp_path / "run"
    for looks in (5, 6, 7):
        killed(AsyncStrategy(settings, out=out), looks)
    start(AsyncStrategy(settings, out=out), DirectGrid(app, LOOKS))
    released = [line.split()[0] for line in (out / "releases.log").read_text().splitlines()]
    versions = [int(first) for first in released if first.isdigit()]
    assert sorted(set(versions)) == list(range(1, 13))
    assert len([first for first in released if first == "open"]) == 4


def test_a_finished_run_is_not_made_again(tmp_path):
    one = start(AsyncStrategy(config(), out=tmp_path / "run"), DirectGrid(app, LOOKS))
    grid = DirectGrid(app, LOOKS)
    two = start(AsyncStrategy(config(), out=tmp_path / "run"), grid)
    assert grid.messages == []
    assert one.arrays.object_id == two.arrays.object_id


def test_another_config_is_refused(tmp_path):
    start(AsyncStrategy(config(), out=tmp_path / "run"), DirectGrid(app, LOOKS))
    with pytest.raises(ConfigError, match=r"differs from that of .* in algorithm\.lr"):
        start(
            AsyncStrategy(config(algorithm={"kind": "fedbuff", "lr": 0.5}), out=tmp_path / "run"),
            DirectGrid(app, LOOKS),
        )


def test_num_rounds_is_the_number_of_steps():
    result = start(AsyncStrategy(td.Config(buffer={"size": 2})), DirectGrid(app, LOOKS), num_rounds=4)
    assert max(result.train_metrics_clientapp) == 4


def test_a_central_evaluation_takes_the_place_of_the_nodes():
    def central(version, arrays):
        return MetricRecord(
            {"accuracy": version / 10, "norm": float(np.linalg.norm(arrays["0.bias"].numpy()))}
        )

    grid = DirectGrid(app, LOOKS)
    result = start(AsyncStrategy(config()), grid, evaluate_fn=central)
    assert result.evaluate_metrics_serverapp[6]["accuracy"] == pytest.approx(0.6)
    assert {message.metadata.message_type for message in grid.messages} == {"train"}


def test_an_app_that_raises_is_quoted_in_one_sentence(caplog):
    broken = ClientApp()

    @broken.train()
    def train(message, context):
        raise ValueError("there is no data")

    with (
        caplog.at_level(logging.WARNING, logger="flwr.tardigrad"),
        pytest.raises(RunError, match=r"15 trips have failed.*there is no data"),
    ):
        start(AsyncStrategy(config(), fraction_evaluate=0.0), DirectGrid(broken, LOOKS))
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_private_runs_write_a_statement_and_ask_no_node_to_evaluate(tmp_path):
    privacy = {"kind": "participation", "noise_multiplier": 1.0, "participations": 9, "separation": 1}
    grid = DirectGrid(app, LOOKS)
    start(
        AsyncStrategy(
            config(privacy=privacy, algorithm={"kind": "fedbuff", "lr": 0.01}), out=tmp_path / "run"
        ),
        grid,
    )
    assert "epsilon" in (tmp_path / "run" / "privacy.md").read_text()
    assert {message.metadata.message_type for message in grid.messages} == {"train"}
    assert 'training_loss": null' in (tmp_path / "run" / "events.jsonl").read_text()


def half_app():
    """Return an app that trains with the client half of the algorithm."""
    own = ClientApp()

    @own.train()
    def train(message, context):
        model, (features, labels) = module(), data(context.node_config["partition-id"])
        half = ClientHalf(message, context, model, lr=0.2)
        for _ in range(2):
            torch.nn.functional.cross_entropy(model(features), labels).backward()
            half.step()
        return half.reply({"num-examples": len(labels)})

    return own


@pytest.mark.parametrize(
    "algorithm",
    [
        {"kind": "scaffold"},
        {"kind": "fedprox", "mu": 0.5},
    ],
)
def test_algorithms_with_a_client_half_are_those_of_the_simulator(algorithm):
    plain = config(algorithm=algorithm, pace={"kind": "synchronous", "cohort": 3}, buffer={})
    strategy = AsyncStrategy(plain, fraction_evaluate=0.0)
    flowers = start(strategy, DirectGrid(half_app(), (1, 1, 1))).arrays.to_torch_state_dict()
    ours = td.run(
        plain, model=module(), clients={part: data(part) for part in range(3)},
        local=td.Local(lr=0.2, epochs=2, batch_size=12),
    )  # fmt: skip
    for name, value in ours.model.items():
        assert torch.allclose(flowers[name], value, atol=1e-5)


@pytest.mark.parametrize(
    "algorithm",
    [
        {"kind": "fedac"},
        {"kind": "masfl", "smoothness": 0.1},
        {"kind": "adamasfl"},
        {"kind": "weight_prediction", "expected_staleness": 1.0},
    ],
)
def test_asynchronous_algorithms_with_a_client_half_train(algorithm):
    settings = config(
        algorithm=algorithm, local={"steps": 2}, stop={"steps": 30}, evaluation={"every_steps": 10}
    )

    def central(version, arrays):
        model = module()
        model.load_state_dict(arrays.to_torch_state_dict())
        losses = [torch.nn.functional.cross_entropy(model(x), y).item() for x, y in map(data, range(3))]
        return MetricRecord({"loss": sum(losses) / 3})

    result = start(AsyncStrategy(settings), DirectGrid(half_app(), LOOKS), evaluate_fn=central)
    losses = [record["loss"] for record in result.evaluate_metrics_serverapp.values()]
    assert losses[-1] < losses[0]


def test_an_app_without_the_client_half_is_refused_with_advice():
    settings = config(algorithm="scaffold", pace={"kind": "synchronous", "cohort": 3}, buffer={})
    with pytest.raises(RunError, match=r"scaffold changes how clients train.*tardigrad\.flower\.ClientHalf"):
        start(AsyncStrategy(settings, fraction_evaluate=0.0), DirectGrid(app, LOOKS))


def test_a_client_half_that_is_not_needed_says_so(caplog):
    with pytest.raises(RunError, match="does not change how clients train"):
        start(AsyncStrategy(config(), fraction_evaluate=0.0), DirectGrid(half_app(), LOOKS))
