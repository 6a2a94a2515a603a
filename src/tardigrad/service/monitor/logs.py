"""The server's log: lines of text or of JSON. What comes from outside cannot forge a line or fill the disk.

Keys, nonces, signatures and vectors are never handed to the log. Each record has its `event` and, where they
are known, `client`, `trip` and `why`.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["text", "json"]
LONGEST = 500
HUNG_UP = "ExecuteBatchError raised in core"
FIELDS = ("client", "trip", "why", "method", "staleness")


def harmless(text: str) -> str:
    """Without line breaks, escape sequences and the like, and not too long.

    >>> harmless("ann\\nERROR \\x1b[2J")
    'ann\\\\nERROR \\\\x1b[2J'
    """
    cut = text if len(text) <= LONGEST else text[:LONGEST] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


class TextLines(logging.Formatter):
    """For people."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        return f"{_time(record)} {record.levelname} {harmless(record.getMessage())}"


class JsonLines(logging.Formatter):
    """For machines: time, level, event, message, and what is known of client, trip and why."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        told: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "message"),
            "message": harmless(record.getMessage()),
        }
        for name in FIELDS:
            value = getattr(record, name, None)
            if value not in (None, ""):
                told[name] = value if isinstance(value, int | float) else harmless(str(value))
        if record.exc_info is not None and record.exc_info[1] is not None:
            told["error"] = harmless(repr(record.exc_info[1]))
        return json.dumps(told)


def _worth_a_line(record: logging.LogRecord) -> bool:
    """gRPC calls it an error if a client hangs up just before its answer is sent. Clients do that."""
    return not (record.name.startswith("grpc") and HUNG_UP in str(record.msg))


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def log_to_stderr(format: LogFormat = "text", level: str = "info") -> None:
    """Have everything written that is at least this serious; of other libraries, warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    handler.addFilter(_worth_a_line)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("tardigrad").setLevel(level.upper())
