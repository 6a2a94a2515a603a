"""The server's log: lines of text or of JSON. Text of clients is escaped and cut, so that it can neither
forge a line nor fill the disk.

Keys, nonces, signatures and vectors are never logged. Each record has its `event` and, where they are known,
`client`, `trip` and `why`; and on a server with several runs the name of the `run`.
"""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]
LONGEST = 500
HUNG_UP = "ExecuteBatchError raised in core"
served_run: ContextVar[str] = ContextVar("served_run", default="")
"""The name of the run that the present task or thread works for; "" on a server with one run."""
FIELDS = ("client", "trip", "why", "method", "staleness")


def harmless(text: str) -> str:
    """Return the text with control characters escaped, and cut to a limited length.

    >>> harmless("ann\\nERROR \\x1b[2J")
    'ann\\\\nERROR \\\\x1b[2J'
    """
    cut = text if len(text) <= LONGEST else text[:LONGEST] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


class TextLines(logging.Formatter):
    """Formats records as lines of text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        run = f"[{served_run.get()}] " if served_run.get() else ""
        return f"{_time(record)} {record.levelname} {run}{harmless(record.getMessage())}"


class JsonLines(logging.Formatter):
    """Formats records as JSON: time, level, event, message and, where known, client, trip and why."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        fields: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "message"),
            "message": harmless(record.getMessage()),
        }
        if served_run.get():
            fields["run"] = served_run.get()
        for name in FIELDS:
            value = getattr(record, name, None)
            if value not in (None, ""):
                fields[name] = value if isinstance(value, int | float) else harmless(str(value))
        if record.exc_info is not None and record.exc_info[1] is not None:
            fields["error"] = harmless(repr(record.exc_info[1]))
        return json.dumps(fields)


def _worth_a_line(record: logging.LogRecord) -> bool:
    """Return whether to log a record. gRPC logs an error when a client hangs up before its answer is sent,
    which is normal."""
    return not (record.name.startswith("grpc") and HUNG_UP in str(record.msg))


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def log_to_stderr(format: LogFormat = "text", level: str = "info") -> None:
    """Log to stderr from this level on, and warnings of other libraries."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    handler.addFilter(_worth_a_line)
    if format == "text":  # `serve` prints this line itself
        handler.addFilter(lambda record: getattr(record, "event", "") != "listening")
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("tardigrad").setLevel(level.upper())
