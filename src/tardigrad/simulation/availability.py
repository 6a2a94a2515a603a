"""Availability: in which windows of virtual time a client is there.

A client starts a trip only while it is there, and a trip that lasts beyond the end of the window is given up
at that moment. These are the settings; `simulation/presence.py` works out who is there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from tardigrad.core.setting import Setting, by_name
from tardigrad.simulation.trace_file import TraceRow, read_rows

Windows = dict[int, list[tuple[float, float]]]
"""For each client, the beginning and the end of each window, in order, without overlap."""


class Always(Setting):
    """Every client is there all the time."""

    kind: Literal["always"] = "always"


class DayNight(Setting):
    """Every client is there for the same part of each day, and clients live in different time zones."""

    kind: Literal["day_night"] = "day_night"
    period: PositiveFloat = 86400.0
    """The length of a day, in the unit of the delays."""
    on: PositiveFloat = 28800.0
    """For how long a client is there each day, in the same unit."""
    zones: PositiveInt = 24
    """The number of time zones, evenly spaced over the day; each client lives in a random one. With 1, all
    clients come and go together."""

    @model_validator(mode="after")
    def _part_of_a_day(self) -> DayNight:
        if self.on > self.period:
            raise ValueError(f"on must be at most period ({self.period:g}); {self.on:g} was given")
        return self


class OnOff(Setting):
    """Every client comes and goes at random: exponential times there and away."""

    kind: Literal["on_off"] = "on_off"
    on: PositiveFloat = 3600.0
    """For how long a client is there on average, in the unit of the delays."""
    off: PositiveFloat = 10800.0
    """For how long it is away on average."""


class AvailabilityTrace(Setting):
    """Measured windows. A client that the file does not have is never there."""

    kind: Literal["trace"] = "trace"
    file: Path
    """A CSV file with the columns client, start, end; clients are counted from 0, in the order in which the
    data names them."""


Availability = Annotated[Always | DayNight | OnOff | AvailabilityTrace, Field(discriminator="kind"), by_name]


def read_windows(file: Path, population: int) -> Windows:
    """Return the windows of every client of a file, with those that touch or overlap put together. Raise a
    ConfigError that names the line if a row is malformed."""

    def parse(row: TraceRow) -> tuple[int, float, float]:
        client, start, end = row.client(), row.number("start"), row.number("end")
        if not 0 <= client < population:
            raise ValueError(f"client is {client}, but the clients are 0 to {population - 1}")
        if not 0 <= start < end < float("inf"):
            raise ValueError(
                f"a window must begin at 0 or later and end after that; {start:g} to {end:g} was given"
            )
        return client, start, end

    found: Windows = {}
    columns = ("client", "start", "end")
    for client, start, end in read_rows(file, "availability.file", columns, "windows", parse):
        found.setdefault(client, []).append((start, end))
    return {client: _joined(windows) for client, windows in found.items()}


def _joined(windows: list[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start, end in sorted(windows):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
