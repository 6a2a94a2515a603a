"""What clients report of their own evaluation: known names and finite numbers, whatever they send."""

import asyncio
import io
import json
import logging
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from service_harness import Puppet, serving
from test_status import GOOD
from typer.testing import CliRunner

import tardigrad as td
from tardigrad.cli import app
from tardigrad.core.events import ModelEvaluated, ModelMoved, RunPosition
from tardigrad.core.plain_json import plain_json
from tardigrad.experiments.config.reading import parse_config
from tardigrad.experiments.runs.run_folder import RunFolder
from tardigrad.experiments.runs.run_tables import show_summary
from tardigrad.service.client.app import Client
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.monitor.status import FILE, Status, write_status
from tardigrad.service.server.client_evaluations import ClientEvaluations


def module():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 2)


def config(**evaluation):
    return td.Config(
        data=None, model=None, pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=1),
        stop=td.Stop(trips=50),
        evaluation=td.Evaluation(every_steps=1, **evaluation), local=td.Local(steps=1),
        service={"requests_per_second": 1000, "population": 2, "norm_multiple": 0},
    )  # fmt: skip


def run_with(reports, tmp_path, **evaluation):
    """A client reports these, trip after trip; the coordinator's tally, and the federated evaluations."""
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] > 0).long()

    async def scene():
        async with (
            serving(config(**evaluation), tmp_path, model=module()) as running,
            running.connect("ann") as connection,
        ):
            trainee = ClientTrainer("ann", Client(module(), (x, y), held_out=(x, y)))
            ann = Puppet(connection, trainee, tmp_path / "ann")
            for metrics in reports:
                trip = await ann.fetch()
                assert ann.holding[trip].evaluate
                trained = ann.trainee.train(ann.holding.pop(trip), {})
                changed = replace(trained, metrics=trained.metrics | metrics)
                assert (await connection.deliver(changed)).accepted
            assert running.refusals == {}
            return running

    running = asyncio.run(scene())
    return running, [event for event in running.record.events if event["event"] == "evaluation"]


FIELDS = {"event", "version", "federated", "clients", "examples", "trips", "time", "bytes"}


def test_only_known_names_and_finite_numbers_are_taken(tmp_path, caplog):
    reports = [
        {"[/]": 1.0, "event": 5.0, "version": 77.0, "time": -1.0},
        {"accuracy": 1e308, "loss": float("nan")},
        {"accuracy": float("inf")},
        *({f"name {number}": 1.0} for number in range(20)),
        {f"name {number}": 1.0 for number in range(500)},
        {},
    ]
    running, events = run_with(reports, tmp_path)
    assert set().union(*events) == FIELDS | {"loss", "accuracy"}
    assert [event["event"] for event in events] == ["evaluation"] * len(events)
    assert [event["version"] for event in events] == [
        number for number in range(len(reports)) if number != 1  # of which nothing was left
    ]  # fmt: skip
    assert all(0 <= event.get("accuracy", 0) <= 1 for event in events)
    assert running.coordinator.counters.metrics_dropped == 4 + 2 + 1 + 20 + 500
    warned = [r for r in caplog.records if r.levelno == logging.WARNING and "are dropped" in r.getMessage()]
    assert len(warned) == 1


def test_metrics_that_the_config_names_are_taken(tmp_path):
    running, events = run_with([{"f1": 0.25, "f2": 0.5}] * 2, tmp_path, metrics=("f1",))
    assert [event["f1"] for event in events] == [0.25, 0.25]
    assert not any("f2" in event for event in events)
    assert running.coordinator.counters.metrics_dropped == 2


@pytest.mark.parametrize("name", ["version", "event", "federated", "[/]", "", "a b", "x" * 65])
def test_a_name_that_cannot_be_a_metrics_is_refused(name):
    with pytest.raises(td.ConfigError, match=r"evaluation\.metrics"):
        parse_config({"evaluation": {"metrics": [name]}}, "run.toml")


def test_reports_of_the_largest_numbers_have_a_finite_mean():
    reports = ClientEvaluations()
    for _ in range(1000):
        reports.enter(0, 2**31, {"loss": 1e30})
    (found,) = reports.finished([0], RunPosition())
    assert found.metrics["loss"] == pytest.approx(1e30)


def test_status_prints_any_name(tmp_path):
    odd = {"[/]": 1.0, "[red]": 2.0}
    status = Status(**(GOOD | {"metrics": odd, "uploads_refused": {"[/]": 1}, "last_seen": {"[/x]": 1.0}}))
    write_status(tmp_path, status)
    told = CliRunner().invoke(app, ["status", str(tmp_path), "--once"], catch_exceptions=False).stdout
    assert "[/] 1" in told
    assert "[red] 2" in told


def test_a_summary_prints_any_name():
    text = io.StringIO()
    summary = {"metrics": {"[/]": 1.0}, "refused": {"[/b]": 2}, "stopped_by": "[/c]"}
    show_summary(summary, Console(file=text, width=200))
    for told in ("[/]", "[/b]: 2", "[/c]"):
        assert told in text.getvalue()


def strict(text):
    def none(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=none)


NOT_FINITE = {"a": float("nan"), "b": [float("inf"), 1.5, {"c": -float("inf")}], "d": "NaN", "e": (1.0,)}


def test_numbers_that_are_not_finite_are_null():
    expected = {"a": None, "b": [None, 1.5, {"c": None}], "d": "NaN", "e": [1.0]}
    assert strict(plain_json(NOT_FINITE)) == expected
    assert plain_json({"a": 1.5, "b": [True, None]}) == json.dumps({"a": 1.5, "b": [True, None]})


def test_no_file_of_a_run_has_nan_or_infinity(tmp_path):
    directory = RunFolder(tmp_path / "run")
    directory.create(td.Config(), {})
    directory.record(
        [
            ModelMoved(*RunPosition(), metrics=NOT_FINITE),
            ModelEvaluated(*RunPosition(), metrics={"loss": float("inf")}),
        ]
    )
    directory.finish({"w": torch.zeros(1)}, {"loss": float("nan"), "model_sha256": ""})
    directory.close()
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    assert [strict(line)["event"] for line in lines] == ["start", "step", "evaluation"]
    assert strict((tmp_path / "run" / "summary.json").read_text())["loss"] is None
    write_status(tmp_path, Status(**(GOOD | {"metrics": {"loss": float("nan")}})))
    assert strict((tmp_path / FILE).read_text())["metrics"] == {"loss": None}
    told = CliRunner().invoke(app, ["status", str(tmp_path), "--once", "--json"], catch_exceptions=False)
    assert strict(told.stdout)["metrics"] == {"loss": None}
    told = CliRunner().invoke(app, ["status", str(tmp_path), "--once"], catch_exceptions=False)
    assert "loss not finite" in told.stdout


def test_metric_is_averaged_over_the_clients_that_have_it_also_after_a_restart():
    reports = ClientEvaluations()
    reports.enter(0, 10, {"loss": 1.0})
    reports.enter(0, 30, {"loss": 2.0, "auc": 0.9})
    again = ClientEvaluations()
    again.restore(json.loads(json.dumps(reports.state())))
    for one in (reports, again):
        one.enter(0, 10, {"loss": 3.0, "auc": 0.5})
        one.enter(0, 50, {"loss": 1.0})
        (event,) = one.finished([0], RunPosition())
        assert event.metrics == pytest.approx({"loss": 1.5, "auc": 0.8})
    old = {"rows": reports.state()["rows"], "metrics": {}}
    again.restore(old)
