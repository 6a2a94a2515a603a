"""A ClientApp as a client of our server."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

from flwr.clientapp import ClientApp

from tardigrad.core.draws import key
from tardigrad.core.upload import Vectors
from tardigrad.errors import ConfigError, RunError
from tardigrad.flower.app_trips import AppNode, AppTrips, UserConfig
from tardigrad.flower.declared_app import read_app_declaration
from tardigrad.flower_grid.named_arrays import BadReply
from tardigrad.flower_grid.node_trips import NodeTrips
from tardigrad.service.client.client_memory import TrainedUpload
from tardigrad.service.client.client_trainer import Assignment, through_layers
from tardigrad.service.protocol.refusals import log
from tardigrad.service.protocol.task_settings import from_json, is_private


class AppClient:
    """Trains tasks of a server by calling a ClientApp. The state of the app's context is part of the client's
    memory, so that it is kept like that: on disk, and as it was after the last upload that was accepted."""

    def __init__(self, name: str, app: ClientApp, node_config: UserConfig, declaration: str) -> None:
        """`declaration`: what the server declared."""
        self._name, self._app = name, app
        self._node = AppNode(key(0, f"node {name}"), node_config)
        self._declared = read_app_declaration(declaration)
        self._module = self._declared.module()
        self.frozen = hashlib.sha256(declaration.encode()).digest()
        """A digest of the declaration, which the server compares."""
        self._state_kept = False

    def check_shapes(self, shapes: list[tuple[int, ...]], settings: str = "") -> None:
        """Raise a ConfigError if the server's model has other shapes than those that it declared."""
        own = [tuple(parameter.shape) for parameter in self._module.parameters()]
        if own != shapes:
            raise ConfigError(
                f"the server declares arrays of the shapes {own[:6]}, but its model has {shapes[:6]}"
            )

    def remembers(self, settings: str) -> bool:
        """Return whether the last trip has left something to remember."""
        return self._state_kept

    def train(self, assignment: Assignment, memory: Vectors) -> TrainedUpload:
        """Train one trip, and evaluate the downloaded model if the server asks for it."""
        task, seed = assignment.task, assignment.seed
        algorithm, _ = from_json(assignment.settings, None)
        private = is_private(assignment.settings)
        trips = NodeTrips(self._module, algorithm, None, private, self._declared.weighs)
        config = self._declared.run_config
        app = AppTrips(self._app, self._module, trips, config, config)
        evaluated = 0
        metrics: dict[str, float] = {}
        if assignment.evaluate:
            try:
                evaluated, metrics = app.evaluate(task, memory, self._node, seed)
            except BadReply as bad:
                log.info("trip %d: the model was not evaluated: %s", task.trip, bad)
        try:
            upload, remembered = app.train(task, memory, self._node, seed)
        except BadReply as bad:
            raise RunError(f"trip {task.trip}: {bad}") from bad
        if not math.isfinite(upload.loss):  # the app does not report one, and a server takes only numbers
            upload = replace(upload, loss=0.0)
        finished = through_layers(assignment, upload, memory, remembered, algorithm, metrics, evaluated)
        self._state_kept = bool(finished.memory)
        return finished
