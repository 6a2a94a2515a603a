"""Writing and reading `events.jsonl`, the record of a run. No other module writes or parses its lines.

A line of the file is a JSON object, called a record here. `event` is the kind of the event, and the other
keys are the fields of its type. The metrics of a step or an evaluation are keys beside the fields.

>>> record = to_record(ModelEvaluated(version=3, trips=30, time=1.5, bytes=900, metrics={"accuracy": 0.5}))
>>> record
{'event': 'evaluation', 'version': 3, 'trips': 30, 'time': 1.5, 'bytes': 900, 'accuracy': 0.5}
>>> from_record(record).metrics
{'accuracy': 0.5}
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType
from typing import BinaryIO, NamedTuple, get_args, get_type_hints

from tardigrad.core.events import EVENTS, Event, ModelEvaluated, RunStarted
from tardigrad.core.plain_json import plain_json
from tardigrad.errors import RunError

SCHEMA = 1
"""The version of the records. It changes when files that were written before cannot be read any more."""

_ALWAYS_WRITTEN = frozenset({"oracle", "bytes", "training_loss"})
"""Fields that have a default, because early files lack them, and are written in any case. Other fields with a
default are left out of a record when they have this value."""
_FEDERATED_ORDER = ("version", "federated", "clients", "examples", "metrics", "trips", "time", "bytes")
"""The order of keys in the record of a federated evaluation. In all others it is the order of the fields."""


def to_record(event: Event) -> dict[str, object]:
    """Return the event as it is written to a line of the file."""
    record: dict[str, object] = {"event": event.kind}
    columns = _COLUMNS[event.kind]
    federated = isinstance(event, ModelEvaluated) and event.federated
    for name in _FEDERATED_ORDER if federated else columns:
        value = getattr(event, name)
        if name == "metrics":
            record.update(value)
        elif name in _ALWAYS_WRITTEN or value != columns[name].default:
            record[name] = value
    return record


def from_record(record: Mapping[str, object]) -> Event:
    """Return the event of a record, or raise a ValueError that says what is wrong with it.

    Fields that were added later may be missing. A number that is null was not finite and becomes nan.
    """
    kind = _type_of(record)
    if kind is None:
        raise ValueError(f"there is no event {record.get('event')!r}")
    given: dict[str, object] = {}
    columns = _COLUMNS[kind.kind]
    for name, column in columns.items():
        if name == "metrics":
            given[name] = {
                key: value for key, value in record.items() if key != "event" and key not in columns
            }
        elif name in record:
            value = record[name]
            given[name] = value if type(value) in column.types else column.checked(name, value)
        elif column.default is MISSING:
            raise ValueError(f"{name} is missing")
    make: Callable[..., Event] = kind
    return make(**given)


def write_events(file: BinaryIO, events: Iterable[Event]) -> None:
    """Append events to an open file, a line for each. Numbers that are not finite are written as null."""
    for event in events:
        file.write(plain_json(to_record(event)).encode() + b"\n")


def read_events(file: Path) -> Iterator[Event]:
    """Iterate over the events of a run, in order. A last line that was cut off is left out; a line that is
    damaged raises a RunError with its number."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            record = _record_of(line)
            if record is None:
                raise RunError(f"{file}, line {number}: not an event; the file is damaged")
            schema = record.get("schema", SCHEMA)
            if record["event"] == RunStarted.kind and schema != SCHEMA:
                raise RunError(f"{file}: its events have the schema {schema}; {SCHEMA} can be read")
            try:
                event = from_record(record)
            except ValueError as error:
                raise RunError(f"{file}: the event in line {number} is damaged ({error})") from None
            yield event


def event_of(line: bytes) -> Event | None:
    """Return the event of one line, or None if the line is damaged."""
    record = _record_of(line)
    try:
        return None if record is None else from_record(record)
    except ValueError:
        return None


def events_schema() -> dict[str, object]:
    """Return the JSON Schema of a line of `events.jsonl`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of events.jsonl, schema {SCHEMA}",
        "oneOf": [_schema_of(kind) for kind in EVENTS.values()],
    }


# -- the types' fields -----------------------------------------------------------------------------

_JSON_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string", NoneType: "null"}


class _Column(NamedTuple):
    """One field of an event's type."""

    types: tuple[type, ...]
    default: object
    """The value if a record does not have it, or MISSING."""

    def checked(self, name: str, value: object) -> object:
        """Return a value whose type is none of `types` if it is valid all the same, or raise a ValueError. An
        integer is a number, and null in the place of a number was not finite."""
        if float in self.types and value is None:
            return math.nan
        if float in self.types and type(value) is int:
            return value
        if isinstance(value, self.types) and not isinstance(value, bool):
            return value  # of a subclass, such as a member of a StrEnum
        expected = " or ".join(_JSON_TYPES[one] for one in self.types)
        raise ValueError(f"{name} is {value!r}, not {expected}")

    def schema(self) -> dict[str, object]:
        """Return the JSON Schema of this field; a number may be null because it was not finite."""
        names = [_JSON_TYPES[one] for one in self.types]
        if float in self.types and NoneType not in self.types:
            names.append("null")
        return {"type": names[0] if len(names) == 1 else names}


def _columns_of(kind: type[Event]) -> dict[str, _Column]:
    hints = get_type_hints(kind)
    return {
        one.name: _Column(get_args(hints[one.name]) or (hints[one.name],), one.default)
        for one in fields(kind)
    }


_COLUMNS = {name: _columns_of(kind) for name, kind in EVENTS.items()}
"""The fields of each kind of event, in order."""


def _schema_of(kind: type[Event]) -> dict[str, object]:
    columns = dict(_COLUMNS[kind.kind])
    metrics = columns.pop("metrics", None)
    return {
        "title": kind.kind,
        "description": kind.__doc__,
        "type": "object",
        "properties": {"event": {"const": kind.kind}} | {n: column.schema() for n, column in columns.items()},
        "required": ["event", *(name for name, column in columns.items() if column.default is MISSING)],
        "additionalProperties": metrics is not None,
    }


_LONG_NUMBER = re.compile(rb"\d{19}")


def _record_of(line: bytes) -> dict[str, object] | None:
    """Return the record of a line, or None if it is not that of a known kind of event."""
    try:
        record = json.loads(line, parse_int=_bounded if _LONG_NUMBER.search(line) else None)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and _type_of(record) is not None else None


def _bounded(digits: str) -> int:
    """Return the integer that is written so; raise a ValueError if no event can have it."""
    number = int(digits)
    if abs(number) >= 2**64:
        raise ValueError("an integer is too large")
    return number


def _type_of(record: Mapping[str, object]) -> type[Event] | None:
    kind = record.get("event")
    return EVENTS.get(kind) if isinstance(kind, str) else None
