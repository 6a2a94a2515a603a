"""The reference page of events, from the JSON Schema of a line of `events.jsonl`."""

from __future__ import annotations

from typing import Any

from tardigrad.core.event_log import events_schema


def page() -> str:
    """Return the page: a section for each event, with its fields."""
    schema = events_schema()
    parts = [
        "# Events",
        "`events.jsonl` is the record of a run: one JSON object in each line. This page is made from the "
        "schema that `tardigrad schema events` prints. What the fields mean is in "
        "[architecture](../architecture.md#events).",
    ]
    for event in schema["oneOf"]:
        rows = ["| field | type | always there |", "| --- | --- | --- |"]
        for name, value in event["properties"].items():
            if name != "event":
                rows.append(f"| `{name}` | {types(value)} | {'yes' if name in event['required'] else ''} |")
        others = "" if event.get("additionalProperties") is False else "\n\nOther fields may follow."
        parts.append(f"## {event['title']}\n\n{event['description']}\n\n" + "\n".join(rows) + others)
    return "\n\n".join(parts) + "\n"


def types(value: dict[str, Any]) -> str:
    """Return the JSON types of a field in words."""
    found = value.get("type", "any")
    if isinstance(found, list):
        return " or ".join(found)
    return str(found)
