"""Trips that a ClientApp makes in this process: of a simulation, and of a client that joins a server."""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from tardigrad.core.upload import Task, Upload, Vectors
from tardigrad.flower.app_message import app_message
from tardigrad.flower.app_state import state_in, vectors_of, without_state
from tardigrad.flower.grid_carrier import ARRAYS, CONFIG, VECTORS, array_record, reply_of, vectors_record
from tardigrad.flower_grid.carrier import ConfigValue, Kind, Reply
from tardigrad.flower_grid.named_arrays import ArraysModule, BadReply
from tardigrad.flower_grid.node_evaluation import EXAMPLES
from tardigrad.flower_grid.node_trips import NodeTrips, server_round

UserConfig = Mapping[str, int | float | str | bool]
"""A node config or a run config."""


@dataclass(frozen=True)
class AppNode:
    """A description of the node that a ClientApp runs on, which the app can read."""

    number: int
    config: UserConfig


class AppTrips:
    """Calls a ClientApp. Nothing of one trip influences another, except by the memory of its client."""

    def __init__(
        self,
        app: ClientApp,
        module: ArraysModule,
        trips: NodeTrips,
        run_config: UserConfig,
        train_config: Mapping[str, ConfigValue],
    ) -> None:
        self._app, self._module, self._trips = app, module, trips
        self._run_config, self._train_config = run_config, train_config

    def train(self, task: Task, memory: Vectors, node: AppNode, seed: int) -> tuple[Upload, Vectors]:
        """Run one trip. Return what to upload, and what the client would remember if it counts: the memory of
        the algorithm, and the state of the app's context. Raise a `BadReply` if the app fails, or there is
        something wrong with its reply."""
        state, accepted = state_in(memory)
        told = self._trips.told(task.trip, accepted)
        reply = self._call("train", task, node, state, told, seed)
        own = without_state(memory)
        upload, kept = self._trips.upload(reply, task, own)
        if state or accepted >= 0:  # a state that was emptied replaces the one before
            kept = kept | vectors_of(state, task.trip)
        return upload, kept

    def evaluate(self, task: Task, memory: Vectors, node: AppNode, seed: int) -> tuple[int, dict[str, float]]:
        """Evaluate the model of a task. Return the number of examples, and the metrics that are finite. What
        the app does to its state is not kept. Raise a `BadReply` if the app fails."""
        reply = self._call("evaluate", task, node, state_in(memory)[0], {}, seed)
        metrics = {name: v for name, v in reply.metrics.items() if name != EXAMPLES and math.isfinite(v)}
        examples = reply.metrics.get(EXAMPLES, 1.0)
        return (int(examples), metrics) if metrics and 1 <= examples < math.inf else (0, {})

    def _call(
        self, kind: Kind, task: Task, node: AppNode, state: RecordDict, told: Mapping[str, ConfigValue],
        seed: int,
    ) -> Reply:  # fmt: skip
        config = {**self._train_config, "server-round": server_round(kind, task.version), **told}
        content = RecordDict(
            {ARRAYS: array_record(self._module.arrays(task.vectors["model"])), CONFIG: ConfigRecord(config)}
        )
        if told:
            others = {name: vector for name, vector in task.vectors.items() if name != "model"}
            content[VECTORS] = vectors_record(others)
        message = app_message(kind, content, node.number, task.version, task.trip)
        context = Context(0, node.number, dict(node.config), state, dict(self._run_config))
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.manual_seed(seed)
                answer = self._app(message, context)
        except Exception as error:  # the app can raise anything
            last = traceback.extract_tb(error.__traceback__)[-1]
            said = " ".join(str(error).split())
            raise BadReply(
                f"the ClientApp failed at {last.filename}:{last.lineno} ({type(error).__name__}: {said})"
            ) from error
        if not isinstance(answer, Message):
            raise BadReply(f"the ClientApp returned a {type(answer).__name__} and not a Message")
        reply = reply_of(answer)
        if reply.error:
            raise BadReply(reply.error)
        return reply
