"""Clocks: the wall clock, which can be set at any time, and the monotonic clock, which only goes forward.

Inside a process all durations and deadlines are measured with the monotonic clock, so that a wall clock that
steps back or forward changes nothing. The wall clock is read once, when a process begins.

>>> class Stepping(Clock):
...     hours = 0.0
...     def wall(self): return 1000.0 + 3600 * self.hours
...     def monotonic(self): return 5.0
>>> clock = Stepping()
>>> time = SteadyTime(clock)
>>> clock.hours = -2.0
>>> time.now()
1000.0
"""

from __future__ import annotations

import time


class Clock:
    """The system's two clocks."""

    def wall(self) -> float:
        """Return the seconds since 1970, by a clock that can be set at any time."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds since some moment in the past; they never step."""
        return time.monotonic()


SYSTEM = Clock()


class SteadyTime:
    """The wall time at which this object was made, plus the monotonic time that has passed since."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.wall() - clock.monotonic()

    def now(self) -> float:
        """Return seconds since 1970 that do not follow the wall clock when it is set."""
        return self._offset + self._clock.monotonic()

    def now_ms(self) -> int:
        """Return the same in whole milliseconds."""
        return int(self.now() * 1000)


class RunTime:
    """The seconds for which a run has been served. They go on from the last entry after a restart, and never
    follow the wall clock.

    >>> class Fixed(Clock):
    ...     def monotonic(self): return 500.0
    >>> time = RunTime(Fixed())
    >>> time.resume(30.0)
    >>> time.now()
    30.0
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.resume(0.0)

    def resume(self, seconds: float) -> None:
        """Go on from this time of the run: the process begins to serve it now."""
        self.process_start = seconds
        self._offset = seconds - self._clock.monotonic()

    def now(self) -> float:
        """Return the time of the run."""
        return self._offset + self._clock.monotonic()
