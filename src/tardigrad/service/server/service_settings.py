"""The settings of a server: the table `service` of the config."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, NonNegativeFloat, PositiveFloat, PositiveInt

from tardigrad.core.setting import Setting


def _multiple(value: float) -> float:
    if value != 0 and value < 1:
        raise ValueError("must be at least 1, or 0 for no such limit")
    return value


class ServiceSettings(Setting):
    """The limits that a server sets its clients."""

    population: PositiveInt | None = None
    """How many clients there are, which some algorithms use. Default: those of the data set, or without one
    those that are enrolled when the run begins."""
    ticket_seconds: PositiveFloat = 3600.0
    """Seconds after which a trip without an upload expires."""
    requests_per_second: PositiveFloat = 20.0
    """Requests of one client, on average over about two seconds; further ones are refused."""
    reception_bytes: PositiveInt = 2**30
    """Bytes of memory for uploads that are being received: the size of each, or 4 MiB for one of more than
    16 MiB, which is received into a file. Further uploads wait."""
    idle_seconds: PositiveFloat = 30.0
    """Seconds after which a client that neither sends nor receives anything is cut off."""
    poll_seconds: PositiveFloat = 20.0
    """Seconds that a client which asks for a task waits for one before it is told to ask again."""
    norm_bound: PositiveFloat | None = None
    """Uploads of a greater Euclidean norm, all vectors together, are refused. Not for private runs."""
    norm_multiple: Annotated[float, AfterValidator(_multiple)] = 100.0
    """Uploads whose norm is more than this many times the median of the last 200 accepted ones are refused,
    once 20 are known; 0 for no such limit. Not used in private runs, in which uploads are clipped."""
    examples_bound: PositiveInt | None = None
    """Uploads that claim more examples are refused. Not for private runs."""
    snapshot_seconds: PositiveFloat = 60.0
    """Seconds between two snapshots, each of which shortens the journal."""
    linger_seconds: NonNegativeFloat = 10.0
    """Seconds that the server listens after the end of the run, to tell its clients. A client that lost its
    connection waits at most 7.5 s between two tries."""
