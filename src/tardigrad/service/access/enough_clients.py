"""Check that enough clients are enrolled when a run begins."""

from __future__ import annotations

from pathlib import Path

from tardigrad.core.pace import Asynchronous, Pace, Queued, Synchronous
from tardigrad.errors import ConfigError


def check_enough_clients(pace: Pace | None, enrolled: int, file: Path) -> None:
    """Raise a ConfigError if the pace needs more clients than are enrolled in this file."""
    setting, needed = _needed(pace)
    if enrolled >= needed:
        return
    enroll = f"enroll more clients (`tardigrad enroll NAME --keys {file.parent}`)"
    expect = "set service.population to the number of clients that you expect"
    if not enrolled:
        raise ConfigError(f"{file}: no client is enrolled; {enroll}, or {expect}")
    are = "client is" if enrolled == 1 else "clients are"
    raise ConfigError(
        f"{file}: {enrolled} {are} enrolled, but {setting} is {needed}; {enroll}, "
        f"set {setting} to {enrolled}, or {expect}"
    )


def _needed(pace: Pace | None) -> tuple[str, int]:
    """Return the setting that says how many clients must exist, and this number."""
    match pace:
        case Synchronous(selected=int(selected)):
            return "pace.selected", selected
        case Synchronous():
            return "pace.cohort", pace.cohort
        case Asynchronous() | Queued():
            return "pace.concurrency", pace.concurrency
    return "", 1
