"""Trackers: what they were told, read back from where they put it; and after a run was killed and went on."""

import json
import sys

import pytest

import tardigrad as td
from event_records import read_records
from tardigrad.experiments.runs.trackers import make_tracker

CONFIG = td.Config(
    algorithm=td.FedAC(lr=0.01),
    data=td.Digits(partition=td.IID(clients=20)),
    model=td.MLP(hidden=(8,)),
    pace=td.Asynchronous(concurrency=10),
    buffer=td.Buffer(size=5),
    evaluation=td.Evaluation(every_trips=20),
    stop=td.Stop(trips=100),
)


class Killed(BaseException):
    """As hard as a kill: nobody writes a snapshot."""


class After:
    """Ends the run after so many commits."""

    def __init__(self, commits, error):
        self.left, self.error = commits, error

    def begin(self, config, events):
        pass

    def see(self, events):
        self.left -= 1
        if self.left == 0:
            raise self.error

    def end(self):
        pass


def track(kind, out, commits=10**9, error=KeyboardInterrupt):
    """Run as far as that, from the start or from the last snapshot."""
    begun = (out / "config.toml").exists()
    observers = (make_tracker(kind, out), After(commits, error))
    td.run(CONFIG, out=out, resume=begun, snapshot_seconds=1e9, observers=observers)


def stopped_and_resumed(kind, out):
    """Stopped with a snapshot, then killed without one (so that points are sent twice), then to the end."""
    with pytest.raises(KeyboardInterrupt):
        track(kind, out, commits=60)
    with pytest.raises(Killed):
        track(kind, out, commits=60, error=Killed)
    track(kind, out)


def recorded(out):
    """Every curve as the record has it: points of trips and value."""
    curves = {}
    for event in read_records(out / "events.jsonl"):
        if event["event"] in ("step", "evaluation"):
            for name, value in event.items():
                if name not in ("event", "trips") and value is not None:
                    curves.setdefault(f"{event['event']}/{name}", []).append((event["trips"], value))
    return curves


def same(found, expected):
    assert set(found) == set(expected)
    for name, points in expected.items():
        assert [trips for trips, _ in found[name]] == [trips for trips, _ in points], name
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in points]), name


def written_for_tensorboard(out):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(out / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    scalars = {n: [(p.step, p.value) for p in events.Scalars(n)] for n in events.Tags()["scalars"]}
    texts = {n: events.Tensors(n)[-1].tensor_proto.string_val[0].decode() for n in events.Tags()["tensors"]}
    return scalars, texts, events


def test_tensorboard_has_each_point_once_after_a_resumption(tmp_path):
    pytest.importorskip("tensorboard")
    out = tmp_path / "run"
    stopped_and_resumed("tensorboard", out)
    scalars, texts, events = written_for_tensorboard(out)
    same(scalars, recorded(out))
    assert {"evaluation/accuracy", "evaluation/loss", "step/training_loss", "step/cosine"} <= set(scalars)
    assert 'kind = "fedac"' in texts["config/text_summary"]
    assert '"client_trips": 100' in texts["summary/text_summary"]
    plugin = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"algorithm.control_scale" in plugin


def test_mlflow_has_each_point_once_after_a_resumption(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    out = tmp_path / "run"
    stopped_and_resumed("mlflow", out)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("tardigrad")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["algorithm.kind"] == "fedac"
    assert run.data.params["stop.trips"] == "100"
    assert json.loads(run.data.tags["summary"])["client_trips"] == 100
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    same({n: sorted((p.step, p.value) for p in points) for n, points in histories.items()}, recorded(out))


def records(file):
    """The records of an offline file: blocks of 32 KiB, a record whole or in parts."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, parts = file.read_bytes(), 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def test_wandb_has_each_point_once_after_a_resumption(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    out = tmp_path / "run"
    stopped_and_resumed("wandb", out)
    files = sorted(out.glob("wandb/offline-run-*/run-*.wandb"), key=lambda file: file.stat().st_mtime_ns)
    assert len(files) == 3
    assert len({file.name for file in files}) == 1, "one run, in three parts"
    curves, summary = {}, {}
    for file in files:
        for record in records(file):
            if record.HasField("history"):
                items = {i.key or i.nested_key[0]: json.loads(i.value_json) for i in record.history.item}
                trips = record.history.step.num
                for name, value in items.items():
                    if "/" in name:
                        curves.setdefault(name, []).append((trips, value))
            for item in record.summary.update:
                summary[item.key or item.nested_key[0]] = json.loads(item.value_json)
    same(curves, recorded(out))
    assert summary["client_trips"] == 100


@pytest.mark.parametrize(
    ("kind", "package"),
    [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")],
)
def test_missing_package_is_named(kind, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(td.ConfigError, match=rf"--track {kind} needs .*pip install .*'\.\[{kind}\]'"):
        make_tracker(kind, tmp_path)


def test_unknown_tracker_and_missing_folder_are_refused(tmp_path):
    with pytest.raises(td.ConfigError, match="must be one of tensorboard, mlflow, wandb"):
        make_tracker("tensorbord", tmp_path)
    with pytest.raises(td.ConfigError, match="needs --out"):
        make_tracker("tensorboard", None)
