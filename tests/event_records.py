"""The events of a run as dicts, for tests that compare and filter them by key."""

import json

from tardigrad.core.event_log import to_record


def records(run):
    """Iterate over what `Engine.run` yields, with the record of each event in its place."""
    for events in run:
        yield [to_record(event) for event in events]


def read_records(file):
    """Return the records of the whole lines of an events.jsonl."""
    lines = file.read_bytes().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")]
