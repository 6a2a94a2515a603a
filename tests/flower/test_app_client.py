"""A ClientApp as a client of our server, without processes."""

import sys

import pytest

pytest.importorskip("flwr")

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from kept_state_app import write_app

import tardigrad as td
from tardigrad.core.upload import Task
from tardigrad.errors import ConfigError, RunError
from tardigrad.experiments.runs.private_run import Secrets
from tardigrad.experiments.runs.server_assembly import assemble_server, make_plan
from tardigrad.flower import ClientHalf, ServedApp, simulate
from tardigrad.flower.app_client import AppClient
from tardigrad.flower.app_message import app_message
from tardigrad.flower.declared_app import read_app_declaration
from tardigrad.service.client.client_trainer import Assignment
from tardigrad.service.protocol.site_declaration import read_declaration
from tardigrad.service.protocol.task_settings import to_json

NAN = torch.full((10,), torch.nan).numpy()
MODEL = "kept_state.task:Net"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield write_app(tmp_path / "app")
    for name in [name for name in sys.modules if name.startswith("kept_state.") or name == "kept_state"]:
        del sys.modules[name]


def config(**keywords):
    return td.Config(**{"buffer": {"size": 2}, "stop": {"steps": 4}} | keywords)


def app_of(train, evaluate=None):
    app = ClientApp()
    app.train()(train)
    if evaluate is not None:
        app.evaluate()(evaluate)
    return app


def reply(message, metrics=None, **arrays):
    """Return a reply with the arrays of the message, some of them replaced."""
    found = {name: array.numpy() for name, array in message.content["arrays"].items()} | arrays
    record = ArrayRecord({name: Array(array) for name, array in found.items() if array is not None})
    content = RecordDict({"arrays": record, "metrics": MetricRecord(metrics or {"num-examples": 5})})
    return Message(content, reply_to=message)


def trained(folder, app, settings=None, evaluate=False, **keywords):
    """Train one trip of a client, and return what it delivers."""
    settings = settings or config()
    served = ServedApp(settings, folder, MODEL, "lr=0.5")
    client = AppClient("ann", app, {"partition-id": 0}, served.declaration)
    vector = torch.cat([p.detach().reshape(-1) for p in served.module.parameters()])
    task = Task(3, "ann", 2, {"model": vector})
    told = to_json(settings.algorithm, td.Local(), **keywords)
    return client.train(Assignment(task, 11, told, evaluate, 0), {})


def test_an_app_is_told_the_config_its_node_and_the_round(folder):
    seen = {}

    def train(message, context):
        seen.update(config=dict(message.content["config"]), node=dict(context.node_config))
        seen.update(run=dict(context.run_config), names=list(message.content["arrays"]))
        assert message.content["arrays"]["scale"].numpy().tolist() == [16]
        return reply(message)

    finished = trained(folder, app_of(train))
    told = {"local-epochs": 1, "batch-size": 64, "lr": 0.5}
    assert seen["config"] == told | {"server-round": 3}
    assert (seen["run"], seen["node"]) == (told, {"partition-id": 0})
    assert seen["names"][:3] == ["scale", "convolution.weight", "convolution.bias"]
    assert (finished.trip, finished.version, finished.upload.examples) == (3, 2, 5)
    assert finished.upload.loss == 0.0
    assert finished.memory == {}
    assert not any(vector.any() for vector in finished.upload.vectors.values())


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda message: 1 / 0, r"the ClientApp failed at .*test_app_client\.py:\d+ \(ZeroDivisionError"),
        (lambda message: None, "the ClientApp returned a NoneType and not a Message"),
        (lambda message: Message(Error(3, "no\ndisk"), reply_to=message), r"trip 3: no disk \(code 3\)"),
        (lambda message: reply(message, scale=None), r"other names .*'scale' missing"),
        (lambda message: reply(message, **{"output.bias": torch.zeros(3).numpy()}), "has the shape"),
        (lambda message: reply(message, **{"output.bias": NAN}), "not finite"),
        (lambda message: reply(message, {"num-examples": 0.5}), "'num-examples' is 0.5"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_app_is_one_sentence(folder, answer, sentence):
    with pytest.raises(RunError, match=sentence) as caught:
        trained(folder, app_of(lambda message, context: answer(message)))
    assert "\n" not in str(caught.value)


def test_an_app_that_needs_a_client_half_is_told_so(folder):
    settings = config(algorithm="scaffold", pace={"kind": "synchronous", "cohort": 2}, buffer={})
    with pytest.raises(RunError, match=r"scaffold changes how clients train.*tardigrad\.flower\.ClientHalf"):
        trained(folder, app_of(lambda message, context: reply(message)), settings)


def test_uploads_that_weigh_by_examples_need_them(folder):
    settings = config(buffer={"size": 2, "weights": "examples"})
    with pytest.raises(RunError, match="num-examples"):
        trained(folder, app_of(lambda message, context: reply(message, {"loss": 1.0})), settings)


def test_in_a_private_run_a_model_that_is_not_finite_changes_nothing(folder):
    def train(message, context):
        return reply(message, **{"output.bias": torch.full((10,), torch.inf).numpy()})

    finished = trained(folder, app_of(train), private=True)
    assert not any(vector.any() for vector in finished.upload.vectors.values())


def test_metrics_of_an_evaluation_are_delivered_and_its_failure_ends_nothing(folder):
    def evaluate(message, context):
        context.state["seen"] = ConfigRecord({"x": 1})
        return Message(
            RecordDict({"m": MetricRecord({"eval_acc": 0.5, "bad": float("nan"), "num-examples": 7})}),
            reply_to=message,
        )

    def train(message, context):
        assert "seen" not in context.state
        return reply(message)

    finished = trained(folder, app_of(train, evaluate), evaluate=True)
    assert (finished.evaluated, finished.metrics) == (7, {"eval_acc": 0.5})
    finished = trained(folder, app_of(train), evaluate=True)
    assert (finished.evaluated, finished.metrics) == (0, {})


def test_uploads_are_encoded_as_the_server_asks_for(folder):
    settings = config(encoding="int8")
    finished = trained(
        folder, app_of(lambda message, context: reply(message)), settings, encoding=settings.encoding
    )
    assert finished.encoding == "int8"


def test_a_client_without_the_app_cannot_join(folder):
    served = ServedApp(config(), folder, MODEL)
    settings = config(service={"population": 2}).model_copy(update={"data": None, "model": None})
    assembly = assemble_server(settings, served.module, declaration=served.declaration)
    assert "the app's config" in assembly.inputs()
    plan = make_plan(assembly, Secrets())
    client = AppClient("ann", app_of(lambda m, c: reply(m)), {}, served.declaration)
    assert plan.frozen == client.frozen
    client.check_shapes(plan.shapes)
    with pytest.raises(ConfigError, match="declares arrays of the shapes"):
        client.check_shapes(plan.shapes[1:])
    with pytest.raises(ConfigError, match=r"serves a Flower app.*use --flower"):
        read_declaration(plan.declaration)
    with pytest.raises(ConfigError, match="does not serve a Flower app"):
        read_app_declaration("")


@pytest.mark.parametrize(
    ("keywords", "model", "sentence"),
    [
        ({}, None, "--model: give the function or class of the app"),
        ({"local": {"lr": 0.5}}, MODEL, r"local\.lr: the ClientApp trains"),
        ({"data": "digits"}, MODEL, "data: the ClientApp brings its own"),
        ({}, "kept_state.task:Normed", "'1.running_mean' are running statistics"),
        ({}, "kept_state.task:Large", "at most 1,048,576 can be sent"),
    ],
)
def test_what_cannot_be_served_is_refused(folder, keywords, model, sentence):
    with (folder / "kept_state" / "task.py").open("a") as file:
        file.write("Normed = lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))\n")
        file.write("Large = lambda: {'w': torch.zeros(2), 'n': torch.zeros(200000, dtype=torch.int64)}\n")
    with pytest.raises(ConfigError, match=sentence):
        ServedApp(config(**keywords), folder, model)


@pytest.mark.parametrize(
    "change",
    [
        ('"flower":1', '"flower":2'),
        ('"dtype":"int64"', '"dtype":"object"'),
        ('"shape":[1]', '"shape":[3]'),
        ('"shape":[10]', '"shape":[99999999999]'),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused(folder, change):
    text = ServedApp(config(), folder, MODEL).declaration
    assert change[0] in text
    with pytest.raises(ConfigError, match="declar"):
        AppClient("ann", app_of(lambda m, c: reply(m)), {}, text.replace(*change))


def test_a_simulated_app_keeps_its_state_and_may_have_a_client_half():
    counts = []

    def train(message, context):
        module = torch.nn.Linear(2, 1)
        half = ClientHalf(message, context, module, lr=0.1)
        seen = context.state["n"]["n"] if "n" in context.state else 0
        context.state["n"] = ConfigRecord({"n": seen + 1})
        counts.append(seen)
        module(torch.ones(1, 2)).sum().backward()
        half.step()
        return half.reply({"num-examples": 1})

    settings = config(
        algorithm="scaffold", pace={"kind": "synchronous", "cohort": 2}, buffer={}, stop={"steps": 3}
    )
    arrays = ArrayRecord(torch.nn.Linear(2, 1).state_dict())
    simulate(settings, app_of(train), arrays, [{}, {}])
    assert counts == [0, 0, 1, 1, 2, 2]


def test_a_message_that_flower_makes_in_another_way_is_said_so(monkeypatch):
    from tardigrad.flower import app_message as module

    def other(**keywords):
        raise TypeError("unexpected keyword 'metadata'")

    monkeypatch.setattr(module, "Message", other)
    with pytest.raises(ConfigError, match=r"makes messages in another way.*pip install 'flwr=="):
        app_message("train", RecordDict(), 1, 0, 0)
