"""The driver: bookkeeping decides who trains and what counts, the aggregator adds, Flower carries.

It is the third driver of the core, beside the simulator and the server. It looks for replies, applies them
one after the other, and sends the newest version to nodes that are free. A node has one message at a time.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from torch import Tensor

from tardigrad.algorithms.aggregator import Aggregator, AggregatorState
from tardigrad.core.bookkeeping import Bookkeeping, BookState
from tardigrad.core.draws import key
from tardigrad.core.events import (
    Event,
    ModelEvaluated,
    ModelMoved,
    RunEnded,
    RunPosition,
    TripGivenUp,
    UploadReceived,
)
from tardigrad.core.outcomes import Accepted, GivenUp, Reason, Rejected, Ticket
from tardigrad.core.stop import Stop
from tardigrad.core.tensor_names import strip_prefix
from tardigrad.core.upload import Vectors
from tardigrad.data.evaluation import Evaluation
from tardigrad.errors import RunError
from tardigrad.flower.carrier import Carrier, Kind, Order, Reply
from tardigrad.flower.flower_log import log
from tardigrad.flower.named_arrays import Arrays, ArraysModule, BadReply
from tardigrad.flower.node_evaluation import NodeEvaluation, weighted_means
from tardigrad.flower.node_trips import EXAMPLES, NodeTrips
from tardigrad.flower.running_statistics import RunningStatistics

SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds between two looks for replies. The pause doubles while none arrive."""
MOST_FAILURES = 5
"""Trips for each node that may fail one after the other, without one that succeeds, before the run fails."""

CentralEvaluation = Callable[[int, Arrays], Mapping[str, float] | None]


@dataclass(frozen=True)
class Sent:
    """A message that a node has not answered."""

    kind: Kind
    node: int
    time: float
    ticket: Ticket | None = None
    """Of a train message."""


class DriverState(TypedDict):
    """What a snapshot contains of a `Driver`, besides the tensors."""

    aggregator: AggregatorState
    book: BookState
    time: float
    trips: int
    given_up: int
    bytes: int
    refused: dict[str, int]
    metrics: dict[str, float]
    evaluated: int
    losses: list[float]
    statistics: float
    last_accepted: dict[str, int]


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
        self._evaluation, self._stop, self._seed = evaluation, stop, seed
        self._seconds, self._private, self._clock = ticket_seconds, private, clock
        self._evaluate, self._fraction = evaluate, 0.0 if private else fraction
        self.release: Callable[[int, Vectors], None] = lambda version, vectors: None
        """Called with each new version before a node trains from it; it may raise to prevent that."""
        self.save: Callable[[], None] = lambda: None
        """Writes a snapshot. A private run calls it before a version is released, because a step that was
        released must not be made again."""
        weighs = book.buffer.weights == "examples"
        self._trips = NodeTrips(module, aggregator.algorithm, aggregator.empty_upload(), private, weighs)
        self._statistics = RunningStatistics(module)
        self._sent: dict[str, Sent] = {}  # by message
        self._versions: dict[int, Vectors] = {}  # from which somebody trains
        self._arrays: Arrays = {}  # of the newest version
        self._reports: list[tuple[float, Mapping[str, float]]] = []  # metrics of the buffer's uploads
        self._losses: list[float] = []
        self._by_nodes: NodeEvaluation | None = None  # the version that nodes evaluate now
        self._downloads, self._upload_bytes = aggregator.download_sizes(), upload_bytes
        self._failures, self._connected = 0, 0
        self._began, self._pause = clock(), SHORTEST_PAUSE
        self._resumed = False
        self.time, self.trips, self.given_up, self.bytes = 0.0, 0, 0, 0
        self.refused: Counter[str] = Counter()
        self.metrics: dict[str, float] = {}
        self._evaluated = -1
        self.train_metrics: dict[int, Mapping[str, float]] = {}
        """What nodes reported about their training, by the version that they made."""

    @property
    def version(self) -> int:
        """The version of the model."""
        return self._aggregator.version

    def run(self) -> Iterator[list[Event]]:
        """Run, and yield all events. Events that belong together are in one list; a snapshot can be taken
        between two lists."""
        self._publish()
        if self._resumed:
            yield from self._give_up_lost()
        else:
            yield from self._begin_evaluation()
        while (reason := self._reason_to_stop()) is None:
            yield from self._look()
        yield from self._finish_evaluation()
        yield [RunEnded(reason, *self._position())]

    def arrays(self) -> Arrays:
        """Return the arrays of the model that is evaluated and saved."""
        return self._module.arrays(self._aggregator.evaluated_model)

    def _reason_to_stop(self) -> str | None:
        objection = self._aggregator.objection
        return self._stop.reason(self.trips, self.version, self._now(), self.metrics, objection)

    def _position(self) -> RunPosition:
        return RunPosition(self.version, self.trips, self.time, self.bytes)

    def _now(self) -> float:
        """Return for how many seconds the run has been served. No two events have the same time."""
        self.time = max(self._clock() - self._began, math.nextafter(self.time + 1e-6, math.inf))
        return self.time

    # -- one look at the grid ----------------------------------------------------------------------

    def _look(self, training: bool = True) -> Iterator[list[Event]]:
        """Apply the replies that have arrived, give up trips of nodes that are gone or late, and send."""
        connected = set(self._carrier.nodes())
        replies = self._carrier.replies(list(self._sent)) if self._sent else []
        for reply in replies:
            sent = self._sent.pop(reply.message, None)
            if sent is not None:
                yield from self._answered(sent, reply)
                if training and self._reason_to_stop() is not None:
                    return
        yield from self._give_up_late(connected)
        if self._by_nodes is not None:
            self._by_nodes.left(connected)
            yield from self._close_evaluation(self._by_nodes.complete)
        sent_now = self._ask(connected)
        if training:
            sent_now = self._train(connected) or sent_now
        self._pause = SHORTEST_PAUSE if replies or sent_now else min(2 * self._pause, LONGEST_PAUSE)
        self._carrier.pause(self._pause)

    def _answered(self, sent: Sent, reply: Reply) -> Iterator[list[Event]]:
        if sent.ticket is None:
            self._evaluation_arrived(sent, reply)
            return
        try:
            if reply.error:
                raise BadReply(reply.error)
            upload, memory = self._trips.upload(reply, sent.ticket, self._versions[sent.ticket.version])
            statistics = self._trips.statistics(reply)
        except BadReply as bad:
            self._failed(sent, str(bad))
            yield from self._give_up(sent.ticket)
            return
        self._failures = 0
        outcome = self._book.deliver(sent.ticket.trip, self._now(), upload.examples)
        assert isinstance(outcome, Accepted | Rejected), "the trip is under way"
        self.trips += 1
        self.bytes += self._upload_bytes
        if isinstance(outcome, Accepted):
            self._aggregator.add(outcome, upload, self._versions[sent.ticket.version]["model"])
            self._statistics.add(statistics, outcome.mass)
            self._trips.accepted(sent.ticket, memory)
            if not self._private:
                self._losses += [upload.loss] if math.isfinite(upload.loss) else []
                self._reports.append((upload.examples, reply.metrics))
        else:
            self.refused[outcome.reason] += 1
        yield from self._ended([UploadReceived.of(outcome, sent.ticket.client)], outcome.closes, True)

    def _ended(self, events: list[Event], closes: bool, delivered: bool) -> Iterator[list[Event]]:
        """Make the step if the buffer is full, and evaluate if it is time."""
        if closes:
            metrics = self._aggregator.step()
            self._statistics.step()
            losses, self._losses = self._losses, []
            loss = sum(losses) / len(losses) if losses else None
            events.append(ModelMoved(*self._position(), training_loss=loss, metrics=metrics))
            means = weighted_means(self._reports)
            means.pop(EXAMPLES, None)
            self.train_metrics[self.version], self._reports = means, []
        yield events
        if closes:
            if self._private:
                self.save()
            self._publish()
        if self._evaluation.due(self.version, closes, self.trips, delivered):
            yield from self._begin_evaluation()

    def _publish(self) -> None:
        """Release the newest version, and forget those that nobody trains from."""
        vectors = self._aggregator.broadcast()
        if self.version:
            self.release(self.version, vectors)
        self._versions[self.version] = vectors
        self._arrays = self._module.arrays(vectors["model"])
        needed = {ticket.version for ticket in self._book.in_flight.values()} | {self.version}
        self._versions = {version: self._versions[version] for version in self._versions if version in needed}

    # -- trips that end without an upload ----------------------------------------------------------

    def _give_up(self, ticket: Ticket) -> Iterator[list[Event]]:
        outcome = self._book.give_up(ticket.trip, self._now())
        assert isinstance(outcome, GivenUp), "the trip is under way"
        self.given_up += 1
        yield from self._ended([TripGivenUp.of(outcome, ticket.client)], outcome.closes, False)

    def _give_up_lost(self) -> Iterator[list[Event]]:
        """Give up the trips that were under way when the run was interrupted: nobody knows their messages."""
        if self._book.in_flight:
            log.info("%d trips that were under way are given up and sent again", len(self._book.in_flight))
        for ticket in list(self._book.in_flight.values()):
            yield from self._give_up(ticket)

    def _give_up_late(self, connected: set[int]) -> Iterator[list[Event]]:
        """Give up trips of nodes that have gone, and those that take too long."""
        limit = self._now() - self._seconds
        for message, sent in list(self._sent.items()):
            gone = sent.node not in connected
            if not gone and sent.time > limit:
                continue
            del self._sent[message]
            if sent.ticket is None:
                self._evaluation_arrived(sent, Reply(message, error="it has gone" if gone else "too late"))
                continue
            said = "has gone" if gone else f"has not answered for {self._seconds:g} seconds"
            log.info("node %d %s: trip %d is given up", sent.node, said, sent.ticket.trip)
            yield from self._give_up(sent.ticket)

    def _failed(self, sent: Sent, said: str) -> None:
        assert sent.ticket is not None
        log.warning("node %d, trip %d: %s", sent.node, sent.ticket.trip, said)
        self._failures += 1
        if self._failures >= MOST_FAILURES * max(1, self._connected):
            raise RunError(
                f"{self._failures} trips have failed one after the other, and none has succeeded since; the "
                f"last, of node {sent.node}: {said}"
            )

    # -- sending -----------------------------------------------------------------------------------

    def _free(self, connected: set[int]) -> list[int]:
        """Return the nodes without a message, in a random order."""
        free = sorted(connected - {sent.node for sent in self._sent.values()})
        order = np.random.default_rng(key(self._seed, "flower nodes", self._book.next_trip))
        return [free[index] for index in order.permutation(len(free))]

    def _train(self, connected: set[int]) -> bool:
        """Send the newest version to nodes that may start, and return whether any was sent."""
        self._connected = len(connected)
        free, began = self._free(connected), False
        objections = [self._book.objection(str(node)) for node in free]
        if free and not self._sent and set(objections) == {Reason.FINISHED}:
            raise RunError("nobody is left to train: all nodes took part as often as privacy allows")
        for node, objection in zip(free, objections):
            if objection is not None or self._book.capacity() <= 0:
                continue
            ticket = self._book.check_in(str(node), self._now())
            assert isinstance(ticket, Ticket), "nothing was said against it"
            vectors = {n: v for n, v in self._versions[ticket.version].items() if n != "model"}
            config: dict[str, int] = {"server-round": ticket.version + 1}
            if self._aggregator.algorithm.changes_training:
                accepted = self._trips.last_accepted.get(str(node), -1)
                config |= {"tardigrad.trip": ticket.trip, "tardigrad.accepted": accepted}
            order = Order("train", node, ticket.version, self._arrays, config, vectors, self._seconds)
            began = self._push(order, Sent("train", node, ticket.time, ticket))
            if began:
                self.bytes += self._downloads.take(str(node), ticket.version)
            else:
                self._book.give_up(ticket.trip, self._now())  # it never began
                self.given_up += 1
        return began

    def _push(self, order: Order, sent: Sent) -> bool:
        message = self._carrier.send(order)
        if message:
            self._sent[message] = sent
        else:
            log.warning("node %d: a message to it was not accepted by the SuperLink", order.node)
        return bool(message)

    # -- evaluation --------------------------------------------------------------------------------

    def _begin_evaluation(self) -> Iterator[list[Event]]:
        """Evaluate the newest version centrally, or begin to ask the nodes."""
        self._evaluated = self.version
        if self._evaluate is not None:
            metrics = self._evaluate(self.version, self.arrays())
            if metrics:
                yield self._found(ModelEvaluated(*self._position(), metrics=dict(metrics)))
        if self._fraction > 0:
            yield from self._close_evaluation(True)
            nodes = sorted(self._carrier.nodes())
            random = np.random.default_rng(key(self._seed, "flower evaluation", self.version))
            count = math.ceil(self._fraction * len(nodes))
            chosen = {nodes[index] for index in random.permutation(len(nodes))[:count]}
            self._by_nodes = NodeEvaluation(self._position(), self.arrays(), chosen)

    def _ask(self, connected: set[int]) -> bool:
        """Send evaluate messages to free nodes that are to be asked, and return whether any was sent."""
        evaluation = self._by_nodes
        if evaluation is None or not evaluation.wanted:
            return False
        free = [node for node in self._free(connected) if node in evaluation.wanted]
        version = evaluation.where.version
        for node in free:
            evaluation.wanted.discard(node)
            config = {"server-round": version}
            order = Order("evaluate", node, version, evaluation.arrays, config, seconds=self._seconds)
            if self._push(order, Sent("evaluate", node, self._now())):
                evaluation.asked.add(node)
        return bool(free)

    def _evaluation_arrived(self, sent: Sent, reply: Reply) -> None:
        if reply.error:
            log.warning("node %d did not evaluate: %s", sent.node, reply.error)
        if self._by_nodes is not None and sent.node in self._by_nodes.asked:
            metrics = {name: value for name, value in reply.metrics.items() if name != EXAMPLES}
            self._by_nodes.answered(sent.node, reply.metrics.get(EXAMPLES, 1.0), metrics)

    def _close_evaluation(self, now: bool) -> Iterator[list[Event]]:
        if self._by_nodes is not None and now:
            event, self._by_nodes = self._by_nodes.event(), None
            if event is not None:
                yield self._found(event)

    def _found(self, event: ModelEvaluated) -> list[Event]:
        log.info("version %d: %s", event.version, ", ".join(f"{n} {v:.4g}" for n, v in _numbers(event)))
        if not (event.federated and self._evaluate is not None):
            self.metrics = dict(_numbers(event))
        return [event]

    def _finish_evaluation(self) -> Iterator[list[Event]]:
        """Evaluate the last version. Nodes that train now are not asked."""
        if self._evaluated != self.version:
            yield from self._begin_evaluation()
        busy = {sent.node for sent in self._sent.values() if sent.ticket is not None}
        while self._by_nodes is not None:
            self._by_nodes.wanted -= busy
            yield from self._look(training=False)

    # -- snapshots ---------------------------------------------------------------------------------

    def snapshot(self) -> tuple[dict[str, Tensor], DriverState]:
        """Return everything that is needed to continue: tensors, and the rest as JSON."""
        tensors, aggregator = self._aggregator.snapshot()
        more, mass = self._statistics.snapshot()
        for node, vectors in self._trips.memories.items():
            more |= {f"memory/{node}/{name}": vector for name, vector in vectors.items()}
        return tensors | more, {
            "aggregator": aggregator,
            "book": self._book.state(),
            "time": self.time,
            "trips": self.trips,
            "given_up": self.given_up,
            "bytes": self.bytes,
            "refused": dict(self.refused),
            "metrics": self.metrics,
            "evaluated": self._evaluated,
            "losses": self._losses,
            "statistics": mass,
            "last_accepted": self._trips.last_accepted,
        }

    def restore(self, tensors: dict[str, Tensor], document: DriverState) -> None:
        """Continue from a `snapshot()`."""
        self._aggregator.restore(tensors, document["aggregator"])
        self._book.restore(document["book"])
        self._statistics.restore(tensors, document["statistics"])
        for path, vector in strip_prefix("memory/", tensors).items():
            node, name = path.split("/", 1)
            self._trips.memories.setdefault(node, {})[name] = vector
        self._trips.last_accepted = dict(document["last_accepted"])
        self.time, self.trips, self.given_up = document["time"], document["trips"], document["given_up"]
        self.bytes, self.refused = document["bytes"], Counter(document["refused"])
        self.metrics, self._evaluated = document["metrics"], document["evaluated"]
        self._losses = list(document["losses"])
        self._began = self._clock() - self.time
        self._resumed = True


def _numbers(event: ModelEvaluated) -> list[tuple[str, float]]:
    return [(name, float(value)) for name, value in event.metrics.items() if isinstance(value, int | float)]
