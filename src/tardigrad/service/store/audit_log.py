"""The audit log of a run: a line for each act of an operator, each with the hash of the line before.

A line follows from the entry in the journal and from the line before it, so recovery can write lines that a
crash has prevented. They are on disk before the act is acknowledged, and before a snapshot replaces their
entries.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tardigrad.core.files import sync_folder
from tardigrad.errors import RunError
from tardigrad.service.store.contract import JournalEntry, StoreError

AUDIT = "audit.jsonl"
FIRST = "0" * 64
"""The value in the first line, in place of the hash of the line before."""
FIELDS = {"number", "time", "admin", "act", "arguments", "reason", "position", "previous", "hash"}


@dataclass(frozen=True, slots=True)
class AuditHead:
    """The last line of an audit log."""

    number: int = 0
    hash: str = FIRST


def hash_of(fields: dict[str, object]) -> str:
    """Return the SHA-256 of a line without its hash, as JSON with sorted keys and without spaces."""
    content = {name: value for name, value in fields.items() if name != "hash"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def line_of(position: int, entry: JournalEntry, before: AuditHead) -> tuple[str, AuditHead]:
    """Return the line of an act, and the head that it makes."""
    arguments: dict[str, object] = {}
    match entry.kind:
        case "eject" | "admit":
            arguments = {"client": entry.client}
        case "limits":
            arguments = json.loads(entry.limits)
        case "export":
            arguments = {"version": entry.version, "model_sha256": entry.digest.hex()}
    fields: dict[str, object] = {
        "number": before.number + 1,
        "time": datetime.fromtimestamp(entry.wall, UTC).isoformat(timespec="milliseconds"),
        "admin": entry.admin,
        "act": entry.kind,
        "arguments": arguments,
        "reason": entry.reason,
        "position": position,
        "previous": before.hash,
    }
    head = AuditHead(before.number + 1, hash_of(fields))
    return json.dumps(fields | {"hash": head.hash}) + "\n", head


def read_lines(file: Path) -> list[dict[str, object]]:
    """Return the lines of an audit log; raise a RunError that names the first one that is broken."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise RunError(f"{file}: cannot be read ({error.strerror})") from None
    found: list[dict[str, object]] = []
    previous = FIRST
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        fault = ""
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict) or fields.keys() != FIELDS:
                fault = "it does not have the fields of an act"
            elif fields["number"] != number:
                fault = f"it has the number {fields['number']}; lines are missing or were moved"
            elif fields["previous"] != previous:
                fault = "it does not follow the line before it"
            elif fields["hash"] != hash_of(fields):
                fault = "its hash is not that of its content; it was changed"
        except (ValueError, RecursionError):
            fault = "it is not JSON"
        if fault:
            raise RunError(f"{file}, line {number}: is broken: {fault}")
        previous = fields["hash"]
        found.append(fields)
    if not content.endswith(b"\n") and content:
        raise RunError(f"{file}, line {len(found) + 1}: is broken: it has no end")
    return found


class AuditLog:
    """Writes the audit log of one run. `sync` may be called from any thread."""

    def __init__(self, file: Path | None = None) -> None:
        """Without a file, lines are counted and dropped."""
        self.file = file
        self.head = AuditHead()
        """The last line, whether it is on disk or not."""
        self.synced = AuditHead()
        """The last line that is on disk."""
        self._pending: list[str] = []
        self._writing = threading.Lock()

    @property
    def pending(self) -> bool:
        """Whether there are lines that are not on disk."""
        return bool(self._pending)

    def add(self, position: int, entry: JournalEntry) -> int:
        """Append the line of an act that was applied, and return its number; `sync` writes it."""
        line, self.head = line_of(position, entry, self.head)
        self._pending.append(line)
        return self.head.number

    def sync(self) -> None:
        """Make all lines survive a power failure; raise a `StoreError` if they cannot be written now."""
        with self._writing:
            lines = list(self._pending)
            if not lines:
                return
            try:
                if self.file is not None:
                    _append(self.file, "".join(lines).encode())
            except OSError as error:
                raise StoreError(f"{self.file}: cannot be written ({error.strerror or error})") from None
            last = json.loads(lines[-1])
            self.synced = AuditHead(last["number"], last["hash"])
            del self._pending[: len(lines)]

    def recover(self, accept_loss: bool) -> bool:
        """Compare the file with what the run knows, after all entries were repeated, and write the lines that
        it lacks. Raise a RunError if acts were lost or lines changed, unless that is accepted; then the log
        goes on after its last line, or a new file is begun if it is broken. Return whether it was accepted;
        then the last snapshot does not fit the log."""
        self.synced = self.head
        if self.file is None:
            return False
        expected = [json.loads(line) for line in self._pending]
        known = self.head.number - len(expected)  # lines that are on disk by the snapshot's word
        try:
            lines = _whole_lines(self.file)
            if len(lines) < known:
                raise RunError(f"{self.file}: has {len(lines)} lines, and the run knows of {known} acts")
            if lines[known : known + len(expected)] != expected[: len(lines) - known]:
                raise RunError(f"{self.file}: has other acts than the journal; one of them was changed")
            if known and expected and lines[known - 1]["hash"] != expected[0]["previous"]:
                raise RunError(f"{self.file}, line {known}: is not the act that the run knows of")
            if known and not expected and lines[known - 1]["hash"] != self.head.hash:
                raise RunError(f"{self.file}, line {known}: is not the act that the run knows of")
            if len(lines) > self.head.number:
                raise RunError(f"{self.file}: has {len(lines)} acts, and the run knows of {self.head.number}")
        except RunError as fault:
            if not accept_loss:
                raise RunError(
                    f"{fault}; put audit.jsonl back from a backup, or --accept-loss goes on without what is "
                    "lost"
                ) from None
            self._go_on_anyway()
            return True
        del self._pending[: len(lines) - known]
        self.sync()
        return False

    def _go_on_anyway(self) -> None:
        assert self.file is not None
        self._pending.clear()
        try:
            lines = _whole_lines(self.file)
        except RunError:
            aside = self.file.with_name(f"{self.file.name}.broken-{self.head.hash[:12]}")
            self.file.replace(aside)
            lines = []
        last = lines[-1] if lines else None
        self.head = AuditHead() if last is None else AuditHead(len(lines), str(last["hash"]))
        self.synced = self.head


def _whole_lines(file: Path) -> list[dict[str, object]]:
    """Return the lines of an audit log. A last line without an end, whose writing a crash has interrupted, is
    removed: it was not acknowledged, and the journal has its entry."""
    if not file.exists():
        return []
    content = file.read_bytes()
    if content and not content.endswith(b"\n"):
        os.truncate(file, content.rfind(b"\n") + 1)
    return read_lines(file)


def _append(file: Path, content: bytes) -> None:
    """Append to a file durably, or leave it as it was."""
    new = not file.exists()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        except BaseException:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
    if new:
        sync_folder(file.parent)
