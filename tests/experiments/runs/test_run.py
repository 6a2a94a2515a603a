"""One run: reproducible, safe against interruption, and recorded."""

import csv
import json
import random
import shutil
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

import tardigrad as td
from event_records import read_records
from observers import InterruptAfter
from tardigrad.core.events import RunEnded

ASYNC = """
seed = 3
local = { lr = 0.1, batch_size = 8 }
stop = { trips = 400 }
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


STOPS = {kind: (kind, signal.SIGKILL, "auto") for kind in KINDS} | {
    "interrupted": ("fedbuff", signal.SIGINT, "0"),
    "interrupted with workers": ("fedasync", signal.SIGINT, "2"),
}


@pytest.mark.parametrize("case", STOPS)
def test_stopped_at_random_moments_and_resumed_gives_the_same_bits(tmp_path, case, commands):
    kind, how, workers = STOPS[case]
    file = tmp_path / "config.toml"
    file.write_text(KINDS[kind].replace("trips = 400", "trips = 1000"))  # long enough to be stopped
    straight = td.run(td.load_config(file), out=tmp_path / "straight")
    out = tmp_path / "killed"
    seconds = "0.02" if how == signal.SIGKILL else "1000"  # an interrupted run writes one of its own
    words = ["run", file, "--out", out, "--workers", workers, "--snapshot-seconds", seconds]
    moments = random.Random(case)
    kills, attempts = 0, 0
    while kills < 3 and attempts < 20:
        attempts += 1
        resume = ["--resume"] if (out / "config.toml").exists() else []
        events = out / "events.jsonl"
        before = _written(events)
        process = commands.start(*words, *resume, merged=True)
        while process.poll() is None and _written(events) == before:
            time.sleep(0.005)
        time.sleep(moments.uniform(0.0, 0.15))
        process.send_signal(how)
        said = process.communicate()[0]
        if process.returncode == 0:  # it was through before it could be killed
            if kills > 0:
                break
            shutil.rmtree(out)
            continue
        assert process.returncode == (-9 if how == signal.SIGKILL else 130), said
        assert how == signal.SIGKILL or "stopped; go on with the same command" in said, said
        kills += 1
    assert kills > 0, "never killed: the run is too short for this test"
    result = td.run(td.load_config(file), out=out, resume=True)
    assert result.model_sha256 == straight.model_sha256
    assert events.read_bytes() == (tmp_path / "straight/events.jsonl").read_bytes()
    assert (out / "metrics.csv").read_text() == (tmp_path / "straight/metrics.csv").read_text()


def _written(file):
    """When, if it exists."""
    return file.stat().st_mtime_ns if file.exists() else 0


def test_interrupted_run_goes_on_and_finished_run_is_not_repeated(tmp_path):
    settings = config(tmp_path, KINDS["fedbuff"])
    straight = td.run(settings)

    with pytest.raises(KeyboardInterrupt):
        td.run(settings, out=tmp_path / "run", observers=(InterruptAfter(100),))
    with pytest.raises(KeyboardInterrupt):
        td.run(settings, out=tmp_path / "run", resume=True, observers=(InterruptAfter(100),))
    resumed = td.run(settings, out=tmp_path / "run", resume=True)
    assert resumed.model_sha256 == straight.model_sha256
    assert resumed.history == straight.history
    assert resumed.refused == straight.refused


def test_folder_of_a_finished_run_holds_its_config_events_metrics_and_model(tmp_path):
    out = tmp_path / "run"
    result = td.run(config(tmp_path, KINDS["fedavgm"]), out=out)
    assert {p.name for p in out.iterdir()} >= {
        "config.toml", "events.jsonl", "metrics.csv", "model.safetensors", "summary.json",
        "privacy.md",
    }  # fmt: skip
    assert "Nothing is promised" in (out / "privacy.md").read_text()
    assert not list(out.glob("*.partial"))
    resolved = td.load_config(out / "config.toml")
    assert resolved.buffer.size == 10, "the cohort, filled in"
    assert td.run(resolved).model_sha256 == result.model_sha256
    events = list(read_records(out / "events.jsonl"))
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


def test_saved_model_loads_under_its_own_names_and_the_users_module_is_unchanged(tmp_path):
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    result = td.run(config(tmp_path, ASYNC), model=module, out=tmp_path / "run")
    fresh = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    fresh.load_state_dict(load_file(tmp_path / "run/model.safetensors"))
    assert torch.equal(fresh[1].weight, result.model["1.weight"])
    assert not torch.equal(fresh[1].weight, module[1].weight), "the user's own module is left alone"


def test_run_ends_at_the_first_limit_that_is_reached(tmp_path):
    settings = config(tmp_path, ASYNC)
    assert td.run(settings, stop=td.Stop(steps=7)).steps == 7
    by_time = td.run(settings, stop=td.Stop(virtual_time=2.5))
    assert (by_time.virtual_time, by_time.stopped_by) == (2.5, "virtual_time")
    by_accuracy = td.run(settings, stop=td.Stop(trips=10**6, accuracy=0.5))
    assert by_accuracy.stopped_by == "accuracy"
    assert by_accuracy.accuracy >= 0.5
    assert all(row.metrics["accuracy"] < 0.5 for row in by_accuracy.history[:-1])


def test_clients_evaluate_on_the_examples_that_they_hold_out(tmp_path):
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


def test_global_random_state_is_neither_changed_nor_used(tmp_path):
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


def test_run_that_is_interrupted_after_its_last_event_does_not_end_twice(tmp_path):
    class AtTheEnd:
        def begin(self, config, history):
            pass

        def see(self, events):
            if events and isinstance(events[-1], RunEnded):
                raise KeyboardInterrupt

        def end(self):
            pass

    settings, stop = config(tmp_path, ASYNC), td.Stop(trips=50)
    straight = td.run(settings, out=tmp_path / "straight", stop=stop)
    with pytest.raises(KeyboardInterrupt):
        td.run(settings, out=tmp_path / "run", stop=stop, snapshot_seconds=0, observers=(AtTheEnd(),))
    resumed = td.run(settings, out=tmp_path / "run", stop=stop, resume=True)
    assert resumed.model_sha256 == straight.model_sha256
    assert (tmp_path / "run/events.jsonl").read_bytes() == (tmp_path / "straight/events.jsonl").read_bytes()


@pytest.mark.parametrize("resume", [False, True])
def test_folder_with_a_lock_alone_can_be_begun_and_resumed(tmp_path, resume):
    settings = config(tmp_path, ASYNC)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.lock").touch()
    assert td.run(settings, out=tmp_path / "run", resume=resume, stop=td.Stop(trips=20)).client_trips == 20


def data(shift=0.0):
    x = torch.arange(80.0).reshape(20, 4) / 80 + shift
    return dict.fromkeys(range(5), (x, torch.arange(20) % 2))


class Own(td.FedBuff):
    """An algorithm of one's own."""


def test_resume_with_another_model_other_data_or_another_config_is_refused(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("client,start,duration\n0,0,1\n1,0,2\n")
    torch.manual_seed(0)
    model, other = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    settings = {
        "pace": td.Asynchronous(concurrency=3), "delay": {"kind": "trace", "file": trace},
        "buffer": td.Buffer(size=2), "stop": td.Stop(trips=20), "out": tmp_path / "run",
    }  # fmt: skip
    straight = td.run(model=model, clients=data(), **settings)
    same = td.run(model=model, clients=data(), resume=True, **settings)
    assert same.model_sha256 == straight.model_sha256
    assert same.history == straight.history
    assert torch.equal(same.model["weight"], straight.model["weight"])
    (tmp_path / "run/summary.json").unlink()  # the same if it is not finished
    for finished in (False, True):
        for change, said in (
            ({"model": other}, "the model"),
            ({"clients": data(shift=0.1)}, "the data"),
            ({"seed": 1}, "seed"),
        ):
            with pytest.raises(td.ConfigError, match=said):
                td.run(resume=True, **({"model": model, "clients": data()} | settings | change))
        trace.write_text("client,start,duration\n0,0,1\n1,0,3\n")
        with pytest.raises(td.ConfigError, match=r"what delay\.file holds changed since"):
            td.run(model=model, clients=data(), resume=True, **settings)
        trace.write_text("client,start,duration\n0,0,1\n1,0,2\n")
        if not finished:
            again = td.run(model=model, clients=data(), resume=True, **settings)
            assert again.model_sha256 == straight.model_sha256


def test_second_run_in_a_folder_that_is_in_use_is_refused(tmp_path):
    class Second:
        said = ""

        def begin(self, config, history):
            try:
                td.run(config, out=tmp_path / "run", resume=True)
            except td.ConfigError as error:
                self.said = str(error)

        def see(self, events):
            pass

        def end(self):
            pass

    second = Second()
    settings = config(tmp_path, ASYNC)
    td.run(settings, out=tmp_path / "run", observers=(second,), stop=td.Stop(trips=20))
    assert "somebody else is running it right now" in second.said


class Diverging(td.FedBuff):
    """Ends in no numbers."""

    def step(self, state, buffer):
        metrics = super().step(state, buffer)
        state["model"] = state["model"] * (float("nan") if buffer.version == 2 else 1.0)
        return metrics


class InPlace(td.FedBuff):
    """Changes what clients still train from."""

    def step(self, state, buffer):
        state["model"].sub_(buffer.mean())


def test_run_whose_model_is_not_finite_fails():
    settings = {"model": torch.nn.Linear(4, 2), "clients": data(), "buffer": td.Buffer(size=2)}
    with pytest.raises(td.RunError, match="the model is not finite at version 3"):
        td.run(algorithm=Diverging(), stop=td.Stop(steps=3), **settings)


@pytest.mark.parametrize("workers", [0, 2])
def test_algorithm_that_changes_the_model_in_place_is_refused_by_name(workers):
    settings = {"model": torch.nn.Linear(4, 2), "clients": data(), "buffer": td.Buffer(size=2)}
    with pytest.raises(td.RunError, match="InPlace changed the vector 'model' in place at step 1"):
        td.run(algorithm=InPlace(), workers=workers, **settings)


@pytest.mark.parametrize("workers", [0, 2])
def test_profile_adds_up_to_the_duration_of_the_run(tmp_path, workers):
    result = td.run(config(tmp_path, ASYNC), stop=td.Stop(trips=200), workers=workers, profile=True)
    own = {name: s for name, s in result.profile.items() if ":" not in name}
    training = "workers: training" if workers else "training"
    assert {training, training.replace("training", "data"), "commit", "step", "evaluation"} <= set(
        result.profile
    )
    assert all(seconds >= 0 for seconds in own.values())
    assert sum(own.values()) == pytest.approx(result.wall_seconds, abs=0.02), "the parts add up"
