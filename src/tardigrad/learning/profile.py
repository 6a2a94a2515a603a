"""Where a run's time goes."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import TracebackType

OFF: nullcontext[None] = nullcontext()


class Part:
    """One kind of work, for a `with` block."""

    def __init__(self, profile: Profile, name: str) -> None:
        self._profile, self._name = profile, name

    def __enter__(self) -> None:
        self._profile.begin(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._profile.end()


class Profile:
    """Seconds by kind of work. What happens inside another part counts for the inner one alone, so that all
    parts add up.

    >>> profile = Profile()
    >>> with profile.part("training"):
    ...     with profile.part("data"):
    ...         pass
    >>> sorted(profile.seconds)
    ['data', 'training']
    """

    def __init__(self, on: bool = True) -> None:
        self.on = on
        """Off, it measures nothing, and costs next to nothing."""
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    def part(self, name: str) -> Part | nullcontext[None]:
        """A `with` block whose time counts as `name`."""
        return Part(self, name) if self.on else OFF

    def begin(self, name: str) -> None:
        """From now on, time counts as `name`."""
        self._charge()
        self._open.append(name)

    def end(self) -> None:
        """Back to what it was before."""
        self._charge()
        self._open.pop()

    def take(self) -> dict[str, float]:
        """All so far, to be added elsewhere; it counts from 0 again here."""
        taken = dict(self.seconds)
        self.seconds.clear()
        return taken

    def restart(self) -> None:
        """Nothing is under way and nothing was measured: this is another process now."""
        self.seconds.clear()
        self._open.clear()

    def add(self, seconds: dict[str, float]) -> None:
        """What another process has taken."""
        for name, spent in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + spent

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._open:
            name = self._open[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now
