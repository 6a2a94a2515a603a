"""The events of a run: a type for each kind. `core/event_log.py` writes and reads them.

>>> event = ModelEvaluated(version=3, trips=30, time=1.5, metrics={"accuracy": 0.5})
>>> event.kind, event.metric("accuracy")
('evaluation', 0.5)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, get_args

from tardigrad.core.outcomes import Accepted, GivenUp, Refusal, Rejected
from tardigrad.core.participation import ClientId


class RunPosition(NamedTuple):
    """How far a run has come."""

    version: int = 0
    """Steps that the server has made."""
    trips: int = 0
    """Trips that ended in an upload."""
    time: float = 0.0
    """Virtual in a simulation; on a server, seconds for which the run was served."""
    bytes: int = 0
    """Sent so far, both ways."""


class _Subscriptable:
    """Supports `event["accuracy"]`, for code that was written when events were dicts."""

    __slots__ = ()

    def __getitem__(self, name: str) -> object:
        warnings.warn(
            "events are objects now: use their attributes and `metrics`, or `to_record`",
            DeprecationWarning,
            stacklevel=2,
        )
        from tardigrad.core.event_log import to_record  # which imports this module

        return to_record(self)[name]  # type: ignore[arg-type]  # only events are subclasses


@dataclass(frozen=True, slots=True)
class RunStarted(_Subscriptable):
    """The first event of a run."""

    kind: ClassVar[str] = "start"
    schema: int
    """The version of the records in this file."""
    seed: int
    """The seed of the run's config."""
    oracle: bool = False
    """Whether the algorithm uses what only a simulation can know."""
    metric: str = "accuracy"
    """The metric that targets, tables and charts are about."""
    lower_is_better: bool = False
    """Whether less of it is better."""


@dataclass(frozen=True, slots=True)
class UploadReceived(_Subscriptable):
    """A trip ended in an upload, which was accepted or refused."""

    kind: ClassVar[str] = "upload"
    trip: int
    """The number of the trip, counted from 0 in the order of starts."""
    client: ClientId | None
    """The client: a number in a simulation, a name on a server; None if the trip is not known."""
    start_time: float | None
    """When the trip started; None if it is not known."""
    time: float
    """When the upload arrived."""
    start_version: int | None
    """The version that the client downloaded; None if the trip is not known."""
    version: int
    """The version at arrival."""
    staleness: int | None
    """The steps between download and arrival; None if the trip is not known."""
    weight: float
    """Its staleness discount, times its examples where clients weigh by them; 0 if it was refused."""
    accepted: bool
    """Whether the upload counts."""
    reason: str | None
    """Why it was refused; None if it was accepted."""
    step: int | None
    """The version that its buffer makes; None if it was refused."""
    download_time: float | None = None
    """How long the download took, without the time that it waited; None if there is no simulated network."""
    compute_time: float | None = None
    """How long the client trained; None if there is no simulated network."""
    upload_time: float | None = None
    """How long the upload took; None if there is no simulated network."""

    @classmethod
    def of(
        cls,
        outcome: Accepted | Rejected,
        client: ClientId,
        times: tuple[float, float, float] | None = None,
    ) -> UploadReceived:
        """Return the event of an upload, with the client's name. `times`: how long download, training and
        upload took, if there is a simulated network."""
        ticket = outcome.ticket
        weight, reason, step = (
            (outcome.weight, None, outcome.step)
            if isinstance(outcome, Accepted)
            else (0.0, outcome.reason, None)
        )
        return cls(
            ticket.trip, client, ticket.time, outcome.time, ticket.version, outcome.version,
            outcome.staleness, weight, reason is None, reason, step, *(times or (None, None, None)),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TripGivenUp(_Subscriptable):
    """A trip ended without an upload."""

    kind: ClassVar[str] = "give_up"
    trip: int
    """The number of the trip, counted from 0 in the order of starts."""
    client: ClientId
    """The client: a number in a simulation, a name on a server."""
    start_time: float
    """When the trip started."""
    time: float
    """When the trip ended."""
    start_version: int
    """The version that the client downloaded."""

    @classmethod
    def of(cls, outcome: GivenUp, client: ClientId) -> TripGivenUp:
        """Return the event of a trip that was given up, with the client's name."""
        ticket = outcome.ticket
        return cls(ticket.trip, client, ticket.time, outcome.time, ticket.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckInRefused(_Subscriptable):
    """A client asked for a trip and got none."""

    kind: ClassVar[str] = "turned_away"
    client: ClientId
    """The client: a number in a simulation, a name on a server."""
    time: float | None = None
    """When the client asked; None in files of early versions."""
    reason: str
    """Why it got none."""

    @classmethod
    def of(cls, refusal: Refusal, client: ClientId) -> CheckInRefused:
        """Return the event of a refused check-in, with the client's name."""
        return cls(client=client, time=refusal.time, reason=refusal.reason)


@dataclass(frozen=True, slots=True)
class ModelMoved(_Subscriptable):
    """The server made a step."""

    kind: ClassVar[str] = "step"
    version: int
    """The version that the step made."""
    trips: int
    """Trips so far that ended in an upload."""
    time: float
    """When the step was made."""
    bytes: int = 0
    """Sent so far, both ways."""
    training_loss: float | None = None
    """The mean over the uploads of the buffer; None where losses are not told."""
    discarded: bool = False
    """Whether the model stayed as it was, because it would not have been finite."""
    metrics: Mapping[str, object] = field(default_factory=dict)
    """Values that the algorithm and the privacy budget report, by names that they choose."""

    def metric(self, name: str) -> float | None:
        """Return the metric of this name, or None if there is no such number."""
        return _number(self.metrics.get(name))


@dataclass(frozen=True, slots=True)
class ModelEvaluated(_Subscriptable):
    """The model was evaluated: centrally, or by clients on their own held-out examples."""

    kind: ClassVar[str] = "evaluation"
    version: int
    """The version that was evaluated."""
    trips: int
    """Trips so far that ended in an upload."""
    time: float
    """When the event was written."""
    bytes: int = 0
    """Sent so far, both ways."""
    federated: bool = False
    """Whether the metrics are means of what clients found, weighted by their examples."""
    clients: int | None = None
    """How many clients reported; None unless `federated`."""
    examples: int | None = None
    """How many examples they have together; None unless `federated`."""
    metrics: Mapping[str, object] = field(default_factory=dict)
    """By the names that the head chooses, such as loss and accuracy."""

    def metric(self, name: str) -> float | None:
        """Return the metric of this name, or None if there is no such number."""
        return _number(self.metrics.get(name))


@dataclass(frozen=True, slots=True)
class RunEnded(_Subscriptable):
    """The last event of a run."""

    kind: ClassVar[str] = "end"
    reason: str
    """The limit that ended the run, such as "trips"."""
    version: int
    """The last version."""
    trips: int
    """Trips that ended in an upload."""
    time: float
    """When the run ended."""
    bytes: int = 0
    """Sent in all, both ways."""


Event = RunStarted | UploadReceived | TripGivenUp | CheckInRefused | ModelMoved | ModelEvaluated | RunEnded

EVENTS: dict[str, type[Event]] = {kind.kind: kind for kind in get_args(Event)}
"""The type of each kind of event."""


def evaluations(events: Iterable[Event]) -> list[ModelEvaluated]:
    """Return the evaluations among the events."""
    return [event for event in events if isinstance(event, ModelEvaluated)]


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) else None
