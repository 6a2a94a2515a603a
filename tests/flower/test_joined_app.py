"""ClientApps on our own server: `serve --flower` and `join --flower`, with real processes."""

import json
import sys

import pytest

pytest.importorskip("flwr")

from flower_harness import wait_for
from flwr.app import ArrayRecord, ConfigRecord
from kept_state_app import write_app

from tardigrad.core.event_log import read_events
from tardigrad.core.events import ModelEvaluated, UploadReceived
from tardigrad.core.snapshot import read_snapshot
from tardigrad.experiments.config.reading import load_config
from tardigrad.flower import ServedApp, replay, simulate
from tardigrad.flower.app_folder import open_app
from tardigrad.flower.app_state import state_in
from tardigrad.flower.declared_app import read_app_declaration

MODEL, CHANGED = "kept_state.task:Net", "lr=0.05 batch-size=50"


@pytest.fixture
def app(tmp_path, monkeypatch):
    """The folder of the app, which only this process may import under its name."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield write_app(tmp_path / "app")
    for name in [name for name in sys.modules if name.startswith("kept_state.") or name == "kept_state"]:
        del sys.modules[name]


class Processes:
    """A server and clients, in processes of their own."""

    def __init__(self, commands, folder, app, names, text):
        self._commands, self._folder, self._app = commands, folder, app
        (folder / "run.toml").write_text(text)
        commands.start("enroll", *names, cwd=folder).communicate()
        self.numbers = {name: number for number, name in enumerate(names)}
        self.clients = {}

    def serve(self):
        self.server = self._commands.start(
            "serve", "run.toml", "--flower", self._app, "--model", MODEL, "--run-config", CHANGED,
            "--out", "out", "--port", "0", "--set", "service.linger_seconds=300",
            cwd=self._folder, merged=True,
        )  # fmt: skip
        line = self.server.stdout.readline()
        assert "listening on" in line, line + self.server.stdout.read()
        self.port = line.split(":")[-1].strip()

    def join(self, name):
        node = f"partition-id={self.numbers[name]} num-partitions={len(self.numbers)}"
        self.clients[name] = self._commands.start(
            "join", f"localhost:{self.port}", "--flower", self._app, "--node-config", node,
            "--key", f"keys/{name}.key", cwd=self._folder, merged=True,
        )  # fmt: skip

    def end(self):
        for name, client in self.clients.items():
            told, _ = client.communicate()
            assert client.returncode == 0, told
            assert "the run is over" in told, name
        self.server.send_signal(15)
        said, _ = self.server.communicate()
        assert self.server.returncode == 0, said
        return json.loads((self._folder / "out" / "summary.json").read_text())


def nodes_of(names):
    return {name: {"partition-id": n, "num-partitions": len(names)} for n, name in enumerate(names)}


def parts_of(folder, app):
    """Return the ClientApp, the initial arrays and the run config, as a server and its clients have them."""
    found = open_app(app)
    config = load_config(folder / "run.toml")
    run_config = read_app_declaration(ServedApp(config, app, MODEL, CHANGED).declaration).run_config
    return config, found.client_app(), run_config


def initial_arrays(config, app):
    return ArrayRecord(ServedApp(config, app, MODEL).module.state_dict())


def uploads(folder):
    file = folder / "out" / "events.jsonl"
    events = read_events(file) if file.exists() else []
    return [event for event in events if isinstance(event, UploadReceived)]


def test_a_server_and_a_simulation_have_the_same_result(commands, tmp_path, app):
    text = """
[algorithm]
kind = "fedavg"
[pace]
kind = "synchronous"
cohort = 1
[buffer]
size = 1
[stop]
steps = 5
[evaluation]
main = "eval_acc"
every_steps = 2
"""
    processes = Processes(commands, tmp_path, app, ["ann"], text)
    processes.serve()
    processes.join("ann")
    summary = processes.end()
    config, client_app, run_config = parts_of(tmp_path, app)
    assert run_config == {"local-epochs": 1, "batch-size": 50, "lr": 0.05}
    result = simulate(
        config, client_app, initial_arrays(config, app), list(nodes_of(["ann"]).values()),
        run_config=run_config, train_config=ConfigRecord(run_config),
    )  # fmt: skip
    assert result.model_sha256 == summary["model_sha256"]
    assert summary["metrics"]["eval_acc"] > 0.5
    evaluations = [e for e in read_events(tmp_path / "out" / "events.jsonl") if isinstance(e, ModelEvaluated)]
    assert evaluations
    assert all(event.federated for event in evaluations)


def test_a_killed_client_goes_on_with_its_state_and_the_arrivals_can_be_replayed(commands, tmp_path, app):
    text = """
[buffer]
size = 3
once_per_client = true
[stop]
steps = 4
[service]
ticket_seconds = 20
"""  # a step takes an upload of everybody, so that the run does not end without the client that is killed
    names = ["ann", "bob", "carl"]
    processes = Processes(commands, tmp_path, app, names, text)
    processes.serve()
    for name in names:
        processes.join(name)
    wait_for(lambda: any(upload.client == "ann" for upload in uploads(tmp_path)), "an upload of ann")
    processes.clients["ann"].kill()
    processes.join("ann")
    summary = processes.end()
    config, client_app, run_config = parts_of(tmp_path, app)
    arrays, told = initial_arrays(config, app), ConfigRecord(run_config)
    again = replay(
        tmp_path / "out", client_app, arrays, nodes_of(names), run_config=run_config, train_config=told
    )
    assert again.model_sha256 == summary["model_sha256"]
    counted = {}
    for name in names:
        (file,) = (tmp_path / "keys" / f"{name}.state").glob("*/memory.safetensors")
        counted[name] = state_in(read_snapshot(file)[0])[0]["trips"]["count"]
    assert counted == dict.fromkeys(names, 4)
