"""The reference page of events, from the JSON Schema of a line of `events.jsonl`."""

from __future__ import annotations

from typing import Any

import source_code
from markdown_text import table
from tardigrad.core.event_log import events_schema
from tardigrad.core.events import EVENTS


def page() -> str:
    """Return the page: a section for each event, with its fields."""
    schema = events_schema()
    parts = [
        "# Events",
        "`events.jsonl` is the record of a run: one JSON object in each line. This page is made from the "
        "schema that `tardigrad schema events` prints, and the docstrings of the events. "
        "[Architecture](../architecture.md#events) says more.",
    ]
    for event in schema["oneOf"]:
        kind = EVENTS[event["title"]]
        node = source_code.definition(kind.__module__, kind.__name__)
        meanings = {field.name: field.meaning for field in source_code.fields(node)}
        rows = [
            (f"`{name}`", types(value), "yes" if name in event["required"] else "", meanings[name])
            for name, value in event["properties"].items()
            if name != "event"
        ]
        parts += [f"## {event['title']}", event["description"]]
        parts += table(("field", "type", "always there", "meaning"), rows)
        if "metrics" in meanings:
            parts.append(f"Other fields may follow. {meanings['metrics']}")
    return "\n\n".join(parts) + "\n"


def types(value: dict[str, Any]) -> str:
    """Return the JSON types of a field in words."""
    found = value.get("type", "any")
    if isinstance(found, list):
        return " or ".join(found)
    return str(found)
