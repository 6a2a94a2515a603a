"""The state of a run apart from its model: bookkeeping, counts, when to evaluate and when to stop.

It is deterministic: the same entries give the same state, so that the journal is enough to repeat it.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

from tardigrad.core.bookkeeping import Bookkeeping, BookState
from tardigrad.core.download_sizes import DownloadSizes
from tardigrad.core.events import ModelEvaluated, RunPosition, TripGivenUp, UploadReceived
from tardigrad.core.outcomes import Accepted, Reason, Rejected, Ticket, UnknownTrip
from tardigrad.core.participation import ClientId
from tardigrad.core.stop import Stop
from tardigrad.data.evaluation import Evaluation
from tardigrad.privacy.layers.central_noise import BUDGET
from tardigrad.service.server.client_evaluations import ClientEvaluations, ReportsDocument
from tardigrad.service.server.norm_limits import Admission
from tardigrad.service.server.secure_state import SecureDocument, SecureState
from tardigrad.service.server.steering import STOPPED, Steering, SteeringDocument
from tardigrad.service.store.contract import ACTS
from tardigrad.service.store.contract import JournalEntry as JournalEntry


@dataclass(slots=True)
class Effects:
    """The results of an entry, and what has to be done with the model."""

    ticket: Ticket | None = None
    """The ticket of a check-in that was granted."""
    delivery: Accepted | Rejected | UnknownTrip | None = None
    """The result of an upload."""
    events: list[UploadReceived | TripGivenUp] = field(default_factory=list)
    moved: bool = False
    """Whether the buffer is full, so that the model moves."""
    where: RunPosition = field(default_factory=RunPosition)
    """How far the run has come afterwards."""
    evaluate: bool = False
    """Whether the model is evaluated now, on central data."""
    reported: list[ModelEvaluated] = field(default_factory=list)
    """Evaluations by clients of versions about which nobody will report any more."""
    forget: list[int] = field(default_factory=list)
    """Versions that nobody will start from any more."""
    released: int | None = None
    """The batch of a secure run that the helpers have released, or abandoned."""
    abandoned: bool = False
    """Whether they have abandoned it."""
    receipted: int | None = None
    """The version that has its receipts now."""
    dropped: list[str] = field(default_factory=list)
    """Payloads of uploads that do not wait for the helpers any more."""
    acted: bool = False
    """Whether this was an act of an operator that changed something, or an export."""
    audit: int = 0
    """The number of its line in the audit log, which the caller sets."""

    @property
    def touch_model(self) -> bool:
        """Whether there is anything to do with the model, or to tell of; a check-in has nothing."""
        return (
            self.moved
            or self.evaluate
            or self.released is not None
            or self.receipted is not None
            or self.delivery is not None
            or bool(self.events or self.reported or self.forget)
        )


class RunDocument(TypedDict):
    """`RunState` as JSON. Fields that may be missing were added later."""

    book: BookState
    time: float
    trips: int
    given_up: int
    bytes: int
    refused: dict[str, int]
    over: str | None
    reports: ReportsDocument
    norms: NotRequired[list[float]]
    epochs: NotRequired[list[tuple[int, int]]]
    """Trips under way, and their epochs."""
    downloads: NotRequired[list[tuple[ClientId, int]]]
    """The version that each client has, where differences between versions are sent."""
    secure: NotRequired[SecureDocument]
    steering: NotRequired[SteeringDocument]


class RunState:
    """The state of one run on a server, apart from its model."""

    def __init__(
        self,
        book: Bookkeeping,
        stop: Stop,
        evaluation: Evaluation,
        downloads: DownloadSizes,
        upload_bytes: int,
        centrally: bool,
        admission: Admission | None = None,
        budget: int | None = None,
        secure: SecureState | None = None,
    ) -> None:
        """`centrally`: whether the server evaluates the model itself. Without `admission` no upload is
        refused because of its norm. `budget`: steps that the privacy budget allows, None for any number.
        `secure`: of a secure run."""
        self.book = book
        self._stop, self._budget, self._evaluation = stop, budget, evaluation
        self._downloads, self._upload_bytes = downloads, upload_bytes
        self._centrally = centrally
        self.admission, self.secure = admission, secure
        self.steering = Steering()
        self.time = 0.0
        self.trips = 0
        self.given_up = 0
        self.bytes = 0
        self.refused: Counter[str] = Counter()
        self.over: str | None = None
        """Why the run has ended."""
        self.open: dict[str, list[Ticket]] = {}
        """Tickets under way, by client."""
        self.epochs: dict[int, int] = {}
        """The epoch of each ticket under way, by trip."""
        self.reports = ClientEvaluations()
        self._starting: Counter[int] = Counter()  # trips under way, by their version

    def where(self) -> RunPosition:
        """Return how far the run has come."""
        return RunPosition(self.book.version, self.trips, self.time, self.bytes)

    @property
    def unreceipted(self) -> bool:
        """Whether the version of a secure run has no receipts yet, so that nobody can start from it."""
        return self.secure is not None and self.secure.version < self.book.version

    def wants_reports(self, version: int) -> bool:
        """Return whether clients that start from this version should evaluate it."""
        if self._centrally:
            return False
        return self._evaluation.every_trips is not None or self._evaluation.due(version, True, 0, False)

    def apply(self, entry: JournalEntry) -> Effects:
        """Apply an entry, and return its effects."""
        effects = Effects()
        if self.secure is not None and entry.kind in ("release", "receipt"):
            return self._of_helpers(self.secure, entry)  # also when the run is over: steps are made first
        if entry.kind == "export":  # also when the run is over; it changes nothing
            return Effects(where=self.where(), acted=True)
        if self.over is not None:
            return effects
        before = self.book.version
        ended: list[Ticket] = []
        self.time = entry.time
        match entry.kind:
            case "check_in":
                self._check_in(entry, effects)
            case "deliver":
                ended = self._under_way(entry.trip)
                self._deliver(entry, effects)
            case "give_up":
                ended = self._under_way(entry.trip)
                self._give_up(entry.trip, entry.time, effects)
            case "end":
                self.over = entry.reason
            case "offer" | "withdraw":
                self._offer(entry)
            case kind if kind in ACTS:
                ended = self._act(entry, effects)
        effects.where = self.where()
        for ticket in ended:
            self._ended(ticket)
        if effects.moved or ended:
            suspects = {before} | {ticket.version for ticket in ended}
            done = [v for v in suspects if v < self.book.version and not self._starting[v]]
            effects.forget = done
            if self.secure is not None:
                self.secure.forget(done)
            effects.reported = self.reports.finished(done, self.where())
        effects.evaluate = self._centrally and self._evaluation.due(
            self.book.version, effects.moved, self.trips, entry.kind == "deliver" and bool(ended)
        )
        if self.over is None:
            self.over = self.reason_by_now(self.time, self.reports.metrics)
        return effects

    def reason_by_now(self, time: float, metrics: dict[str, float]) -> str | None:
        """Return why the run should end at this time with these metrics of the last evaluation, or None if
        it goes on."""
        version = self.book.version
        spent = self._budget is not None and version >= self._budget
        return self._stop.reason(self.trips, version, time, metrics, BUDGET if spent else None)

    def _under_way(self, trip: int) -> list[Ticket]:
        ticket = self.book.in_flight.get(trip)
        return [] if ticket is None else [ticket]

    def _act(self, entry: JournalEntry, effects: Effects) -> list[Ticket]:
        """Apply an act of an operator, and return the tickets that it has ended."""
        effects.acted = self.steering.changes(entry)
        if not effects.acted:
            return []
        self.steering.apply(entry, self.book)
        if entry.kind == "stop":
            self.over = STOPPED
        if entry.kind != "eject":
            return []
        ended = list(self.open.get(entry.client, ()))
        for ticket in ended:
            self._give_up(ticket.trip, entry.time, effects)
            offer = None if self.secure is None else self.secure.offers.pop(ticket.trip, None)
            if offer is not None:
                effects.dropped.append(offer.file)
        return ended

    def _check_in(self, entry: JournalEntry, effects: Effects) -> None:
        if self.steering.paused is not None or entry.client in self.steering.ejected:
            return  # the act was journaled after the check-in was queued
        ticket = self.book.check_in(entry.client, entry.time)
        if isinstance(ticket, Ticket):
            effects.ticket = ticket
            self._starting[ticket.version] += 1
            self.open.setdefault(entry.client, []).append(ticket)
            self.epochs[ticket.trip] = entry.epoch
            self.bytes += self._downloads.take(entry.client, ticket.version)

    def _deliver(self, entry: JournalEntry, effects: Effects) -> None:
        refused = Reason(entry.refusal) if entry.refusal else None
        delivery = self.book.deliver(entry.trip, entry.time, entry.examples, refused)
        effects.delivery = delivery
        if self.secure is not None:
            self.secure.deliver(entry, delivery.step if isinstance(delivery, Accepted) else 0)
        if isinstance(delivery, UnknownTrip):
            return
        self.trips += 1
        self.bytes += self._upload_bytes
        effects.moved = delivery.closes
        if isinstance(delivery, Rejected):
            self.refused[delivery.reason] += 1
        elif self.admission is not None:
            self.admission.accepted(entry.norm)
        wanted = not self._centrally  # a client may offer metrics that nobody asked for
        if wanted and entry.evaluated:
            self.reports.enter(delivery.ticket.version, entry.evaluated, json.loads(entry.metrics))
        effects.events.append(UploadReceived.of(delivery, delivery.client))

    def _give_up(self, trip: int, time: float, effects: Effects) -> None:
        outcome = self.book.give_up(trip, time)
        if isinstance(outcome, UnknownTrip):
            return
        effects.moved = effects.moved or outcome.closes
        self.given_up += 1
        effects.events.append(TripGivenUp.of(outcome, outcome.ticket.client))

    def _offer(self, entry: JournalEntry) -> None:
        """Note an upload that waits for the helpers, or one that does not any more."""
        assert self.secure is not None, "only secure runs have offers"
        if entry.kind == "withdraw":
            self.secure.offers.pop(entry.trip, None)
        elif entry.trip in self.book.in_flight:
            self.secure.offers[entry.trip] = entry

    def _of_helpers(self, secure: SecureState, entry: JournalEntry) -> Effects:
        """Apply what the helpers have released, or the receipts of a version."""
        effects = Effects(where=self.where())
        if entry.kind == "release":
            secure.release(entry)
            effects.released, effects.abandoned = entry.version, secure.abandoned
        else:
            secure.receipt(entry, kept=self._starting[entry.version - 1] > 0)
            effects.receipted = entry.version
        return effects

    def _ended(self, ticket: Ticket) -> None:
        client = str(ticket.client)
        self._starting[ticket.version] -= 1
        self.epochs.pop(ticket.trip, None)
        left = [one for one in self.open[client] if one.trip != ticket.trip]
        if left:
            self.open[client] = left
        else:
            del self.open[client]

    def last_reports(self) -> list[ModelEvaluated]:
        """Return, at the end of the run, the clients' evaluations of versions from which trips are still
        under way."""
        return self.reports.finished(self.reports.versions(), self.where())

    def state(self) -> RunDocument:
        """Return everything as JSON. It does not change when the run goes on."""
        document: RunDocument = {
            "book": self.book.state(),
            "time": self.time,
            "trips": self.trips,
            "given_up": self.given_up,
            "bytes": self.bytes,
            "refused": dict(self.refused),
            "over": self.over,
            "reports": self.reports.state(),
            "norms": [] if self.admission is None else self.admission.state(),
            "epochs": list(self.epochs.items()),
            "downloads": self._downloads.state(),
            "steering": self.steering.state(),
        }
        if self.secure is not None:
            document["secure"] = self.secure.state()
        return document

    def restore(self, state: RunDocument) -> None:
        """Go on from `state()`."""
        self.book.restore(state["book"])
        self.time, self.trips, self.given_up = state["time"], state["trips"], state["given_up"]
        self.bytes, self.over = state["bytes"], state["over"]
        self.refused = Counter(state["refused"])
        self.reports.restore(state["reports"])
        if self.admission is not None:
            self.admission.restore(state.get("norms", []))
        self._downloads.restore(state.get("downloads", []))
        if self.secure is not None:
            self.secure.restore(state["secure"])
        if "steering" in state:
            self.steering.restore(state["steering"], self.book)
        self.epochs = dict.fromkeys(self.book.in_flight, 0)  # tickets of older versions have no epoch
        self.epochs |= dict(state.get("epochs", []))
        self._starting = Counter(ticket.version for ticket in self.book.in_flight.values())
        self.open = {}
        for ticket in self.book.in_flight.values():
            self.open.setdefault(str(ticket.client), []).append(ticket)
