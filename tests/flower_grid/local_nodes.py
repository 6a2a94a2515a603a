"""Nodes in this process: they train at once, and their replies arrive after a time that a test sets."""

from dataclasses import replace

import numpy as np

from tardigrad.experiments.runs.drive import Drive
from tardigrad.experiments.runs.private_run import secrets_in_memory
from tardigrad.flower.grid_run import GridRun, assemble_nodes
from tardigrad.flower_grid.carrier import Reply
from tardigrad.flower_grid.named_arrays import ArraysModule

START = {"w": np.array([[1.0, -2.0]], np.float32), "b": np.array(0.5, np.float32)}


def pulled(order):
    """Move every float a tenth of the way to the number of the node."""
    arrays = {
        name: (array + (order.node - array) / 10).astype(array.dtype) if array.dtype.kind == "f" else array
        for name, array in order.arrays.items()
    }
    return Reply("", arrays, metrics={"train_loss": 1.0 / (1 + order.version), "num-examples": order.node})


class LocalNodes:
    """A carrier with a clock of its own, which a pause moves to the next arrival."""

    def __init__(self, seconds, train=pulled, evaluate=None):
        """`seconds`: how long each node takes, by node."""
        self.seconds, self.train, self.evaluate = dict(seconds), train, evaluate
        self.time, self.orders, self._waiting = 100.0, [], {}

    def clock(self):
        return self.time

    def nodes(self):
        return sorted(self.seconds)

    def send(self, order):
        message = str(len(self.orders))
        self.orders.append(order)
        answer = self.train if order.kind == "train" else self.evaluate
        reply = Reply("", error="no such function") if answer is None else answer(order)
        if reply is not None:
            begin = max([self.time, *(a for a, node, _ in self._waiting.values() if node == order.node)])
            arrival = begin + self.seconds[order.node]  # a node does one thing after the other
            self._waiting[message] = arrival, order.node, replace(reply, message=message)
        return message

    def replies(self, messages):
        found = [m for m in messages if m in self._waiting and self._waiting[m][0] <= self.time]
        return [self._waiting.pop(m)[2] for m in sorted(found, key=lambda m: self._waiting[m][0])]

    def pause(self, seconds):
        arrivals = [a for a, node, _ in self._waiting.values() if node in self.seconds and a > self.time]
        self.time = min(arrivals, default=self.time + seconds)


def grid_run(config, carrier, arrays=None, evaluate=None, fraction=0.0, ticket_seconds=1000.0, secrets=None):
    """Put together a run on local nodes."""
    module = ArraysModule(arrays or START)
    population = (config.service and config.service.population) or len(carrier.nodes())
    assembly = assemble_nodes(config, module, range(population))
    secrets = secrets or secrets_in_memory(assembly.config)
    return GridRun(
        assembly, secrets, carrier, module, ticket_seconds, evaluate, fraction, carrier.clock
    )  # fmt: skip


def run_nodes(config, carrier, **keywords):
    """Run to the end in memory; return the result and all events."""
    events = []

    class Watch:
        def begin(self, config, history):
            pass

        def see(self, more):
            events.extend(more)

        def end(self):
            pass

    result = Drive(grid_run(config, carrier, **keywords)).run((Watch(),))
    return result, events
