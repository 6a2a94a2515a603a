"""The driver: bookkeeping decides who trains and what counts, the aggregator adds, Flower carries.

It is the third driver of the core, beside the simulator and the server. It looks for replies, applies them
one after the other, and sends the newest version to nodes that are free. A node has one message at a time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator

from torch import Tensor

from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.core.bookkeeping import Bookkeeping
from tardigrad.core.events import Event, ModelMoved, RunEnded, RunPosition, TripGivenUp, UploadReceived
from tardigrad.core.outcomes import Accepted, GivenUp, Reason, Rejected, Ticket
from tardigrad.core.stop import Stop
from tardigrad.core.upload import Task, Vectors
from tardigrad.data.evaluation import Evaluation
from tardigrad.errors import RunError
from tardigrad.flower_grid.carrier import Carrier, ConfigValue, Order, Reply
from tardigrad.flower_grid.driver_state import DriverState
from tardigrad.flower_grid.flower_log import log
from tardigrad.flower_grid.named_arrays import ArraysModule, BadReply
from tardigrad.flower_grid.node_evaluation import CentralEvaluation, Evaluations
from tardigrad.flower_grid.node_trips import NoClientHalf, NodeTrips, server_round
from tardigrad.flower_grid.outbox import Outbox, Sent
from tardigrad.flower_grid.repeated_failures import RepeatedFailures
from tardigrad.flower_grid.running_statistics import RunningStatistics
from tardigrad.flower_grid.sent_versions import SentVersions
from tardigrad.flower_grid.training_reports import TrainingReports

SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds between two looks for replies. The pause doubles while none arrive."""
TICK = 1e-6
"""The least time between two events."""


class Driver:
    """One run on a Flower grid."""

    def __init__(
        self,
        carrier: Carrier,
        book: Bookkeeping,
        aggregator: Aggregator,
        module: ArraysModule,
        evaluation: Evaluation,
        stop: Stop,
        seed: int,
        upload_bytes: int,
        ticket_seconds: float = 3600.0,
        private: bool = False,
        evaluate: CentralEvaluation | None = None,
        fraction: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`evaluate`: evaluates a model on central data. `fraction`: of the nodes, which evaluate; 0 for
        none. `private`: what nodes report about themselves is neither used nor kept."""
        self._carrier, self._book, self._aggregator, self._module = carrier, book, aggregator, module
        self._evaluation, self._stop = evaluation, stop
        self._outbox = Outbox(carrier, ticket_seconds, seed)
        self._private, self._clock = private, clock
        self._evaluations = Evaluations(evaluate, 0.0 if private else fraction, seed)
        self.release: Callable[[int, Vectors], None] = lambda version, vectors: None
        """Called with each new version before a node trains from it; it may raise to prevent that."""
        self.save: Callable[[], None] = lambda: None
        """Writes a snapshot."""
        self.save_steps = private
        """Whether there is a snapshot of each step before its version is released. A private run needs it,
        because a step that was released must not be made again from other uploads."""
        weighs = book.buffer.weights == "examples"
        self._trips = NodeTrips(module, aggregator.algorithm, aggregator.empty_upload(), private, weighs)
        self._statistics = RunningStatistics(module)
        self._versions, self.reports = SentVersions(module), TrainingReports()
        self._downloads, self._upload_bytes = aggregator.download_sizes(), upload_bytes
        self._failures = RepeatedFailures()
        self._began, self._pause = clock(), SHORTEST_PAUSE
        self._resumed = False
        self.time, self.trips, self.given_up, self.bytes = 0.0, 0, 0, 0
        self.refused: Counter[str] = Counter()

    @property
    def version(self) -> int:
        """The version of the model."""
        return self._aggregator.version

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last evaluation."""
        return self._evaluations.metrics

    def run(self) -> Iterator[list[Event]]:
        """Run, and yield all events. Events that belong together are in one list; a snapshot can be taken
        between two lists."""
        self._publish()
        if self._resumed:
            yield from self._give_up_lost()
        else:
            yield self._evaluate()
        while (reason := self._reason_to_stop()) is None:
            yield from self._look()
        self._outbox.forget_training()
        if self._evaluations.version != self.version:
            yield self._evaluate()
        while self._evaluations.waiting:
            yield from self._look(training=False)
        yield [RunEnded(reason, *self._position())]

    def _reason_to_stop(self) -> str | None:
        objection = self._aggregator.objection
        return self._stop.reason(self.trips, self.version, self._now(), self.metrics, objection)

    def _position(self) -> RunPosition:
        return RunPosition(self.version, self.trips, self.time, self.bytes)

    def _now(self) -> float:
        """Return for how many seconds the run has been served. No two events have the same time."""
        self.time = max(self._clock() - self._began, self.time + TICK)
        return self.time

    # -- one look at the grid ----------------------------------------------------------------------

    def _look(self, training: bool = True) -> Iterator[list[Event]]:
        """Apply the replies that have arrived, give up trips of nodes that are gone or late, and send."""
        connected = set(self._carrier.nodes())
        replies = self._outbox.replies()
        for sent, reply in replies:
            yield from self._answered(sent, reply, len(connected))
            if training and self._reason_to_stop() is not None:
                return
        yield from self._give_up_late(connected)
        yield self._evaluations.settle(connected)
        began = self._ask(connected)
        if training:
            began = (yield from self._train(connected)) or began
        self._pause = SHORTEST_PAUSE if replies or began else min(2 * self._pause, LONGEST_PAUSE)
        self._carrier.pause(self._pause)

    def _answered(self, sent: Sent, reply: Reply, connected: int) -> Iterator[list[Event]]:
        if sent.ticket is None:
            self._evaluations.answered(sent.node, reply)
            return
        start = self._versions[sent.ticket.version]
        try:
            if reply.error:
                raise BadReply(reply.error)
            task = Task(sent.ticket.trip, sent.ticket.client, sent.ticket.version, start)
            upload, memory = self._trips.upload(reply, task, self._trips.memory(task.client))
            statistics = self._trips.statistics(reply)
        except BadReply as bad:
            if isinstance(bad, NoClientHalf) and not self.trips:
                raise RunError(str(bad)) from None
            yield from self._give_up(sent.ticket)
            self._failures.failed(sent.ticket, str(bad), connected)
            return
        self._failures.succeeded()
        outcome = self._book.deliver(sent.ticket.trip, self._now(), upload.examples)
        assert isinstance(outcome, Accepted | Rejected), "the trip is under way"
        self.trips += 1
        self.bytes += self._upload_bytes
        if isinstance(outcome, Accepted):
            self._aggregator.add(outcome, upload, start["model"])
            self._statistics.add(statistics, outcome.mass)
            self._trips.accepted(sent.ticket, memory)
            if not self._private:
                self.reports.add(upload, reply.metrics)
        else:
            self.refused[outcome.reason] += 1
        yield from self._ended(UploadReceived.of(outcome, sent.ticket.client), outcome.closes)

    def _ended(self, event: UploadReceived | TripGivenUp, closes: bool) -> Iterator[list[Event]]:
        """Make the step if the buffer is full, and evaluate if it is time."""
        yield [event, self._step()] if closes else [event]
        if closes:
            if self.save_steps:
                self.save()
            self._publish()
        if self._evaluation.due(self.version, closes, self.trips, isinstance(event, UploadReceived)):
            yield self._evaluate()

    def _step(self) -> ModelMoved:
        metrics = self._aggregator.step()
        self._statistics.step()
        loss = self.reports.step(self.version)
        return ModelMoved(*self._position(), training_loss=loss, metrics=metrics)

    def _publish(self) -> None:
        """Release the newest version, and forget those that nobody trains from."""
        vectors = self._aggregator.broadcast()
        if self.version:
            self.release(self.version, vectors)
        under_way = self._book.in_flight.values()
        self._versions.publish(self.version, vectors, (ticket.version for ticket in under_way))

    def _evaluate(self) -> list[Event]:
        arrays = self._module.arrays(self._aggregator.evaluated_model)
        return self._evaluations.begin(self._position(), arrays, self._carrier.nodes())

    # -- trips that end without an upload ----------------------------------------------------------

    def _give_up(self, ticket: Ticket) -> Iterator[list[Event]]:
        outcome = self._book.give_up(ticket.trip, self._now())
        assert isinstance(outcome, GivenUp), "the trip is under way"
        self.given_up += 1
        yield from self._ended(TripGivenUp.of(outcome, ticket.client), outcome.closes)

    def _give_up_lost(self) -> Iterator[list[Event]]:
        """Give up the trips that were under way when the run was interrupted: nobody knows their messages."""
        tickets = list(self._book.in_flight.values())
        log.info("going on from version %d; %d trips that were under way are given up and sent again",
                 self.version, len(tickets))  # fmt: skip
        for ticket in tickets:
            yield from self._give_up(ticket)

    def _give_up_late(self, connected: set[int]) -> Iterator[list[Event]]:
        """Give up trips of nodes that have gone, and those that take too long."""
        for sent, said in self._outbox.lost(connected, self._now()):
            if sent.ticket is None:
                self._evaluations.answered(sent.node, Reply("", error=said))
            else:
                log.warning("node %d: %s; trip %d is given up", sent.node, said, sent.ticket.trip)
                yield from self._give_up(sent.ticket)

    # -- sending -----------------------------------------------------------------------------------

    def _ask(self, connected: set[int]) -> bool:
        """Send evaluate messages to free nodes that are to be asked, and return whether there are any."""
        free = self._outbox.free(connected, self._book.next_trip)
        orders = self._evaluations.orders(free, self._outbox.seconds)
        for order in orders:
            if not self._outbox.send(order, self._now()):
                self._evaluations.answered(order.node, Reply("", error="it was sent nothing"))
        return bool(orders)

    def _train(self, connected: set[int]) -> Generator[list[Event], None, bool]:
        """Send the newest version to nodes that may start, and return whether there are any."""
        free, began = self._outbox.free(connected, self._book.next_trip), False
        objections = {node: self._book.objection(str(node)) for node in free}
        if free and not self._outbox and set(objections.values()) == {Reason.FINISHED}:
            raise RunError("nobody is left to train: all nodes took part as often as privacy allows")
        for node in free:
            if objections[node] is not None or self._book.capacity() <= 0:
                continue
            ticket = self._book.check_in(str(node), self._now())
            assert isinstance(ticket, Ticket), "nothing was said against it"
            if self._outbox.send(self._order(node, ticket), ticket.time, ticket):
                self.bytes += self._downloads.take(str(node), ticket.version)
                began = True
            else:
                yield from self._give_up(ticket)
        return began

    def _order(self, node: int, ticket: Ticket) -> Order:
        told = self._trips.told(ticket.trip, self._trips.last_accepted.get(str(node), -1))
        vectors = self._versions[ticket.version] if told else {}
        others = {name: vector for name, vector in vectors.items() if name != "model"}
        config: dict[str, ConfigValue] = {"server-round": server_round("train", ticket.version), **told}
        arrays = self._versions.arrays
        return Order("train", node, ticket.version, arrays, config, others, self._outbox.seconds)

    # -- snapshots ---------------------------------------------------------------------------------

    def snapshot(self) -> tuple[dict[str, Tensor], DriverState]:
        """Return everything that is needed to continue: tensors, and the rest as JSON."""
        tensors, aggregator = self._aggregator.snapshot()
        statistics, mass = self._statistics.snapshot()
        return tensors | statistics | self._trips.snapshot(), {
            "aggregator": aggregator,
            "book": self._book.state(),
            "time": self.time,
            "trips": self.trips,
            "given_up": self.given_up,
            "bytes": self.bytes,
            "refused": dict(self.refused),
            "metrics": self.metrics,
            "evaluated": self._evaluations.version,
            "losses": self.reports.losses,
            "statistics": mass,
            "last_accepted": self._trips.last_accepted,
        }

    def restore(self, tensors: dict[str, Tensor], document: DriverState) -> None:
        """Continue from a `snapshot()`."""
        self._aggregator.restore(tensors, document["aggregator"])
        self._book.restore(document["book"])
        self._statistics.restore(tensors, document["statistics"])
        self._trips.restore(tensors, document["last_accepted"])
        self.time, self.trips, self.given_up = document["time"], document["trips"], document["given_up"]
        self.bytes, self.refused = document["bytes"], Counter(document["refused"])
        self._evaluations.metrics = document["metrics"]
        self._evaluations.version = document["evaluated"]
        self.reports.losses = list(document["losses"])
        self._began = self._clock() - self.time
        self._resumed = True
