"""The limits of a server: one table of the config."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, NonNegativeFloat, PositiveFloat, PositiveInt

from tardigrad.core.setting import Setting


def _multiple(value: float) -> float:
    if value != 0 and value < 1:
        raise ValueError("must be at least 1, or 0 for no such limit")
    return value


class ServiceSettings(Setting):
    """What a server allows its clients."""

    population: PositiveInt | None = None
    """How many clients there are, which some algorithms use. Default: those of the data set, or without one
    those that are enrolled when the run begins."""
    ticket_seconds: PositiveFloat = 3600.0
    """A client that does not return for so long has given up."""
    requests_per_second: PositiveFloat = 20.0
    """Of one client, on average over a second or so; what is more is sent away."""
    reception_bytes: PositiveInt = 2**30
    """Uploads that are held in memory at once; further ones wait."""
    idle_seconds: PositiveFloat = 30.0
    """A client that neither sends nor takes anything for so long is cut off."""
    poll_seconds: PositiveFloat = 20.0
    """How long a client that asks for a task is kept waiting before it is told to ask again."""
    norm_bound: PositiveFloat | None = None
    """Uploads of a greater Euclidean norm, all vectors together, are refused. Not for private runs."""
    norm_multiple: Annotated[float, AfterValidator(_multiple)] = 100.0
    """Uploads whose norm is more than so many times the median of the last 200 accepted ones are refused,
    once 20 are known; 0 for no such limit. Not used in private runs, in which uploads are clipped."""
    examples_bound: PositiveInt | None = None
    """Uploads that claim more examples are refused. Not for private runs."""
    snapshot_seconds: PositiveFloat = 60.0
    """How often the journal is cut short by a snapshot."""
    linger_seconds: NonNegativeFloat = 10.0
    """How long the server stays after the end, to tell its clients: longer than the 7.5 s that a client
    which lost its connection waits at most between two tries."""
