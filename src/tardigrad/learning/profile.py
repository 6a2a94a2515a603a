"""Measure how much time each kind of work takes."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import TracebackType

OFF: nullcontext[None] = nullcontext()


class Part:
    """A `with` block whose time is counted as one kind of work."""

    def __init__(self, profile: Profile, name: str) -> None:
        self._profile, self._name = profile, name

    def __enter__(self) -> None:
        self._profile.begin(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._profile.end()


class Profile:
    """Seconds spent on each kind of work. Time in a nested part counts only for the inner part, so the parts
    add up to the whole.

    >>> profile = Profile()
    >>> with profile.part("training"):
    ...     with profile.part("data"):
    ...         pass
    >>> sorted(profile.seconds)
    ['data', 'training']
    """

    def __init__(self, on: bool = True) -> None:
        self.on = on
        """If False, nothing is measured."""
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    def part(self, name: str) -> Part | nullcontext[None]:
        """Return a context manager; time inside it counts as `name`."""
        return Part(self, name) if self.on else OFF

    def begin(self, name: str) -> None:
        """Count time as `name` from now on."""
        self._charge()
        self._open.append(name)

    def end(self) -> None:
        """Count time as before the last `begin`."""
        self._charge()
        self._open.pop()

    def take(self) -> dict[str, float]:
        """Return the seconds so far, and start again from zero."""
        taken = dict(self.seconds)
        self.seconds.clear()
        return taken

    def restart(self) -> None:
        """Forget all measurements and open parts, as a new process must after a fork."""
        self.seconds.clear()
        self._open.clear()

    def add(self, seconds: dict[str, float]) -> None:
        """Add the seconds that another process measured."""
        for name, spent in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + spent

    def _charge(self) -> None:
        """Add the time since the last call to the innermost open part."""
        now = time.perf_counter()
        if self._open:
            name = self._open[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now
