"""Paces: which clients may start when, as far as bookkeeping must know it.

A pace is a setting. Bookkeeping asks it how many more clients may start now (`capacity`). The driver decides
when clients check in: in virtual time in a simulation, when real clients call on a server.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from tardigrad.core.setting import Setting, by_name

UNLIMITED = 2**62


class _Pace(Setting):
    in_rounds: ClassVar[bool] = False
    """Whether an upload of an older version is too late to count."""
    queues: ClassVar[bool] = False
    """Whether a client that is training may be given further tasks, which it does one after the other."""

    @abstractmethod
    def capacity(self, in_flight: int, this_version: int) -> int:
        """Return how many more clients may start now.

        `in_flight`: the number of trips under way; if tasks queue, plus the uploads in the buffer.
        `this_version`: the number of trips from the current version that are under way or were accepted.
        """


class Asynchronous(_Pace):
    """A fixed number of clients train: when one returns, another starts (closed loop).

    >>> Asynchronous(concurrency=10).capacity(in_flight=7, this_version=2)
    3
    """

    kind: Literal["asynchronous"] = "asynchronous"
    concurrency: PositiveInt = 100
    """How many clients train at any time."""

    def capacity(self, in_flight: int, this_version: int) -> int:
        return self.concurrency - in_flight


class Arrivals(_Pace):
    """Clients check in at a fixed rate, whatever the server does (open loop)."""

    kind: Literal["arrivals"] = "arrivals"
    rate: PositiveFloat = 100.0
    """Clients that start per unit of time; the concurrency is rate times mean delay."""
    process: Literal["constant", "poisson"] = "constant"
    """Evenly spaced, or at random with exponential gaps."""
    concurrency: PositiveInt | None = None
    """The most clients that may train at once; further ones are refused."""

    def capacity(self, in_flight: int, this_version: int) -> int:
        return UNLIMITED if self.concurrency is None else self.concurrency - in_flight


class Synchronous(_Pace):
    """Rounds: clients start together, and the first `cohort` uploads make the step.

    >>> Synchronous(cohort=8, selected=10).capacity(in_flight=3, this_version=3)
    7
    """

    kind: Literal["synchronous"] = "synchronous"
    in_rounds: ClassVar[bool] = True
    cohort: PositiveInt = 10
    """How many uploads close a round."""
    selected: PositiveInt | None = None
    """How many start (over-selection); uploads that arrive after the round closed do not count."""

    @model_validator(mode="after")
    def _enough_selected(self) -> Synchronous:
        if self.selected is not None and self.selected < self.cohort:
            raise ValueError(
                f"selected must be at least cohort ({self.cohort}), or the round never closes; "
                f"{self.selected} was given"
            )
        return self

    def capacity(self, in_flight: int, this_version: int) -> int:
        return (self.selected or self.cohort) - this_version


class Poisson(_Pace):
    """At each step every client joins with the same probability, independently of all others."""

    kind: Literal["poisson"] = "poisson"
    probability: float = Field(default=0.1, gt=0, le=1)
    """The chance of one client to join at one step."""

    def capacity(self, in_flight: int, this_version: int) -> int:
        return UNLIMITED


class Queued(_Pace):
    """At each step as many clients are drawn as contributed to it, and are given the new model. A client that
    is training does the new task afterwards."""

    kind: Literal["queued"] = "queued"
    queues: ClassVar[bool] = True
    concurrency: PositiveInt = 100
    """How many tasks are given out at first, and are open after each step."""

    def capacity(self, in_flight: int, this_version: int) -> int:
        return self.concurrency - in_flight


class SampledStaleness(_Pace):
    """Staleness is drawn, not simulated: uniformly from 0 to `maximum`, as in FedAsync's experiments."""

    kind: Literal["sampled_staleness"] = "sampled_staleness"
    maximum: NonNegativeInt = 4
    """The largest staleness that is drawn."""

    def capacity(self, in_flight: int, this_version: int) -> int:
        return UNLIMITED


class Scripted(_Pace):
    """Exactly these trips: a list of [start, duration, client], or a CSV file of client,start,duration."""

    kind: Literal["scripted"] = "scripted"
    trips: tuple[tuple[float, float, int], ...] = ()
    """[start, duration, client] of every trip; clients are counted from 0."""
    file: Path | None = None
    """A CSV file with the columns client, start, duration, in place of `trips`."""

    @model_validator(mode="after")
    def _one_source(self) -> Scripted:
        if bool(self.trips) == (self.file is not None):
            raise ValueError("give either trips = [[start, duration, client], ...] or file = 'trace.csv'")
        for start, duration, client in self.trips:
            check_trip(start, duration, client)
        return self

    def capacity(self, in_flight: int, this_version: int) -> int:
        return UNLIMITED


def check_trip(start: float, duration: float, client: int) -> None:
    """Raise a ValueError if a scripted trip is impossible."""
    for word, value in (("start", start), ("duration", duration), ("client", client)):
        if not value >= 0 or value == float("inf"):
            raise ValueError(f"a trip's {word} must be a number that is not negative; {value} was given")


Pace = Annotated[
    Asynchronous | Arrivals | Synchronous | Poisson | Queued | SampledStaleness | Scripted,
    Field(discriminator="kind"),
    by_name,
]
