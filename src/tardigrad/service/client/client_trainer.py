"""Train a client's trips: its own module and examples, with the settings that the server sends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from tardigrad.algorithms.algorithm import Algorithm
from tardigrad.algorithms.layers import DecodingLayer, UploadLayer, kept_by_layers
from tardigrad.core.upload import Task, Upload, Vectors
from tardigrad.data.clients import Federation, given
from tardigrad.encodings.layer import encoding_layers
from tardigrad.errors import ConfigError
from tardigrad.learning.evaluate import evaluate
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.frozen import frozen_digest
from tardigrad.learning.heads import Head, Regression
from tardigrad.learning.heads.named_metrics import NamedMetrics, can_compute
from tardigrad.learning.local import Trainer
from tardigrad.learning.memory_format import choose_memory_format
from tardigrad.learning.transform import Transform
from tardigrad.service.client.app import Client
from tardigrad.service.client.client_memory import TrainedUpload
from tardigrad.service.protocol.task_settings import (
    asked_metrics,
    from_json,
    is_private,
    local_noise,
    told_head,
    upload_encoding,
)
from tardigrad.service.protocol.v1 import service_pb2 as v1


@dataclass(frozen=True)
class Assignment:
    """A task, and the seed and settings to train it with."""

    task: Task
    seed: int
    settings: str
    evaluate: bool
    epoch: int
    """The epoch of the server process that granted the ticket; it is returned with the trip."""
    receipts: tuple[v1.SignedReceipt, ...] = ()
    """In a secure run, what the helpers say about the version, one receipt of each."""


class TripTrainer(Protocol):
    """The trainer of a client's trips: a `ClientTrainer`, or one that calls somebody else's code."""

    @property
    def frozen(self) -> bytes:
        """The digest of what this client must have in common with the server; b"" if nothing is compared."""

    def check_shapes(self, shapes: list[tuple[int, ...]], settings: str = "") -> None:
        """Raise a ConfigError if the server's model has other shapes."""

    def remembers(self, settings: str) -> bool:
        """Return whether this client keeps a memory between trips."""

    def train(self, assignment: Assignment, memory: Vectors) -> TrainedUpload:
        """Train one trip."""


def through_layers(
    assignment: Assignment,
    upload: Upload,
    memory: Vectors,
    remembered: Vectors,
    algorithm: Algorithm,
    metrics: dict[str, float],
    evaluated: int,
) -> TrainedUpload:
    """Return a trained trip as it leaves its client: with local noise and encoded, as the server asks for.
    `memory`: before the trip; `remembered`: after it."""
    task, settings = assignment.task, assignment.settings
    remembered = remembered | kept_by_layers(memory)
    noise, encoding = local_noise(settings), upload_encoding(settings)
    layers: list[UploadLayer] = [] if noise is None else [noise.layer()]
    layers += encoding_layers(
        encoding,
        algorithm,
        lambda trip: assignment.seed,
        feedback=noise is None,
        private=is_private(settings),
    )
    for layer in layers:
        upload = layer.client(upload, task, remembered)
    kind = next((layer.kind for layer in layers if isinstance(layer, DecodingLayer)), "")
    return TrainedUpload(
        task.trip, task.version, upload, remembered, metrics, evaluated, assignment.epoch, kind
    )


class ClientTrainer:
    """Trains tasks one after the other; nothing of one trip influences the next."""

    def __init__(self, name: str, app: Client) -> None:
        self._name, self._app = name, app
        for p in app.module.parameters():
            if p.requires_grad and p.dtype != torch.float32:
                raise ConfigError(f"module: its parameters are {p.dtype}; they must be float32")
        self.frozen = frozen_digest(app.module)
        """The digest of the frozen part of the module."""
        trained = [p for p in app.module.parameters() if p.requires_grad]
        self._initial = [(p, p.detach().clone()) for p in trained]
        # without a head, the server says what the labels are, so that they are not checked yet
        self._federation = self._federated(app.examples, app.held_out, app.head or Regression())
        self._trainer: Trainer | None = None
        self._settings = ""

    def _federated(self, examples: object, held_out: object, head: Head | None) -> Federation:
        federation = given({self._name: examples}, held_out, torch.float32, head)
        return replace(federation, transform=self._app.transform or Transform())

    def check_shapes(self, shapes: list[tuple[int, ...]], settings: str = "") -> None:
        """Raise a ConfigError if the server's model has other shapes.

        `settings`: those of the run, which say what is personal; an older server does not send them.
        """
        flat = self._trainer_for(settings).flat if settings else FlatModule(self._app.module)
        own = [tuple(shape) for shape in flat.shared_shapes]
        if own != shapes:
            raise ConfigError(
                f"module: its parameters have the shapes {own[:6]} ({len(own)} in all), but the server's "
                f"model has {shapes[:6]} ({len(shapes)} in all); give the same module"
            )

    def remembers(self, settings: str) -> bool:
        """Return whether this client keeps a memory between trips."""
        return self._trainer_for(settings).remembers or upload_encoding(settings).feeds_back

    def train(self, assignment: Assignment, memory: Vectors) -> TrainedUpload:
        """Train one trip, and evaluate the downloaded model if the server asks for it."""
        trainer, task = self._trainer_for(assignment.settings), assignment.task
        metrics: dict[str, float] = {}
        evaluated = 0
        if assignment.evaluate and self._federation.test is not None:
            metrics = evaluate(
                trainer.flat, self._federation.head, task.vectors["model"], *self._federation.test,
                trainer.transform, memory=memory, named=self._asked(assignment.settings),
            )  # fmt: skip
            evaluated = len(self._federation.test[1])
        upload, remembered = trainer.train(task, memory, self._federation.clients.indexed(0), assignment.seed)
        return through_layers(assignment, upload, memory, remembered, trainer.algorithm, metrics, evaluated)

    def _asked(self, settings: str) -> NamedMetrics | None:
        """Return the metrics that the server asks for, as far as the client's head can have them."""
        head = self._federation.head
        names = [name for name in asked_metrics(settings) if can_compute(name, head)]
        return NamedMetrics(names, head) if names else None

    def _trainer_for(self, settings: str) -> Trainer:
        if self._trainer is None or settings != self._settings:
            algorithm, local = from_json(settings, self._app.algorithm)
            if self._app.head is None:
                clients, test = self._federation.clients, self._federation.test
                self._federation = self._federated(clients.load(0), test, told_head(settings))
            federation = self._federation
            if self._trainer is not None:  # of another run; what is personal now begins anew
                with torch.no_grad():
                    self._trainer.flat.reset_buffers()
                    for p, value in self._initial:
                        p.copy_(value)
            flat = FlatModule(self._app.module, local.personal, local.batch_norm)
            choose_memory_format(flat, federation.head, *federation.some_examples())
            # in a private run, it must not depend on a client's data whether it delivers
            self._trainer = Trainer(
                flat, federation.head, algorithm, local, federation.transform, is_private(settings)
            )
            self._settings = settings
        return self._trainer
