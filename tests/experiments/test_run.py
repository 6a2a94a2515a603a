"""One run: reproducible, safe against interruption, and recorded."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

import tardigrad as td
from tardigrad.experiments.directory import read_events

ASYNC = """
seed = 3
local = { lr = 0.1, batch_size = 8 }
stop = { trips = 1500 }
evaluation = { every_steps = 20 }
pace = { kind = "asynchronous", concurrency = 40 }
"""
KINDS = {
    "fedbuff": ASYNC + 'algorithm = { kind = "fedbuff", momentum = { kind = "ema", beta = 0.5 } }\n',
    "fedasync": ASYNC + 'algorithm = { kind = "fedasync" }\ndelay = { kind = "log_normal", give_up = 0.1 }\n',
    "fedavgm": ASYNC.replace('"asynchronous", concurrency = 40', '"synchronous", cohort = 10, selected = 13')
    + 'algorithm = "fedavgm"\n',
}


def config(tmp_path, text):
    file = tmp_path / "config.toml"
    file.write_text(text)
    return td.load_config(file)


@pytest.mark.parametrize("kind", KINDS)
def test_same_config_and_seed_give_the_same_events_and_bits(tmp_path, kind):
    settings = config(tmp_path, KINDS[kind])
    first = td.run(settings, out=tmp_path / "a")
    second = td.run(settings, out=tmp_path / "b")
    assert first.model_sha256 == second.model_sha256
    assert (tmp_path / "a/events.jsonl").read_bytes() == (tmp_path / "b/events.jsonl").read_bytes()
    other = td.run(settings, seed=4)
    assert other.model_sha256 != first.model_sha256


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_random_moments_and_resumed_gives_the_same_bits(tmp_path, kind):
    file = tmp_path / "config.toml"
    file.write_text(KINDS[kind])
    straight = td.run(td.load_config(file), out=tmp_path / "straight")
    out = tmp_path / "killed"
    command = [
        sys.executable,
        "-m",
        "tardigrad",
        "run",
        str(file),
        "--out",
        str(out),
        "--snapshot-seconds",
        "0.02",
    ]
    moments = random.Random(kind)
    kills = 0
    while kills < 4:
        resume = ["--resume"] if (out / "config.toml").exists() else []
        process = subprocess.Popen([*command, *resume], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        events = out / "events.jsonl"
        while process.poll() is None and not (
            events.exists() and events.stat().st_mtime_ns > 0 and _moved(events)
        ):
            time.sleep(0.005)
        time.sleep(moments.uniform(0.0, 0.15))
        if process.poll() is not None:
            assert process.returncode == 0, process.stdout.read().decode()
            break  # it was through before it could be killed
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills > 0, "never killed: the run is too short for this test"
    result = td.run(td.load_config(file), out=out, resume=True)
    assert result.model_sha256 == straight.model_sha256
    assert events.read_bytes() == (tmp_path / "straight/events.jsonl").read_bytes()
    assert (out / "metrics.csv").read_text() == (tmp_path / "straight/metrics.csv").read_text()


def _moved(events, seen={}):  # noqa: B006
    """Whether the file has grown since it was last asked about."""
    size = events.stat().st_size
    grown = size > seen.get(events, 0)
    seen[events] = size
    return grown


def test_an_interrupted_run_goes_on_and_a_finished_one_is_not_repeated(tmp_path):
    settings = config(tmp_path, KINDS["fedbuff"])
    straight = td.run(settings)

    class Interrupt:
        def begin(self, config, history):
            self.left = 300

        def see(self, events):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

        def end(self):
            pass

    with pytest.raises(KeyboardInterrupt):
        td.run(settings, out=tmp_path / "run", observers=(Interrupt(),))
    with pytest.raises(KeyboardInterrupt):
        td.run(settings, out=tmp_path / "run", resume=True, observers=(Interrupt(),))
    resumed = td.run(settings, out=tmp_path / "run", resume=True)
    assert resumed.model_sha256 == straight.model_sha256
    assert resumed.history == straight.history
    assert resumed.refused == straight.refused


def test_the_folder_holds_what_it_should(tmp_path):
    out = tmp_path / "run"
    result = td.run(config(tmp_path, KINDS["fedavgm"]), out=out)
    assert {p.name for p in out.iterdir()} >= {
        "config.toml", "events.jsonl", "metrics.csv", "model.safetensors", "summary.json",
    }  # fmt: skip
    assert not list(out.glob("*.partial"))
    resolved = td.load_config(out / "config.toml")
    assert resolved.buffer.size == 10, "the cohort, filled in"
    assert td.run(resolved).model_sha256 == result.model_sha256
    events = list(read_events(out / "events.jsonl"))
    uploads = [event for event in events if event["event"] == "upload"]
    assert len(uploads) == result.client_trips
    assert set(uploads[0]) == {
        "event", "trip", "client", "start_time", "time", "start_version", "version", "staleness",
        "weight", "accepted", "reason", "step",
    }  # fmt: skip
    late = [event for event in uploads if not event["accepted"]]
    assert late
    assert all(event["reason"] == "round closed" and event["step"] is None for event in late)
    assert result.refused == {"round closed": len(late)}
    rows = list(csv.DictReader((out / "metrics.csv").open()))
    assert float(rows[-1]["accuracy"]) == result.accuracy
    assert json.loads((out / "summary.json").read_text())["model_sha256"] == result.model_sha256


def test_the_saved_model_loads_back_under_its_own_names(tmp_path):
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    result = td.run(config(tmp_path, ASYNC), model=module, out=tmp_path / "run")
    fresh = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    fresh.load_state_dict(load_file(tmp_path / "run/model.safetensors"))
    assert torch.equal(fresh[1].weight, result.model["1.weight"])
    assert not torch.equal(fresh[1].weight, module[1].weight), "the user's own module is left alone"


def test_stopping(tmp_path):
    settings = config(tmp_path, ASYNC)
    assert td.run(settings, stop=td.Stop(steps=7)).steps == 7
    by_time = td.run(settings, stop=td.Stop(virtual_time=2.5))
    assert (by_time.virtual_time, by_time.stopped_by) == (2.5, "virtual_time")
    by_accuracy = td.run(settings, stop=td.Stop(trips=10**6, accuracy=0.5))
    assert by_accuracy.stopped_by == "accuracy"
    assert by_accuracy.accuracy >= 0.5
    assert all(row["accuracy"] < 0.5 for row in by_accuracy.history[:-1])


def test_evaluation_on_the_clients_own_data(tmp_path):
    settings = config(tmp_path, ASYNC)
    result = td.run(
        settings,
        stop=td.Stop(trips=600),
        evaluation=td.Evaluation(held_out=0.3, clients=40),
        delay=td.HalfNormal(device_spread=1.0),
    )
    metrics = result.metrics
    assert metrics["client_accuracy_worst_decile"] <= metrics["client_accuracy"]
    assert {"client_accuracy_fast", "client_accuracy_slow"} <= set(metrics)


def test_nothing_leaves_the_global_random_state(tmp_path):
    import numpy as np

    dropout = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 10))
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = td.run(config(tmp_path, ASYNC), model=dropout, stop=td.Stop(trips=50))
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002
    torch.manual_seed(2)
    assert (
        td.run(config(tmp_path, ASYNC), model=dropout, stop=td.Stop(trips=50)).model_sha256
        == first.model_sha256
    )
