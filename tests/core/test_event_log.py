"""Writing and reading events: their lines, damaged files, their JSON Schema, and the documented table."""

import io
import json
import math
import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import jsonschema
import pytest

import tardigrad as td
from tardigrad.core.event_log import (
    event_of,
    events_schema,
    from_record,
    read_events,
    to_record,
    write_events,
)
from tardigrad.core.events import (
    EVENTS,
    CheckInRefused,
    ModelEvaluated,
    ModelMoved,
    RunEnded,
    RunStarted,
    TripGivenUp,
    UploadReceived,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "architecture.md"

UPLOAD = UploadReceived(
    trip=4, client="ann", start_time=0.5, time=1.25, start_version=2, version=3, staleness=1, weight=0.5,
    accepted=True, reason=None, step=4,
)  # fmt: skip
LINES = {
    "start": (
        RunStarted(schema=1, seed=7, oracle=False),
        '{"event": "start", "schema": 1, "seed": 7, "oracle": false}',
    ),
    "upload": (
        UPLOAD,
        '{"event": "upload", "trip": 4, "client": "ann", "start_time": 0.5, "time": 1.25, '
        '"start_version": 2, "version": 3, "staleness": 1, "weight": 0.5, "accepted": true, '
        '"reason": null, "step": 4}',
    ),
    "upload of an unknown trip": (
        UploadReceived(9, None, None, 2.0, None, 3, None, 0.0, False, "unknown trip", None),
        '{"event": "upload", "trip": 9, "client": null, "start_time": null, "time": 2.0, '
        '"start_version": null, "version": 3, "staleness": null, "weight": 0.0, "accepted": false, '
        '"reason": "unknown trip", "step": null}',
    ),
    "give up": (
        TripGivenUp(trip=5, client=3, start_time=0.5, time=1.5, start_version=2),
        '{"event": "give_up", "trip": 5, "client": 3, "start_time": 0.5, "time": 1.5, "start_version": 2}',
    ),
    "turned away": (
        CheckInRefused(client=3, time=1.5, reason="full"),
        '{"event": "turned_away", "client": 3, "time": 1.5, "reason": "full"}',
    ),
    "step": (
        ModelMoved(version=1, trips=2, time=3.5, bytes=0, training_loss=0.25, metrics={"epsilon": 1.5}),
        '{"event": "step", "version": 1, "trips": 2, "time": 3.5, "bytes": 0, "training_loss": 0.25, '
        '"epsilon": 1.5}',
    ),
    "discarded step": (
        ModelMoved(version=1, trips=2, time=3.5, bytes=4, discarded=True),
        '{"event": "step", "version": 1, "trips": 2, "time": 3.5, "bytes": 4, "training_loss": null, '
        '"discarded": true}',
    ),
    "evaluation": (
        ModelEvaluated(version=1, trips=2, time=3.5, bytes=0, metrics={"loss": 2.0, "accuracy": 0.5}),
        '{"event": "evaluation", "version": 1, "trips": 2, "time": 3.5, "bytes": 0, "loss": 2.0, '
        '"accuracy": 0.5}',
    ),
    "federated evaluation": (
        ModelEvaluated(1, 2, 3.5, 4, federated=True, clients=3, examples=9, metrics={"loss": 2.0}),
        '{"event": "evaluation", "version": 1, "federated": true, "clients": 3, "examples": 9, "loss": 2.0, '
        '"trips": 2, "time": 3.5, "bytes": 4}',
    ),
    "end": (
        RunEnded(reason="trips", version=1, trips=2, time=3.5, bytes=4),
        '{"event": "end", "reason": "trips", "version": 1, "trips": 2, "time": 3.5, "bytes": 4}',
    ),
}
CASES = pytest.mark.parametrize(("event", "line"), LINES.values(), ids=LINES)


def written(*events):
    file = io.BytesIO()
    write_events(file, events)
    return file.getvalue()


def test_every_kind_of_event_is_tested():
    assert {event.kind for event, _ in LINES.values()} == set(EVENTS)


@CASES
def test_event_is_written_to_its_line_and_read_from_it(event, line, tmp_path):
    assert written(event).decode() == line + "\n"
    (tmp_path / "events.jsonl").write_text(line + "\n")
    assert list(read_events(tmp_path / "events.jsonl")) == [event]
    assert event_of(line.encode()) == event


@CASES
def test_event_is_immutable_and_has_no_other_attributes(event, line):
    with pytest.raises(FrozenInstanceError):
        setattr(event, fields(event)[0].name, 0)
    assert not hasattr(event, "__dict__")


def test_events_of_a_run_are_read_and_written_again_byte_for_byte(tmp_path):
    td.run(
        data=td.Synthetic(clients=8, examples=20), model=td.MLP(hidden=(4,)), buffer=td.Buffer(size=3),
        pace=td.Asynchronous(concurrency=4), delay=td.HalfNormal(give_up=0.2), stop=td.Stop(trips=40),
        evaluation=td.Evaluation(every_steps=2), out=tmp_path,
    )  # fmt: skip
    content = (tmp_path / "events.jsonl").read_bytes()
    assert written(*read_events(tmp_path / "events.jsonl")) == content
    lines = [json.loads(line) for line in content.splitlines()]
    assert {line["event"] for line in lines} >= {"start", "upload", "give_up", "step", "evaluation", "end"}
    for line in lines:
        jsonschema.validate(line, events_schema())


def test_lines_of_earlier_versions_are_read():
    assert from_record({"event": "start", "schema": 1, "seed": 7}) == RunStarted(1, 7, oracle=False)
    refused = {"event": "turned_away", "client": 3, "reason": "full"}
    assert from_record(refused) == CheckInRefused(client=3, time=None, reason="full")
    assert to_record(from_record(refused)) == refused
    step = {"event": "step", "version": 1, "trips": 2, "time": 3.5, "training_loss": 0.5, "alpha": 0.25}
    assert from_record(step) == ModelMoved(1, 2, 3.5, 0, 0.5, discarded=False, metrics={"alpha": 0.25})
    end = {"event": "end", "reason": "trips", "version": 1, "trips": 2, "time": 3.5}
    assert from_record(end) == RunEnded("trips", 1, 2, 3.5, 0)
    for record in (refused, step, end):
        jsonschema.validate(record, events_schema())


def test_numbers_that_are_not_finite_are_null_and_read_as_missing():
    metrics = {"loss": math.inf, "accuracy": 0.5, "groups": [math.nan, 1.0]}
    line = written(ModelEvaluated(1, 2, math.nan, metrics=metrics))
    assert json.loads(line)["time"] is None
    event = event_of(line)
    assert math.isnan(event.time)
    assert event.metrics == {"loss": None, "accuracy": 0.5, "groups": [None, 1.0]}
    assert event.metric("loss") is None
    assert event.metric("groups") is None
    assert event.metric("f1") is None
    assert event.metric("accuracy") == 0.5
    jsonschema.validate(json.loads(line), events_schema())


def test_last_line_that_was_cut_off_is_left_out(tmp_path):
    whole = written(UPLOAD)
    for length in range(len(whole)):
        (tmp_path / "events.jsonl").write_bytes(whole + whole[:length])
        assert list(read_events(tmp_path / "events.jsonl")) == [UPLOAD]


NOT_EVENTS = (
    b"", b"nonsense", b"{}", b"[]", b"null", b'{"event": "step', b'{"event": "lunch"}', b'{"event": []}',
    b"\xff",
)  # fmt: skip


@pytest.mark.parametrize("line", NOT_EVENTS)
def test_line_that_is_no_event_is_named(tmp_path, line):
    (tmp_path / "events.jsonl").write_bytes(written(UPLOAD) + line + b"\n" + written(UPLOAD))
    with pytest.raises(td.RunError, match=r"events\.jsonl, line 2: not an event"):
        list(read_events(tmp_path / "events.jsonl"))
    assert event_of(line + b"\n") is None


@CASES
def test_event_with_a_damaged_field_is_named_with_its_line(event, line, tmp_path):
    file = tmp_path / "events.jsonl"
    names = [name for name in json.loads(line) if name not in ("event", *getattr(event, "metrics", ()))]
    for name in set(names) - {"schema"}:
        damaged = json.loads(line) | {name: {"not": "a value"}}
        file.write_bytes(written(UPLOAD) + json.dumps(damaged).encode() + b"\n")
        with pytest.raises(td.RunError, match=rf"events\.jsonl: the event in line 2 is damaged \({name} is"):
            list(read_events(file))
        assert event_of(json.dumps(damaged).encode()) is None
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(damaged, events_schema())


@CASES
def test_event_without_a_required_field_is_named_with_its_line(event, line, tmp_path):
    file = tmp_path / "events.jsonl"
    required = next(one for one in events_schema()["oneOf"] if one["title"] == event.kind)["required"]
    assert required[0] == "event"
    for name in set(required) - {"event"}:
        record = json.loads(line)
        del record[name]
        file.write_text(json.dumps(record) + "\n")
        with pytest.raises(td.RunError, match=rf"the event in line 1 is damaged \({name} is missing\)"):
            list(read_events(file))


@pytest.mark.parametrize(("name", "value"), [("trip", True), ("trip", 1.5), ("accepted", 1), ("reason", 3)])
def test_value_of_another_type_is_refused(name, value):
    with pytest.raises(ValueError, match=rf"^{name} is {value}, not "):
        from_record(to_record(UPLOAD) | {name: value})


def test_events_of_another_schema_are_refused(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"event": "start", "schema": 2, "sown": 7}\n')
    with pytest.raises(td.RunError, match=r"events\.jsonl: its events have the schema 2; 1 can be read"):
        list(read_events(tmp_path / "events.jsonl"))


@CASES
def test_schema_accepts_every_line_that_is_written(event, line):
    jsonschema.Draft202012Validator.check_schema(events_schema())
    jsonschema.validate(json.loads(line), events_schema())


def test_documented_events_and_fields_are_those_of_the_code():
    section = DOCUMENT.read_text().split("## Events\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", section, re.MULTILINE)
    documented = {kind: set(re.findall(r"`(\w+)`", cell)) for kind, cell in rows if kind != "event"}
    defined = {kind: {one.name for one in fields(of)} - {"metrics"} for kind, of in EVENTS.items()}
    assert documented == defined
