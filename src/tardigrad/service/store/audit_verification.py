"""Verification of an audit log: its chain of hashes, and its end as far as the run's folder tells."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from tardigrad.errors import RunError
from tardigrad.service.store.audit_log import FIRST, AuditHead, read_lines

SNAPSHOT, STATUS_FILE = "snapshot.safetensors", "status.json"


def verified(file: Path) -> list[dict[str, object]]:
    """Return the lines of an audit log, or raise a RunError that names the first that is broken or missing.

    Lines that were cut off at the end are noticed if the snapshot or the status in the same folder knows of
    them.
    """
    lines = read_lines(file) if file.exists() else []
    for name, head in (
        (SNAPSHOT, _head_of_snapshot(file.with_name(SNAPSHOT))),
        (STATUS_FILE, _head_of_status(file.with_name(STATUS_FILE))),
    ):
        if head.number > len(lines):
            raise RunError(
                f"{file}, line {len(lines) + 1}: is missing: {name} knows of {head.number} acts, and the "
                f"file has {len(lines)}; lines were cut off at its end"
            )
        if head.number and lines[head.number - 1]["hash"] != head.hash:
            raise RunError(
                f"{file}, line {head.number}: is broken: {name} has another hash for it; the file was "
                "written anew"
            )
    return lines


def _head_of_snapshot(file: Path) -> AuditHead:
    """Return the last line that a snapshot knows of. Its tensors are not read."""
    if not file.exists():
        return AuditHead()
    try:
        with safe_open(file, framework="pt") as opened:
            document = json.loads((opened.metadata() or {})["text"])["document"]
        return AuditHead(*document.get("audit", ()))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{file}: is damaged ({error}), so that the audit log cannot be compared") from None


def _head_of_status(file: Path) -> AuditHead:
    """Return the last line that the status knows of. It is written every second and need not survive a crash,
    so that a damaged one tells nothing."""
    try:
        status = json.loads(file.read_bytes())
        return AuditHead(int(status.get("acts", 0)), str(status.get("last_act") or FIRST))
    except (OSError, ValueError, TypeError, AttributeError):
        return AuditHead()
