"""Uploads made of nodes' replies, and what has to be remembered of a node between its trips."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import torch
from pydantic import TypeAdapter
from torch import Tensor

from tardigrad.algorithms.algorithm import Algorithm
from tardigrad.algorithms.registry import AnyAlgorithm
from tardigrad.core.outcomes import Ticket
from tardigrad.core.participation import ClientId
from tardigrad.core.tensor_names import strip_prefix
from tardigrad.core.upload import Task, Upload, Vectors
from tardigrad.flower_grid.carrier import ConfigValue, Kind, Reply
from tardigrad.flower_grid.named_arrays import ArraysModule, BadReply
from tardigrad.flower_grid.node_evaluation import EXAMPLES

TRIP, ACCEPTED, ALGORITHM = "tardigrad.trip", "tardigrad.accepted", "tardigrad.algorithm"
"""Keys in the config of a train message for a ClientApp with the client half."""
LOSSES = ("train_loss", "train-loss", "loss")
"""Names of the training loss in the metrics of apps."""


def server_round(kind: Kind, version: int) -> int:
    """Return `server-round` of a message: of one to train, the number of the version that is made, because
    Flower counts its rounds from 1; of one to evaluate, the version.

    >>> server_round("train", 0), server_round("evaluate", 0)
    (1, 0)
    """
    return version + 1 if kind == "train" else version


class NoClientHalf(BadReply):
    """A ClientApp without the client half of an algorithm that needs one."""


class NodeTrips:
    """Turns replies into uploads.

    A node that knows nothing of the algorithm returns where its training came to. What the client's half of
    the algorithm uploads then follows from that and from the version that was sent. A ClientApp that has the
    client half (`ClientHalf`) returns the vectors of the upload itself.
    """

    def __init__(
        self, module: ArraysModule, algorithm: Algorithm, upload: Vectors | None, private: bool, weighs: bool
    ) -> None:
        """`upload`: zeros with the names and shapes of what is uploaded; None if somebody else compares them.
        `weighs`: whether nodes weigh by their examples."""
        self._module, self._algorithm, self._private, self._weighs = module, algorithm, private, weighs
        self._lengths = None if upload is None else {name: v.numel() for name, v in upload.items()}
        self.memories: dict[str, Vectors] = {}
        """The memory of each node, by its name."""
        self.last_accepted: dict[str, int] = {}
        """The last trip of each node that was accepted, by its name."""

    def upload(self, reply: Reply, task: Task, memory: Vectors) -> tuple[Upload, Vectors]:
        """Return the upload of a reply, and what to remember of the node if it is accepted; raise a
        `BadReply` if there is something wrong with it."""
        start = task.vectors
        if self._algorithm.changes_training:
            vectors, kept = self._own_vectors(reply, start["model"].dtype), {}
        else:
            rule = self._algorithm.rule(task, memory, lr=1.0)
            vectors = rule.finish(self._module.flat(reply.arrays), 1, 1.0)
            kept = rule.memory if self._algorithm.remembers else {}
        loss = next((reply.metrics[name] for name in LOSSES if name in reply.metrics), math.nan)
        examples, steps = self._examples(reply.metrics), 1
        if not all(bool(torch.isfinite(vector).all()) for vector in vectors.values()):
            if not self._private:
                raise BadReply("its model is not finite; lower the learning rate of the ClientApp")
            # a refusal would tell something about the data: it counts as an upload that changes nothing
            model = start["model"]
            vectors = {n: model.clone() if n == "model" else torch.zeros_like(v) for n, v in vectors.items()}
            kept = memory
        return Upload(vectors, examples, steps, loss), kept

    def statistics(self, reply: Reply) -> dict[str, Tensor]:
        """Return the running statistics of a reply; raise a `BadReply` if they do not fit."""
        found = self._module.statistics_of(reply.arrays) if self._module.statistics else {}
        if not all(bool(torch.isfinite(value).all()) for value in found.values()):
            raise BadReply("its running statistics are not finite")
        return found

    def memory(self, client: ClientId) -> Vectors:
        """Return what is remembered of a node."""
        return self.memories.get(str(client), {})

    def told(self, trip: int, accepted: int) -> dict[str, ConfigValue]:
        """Return what a ClientApp with the client half is told: its trip, the last of its trips that was
        accepted (-1 for none), and the algorithm. Others are told nothing."""
        if not self._algorithm.changes_training:
            return {}
        return {TRIP: trip, ACCEPTED: accepted, ALGORITHM: json.dumps(_settings(self._algorithm))}

    def snapshot(self) -> dict[str, Tensor]:
        """Return what is remembered of the nodes."""
        return {
            f"memory/{node}/{name}": vector
            for node, vectors in self.memories.items()
            for name, vector in vectors.items()
        }

    def restore(self, tensors: dict[str, Tensor], last_accepted: dict[str, int]) -> None:
        """Continue from a `snapshot()`."""
        self.last_accepted = dict(last_accepted)
        for path, vector in strip_prefix("memory/", tensors).items():
            node, name = path.split("/", 1)
            self.memories.setdefault(node, {})[name] = vector

    def accepted(self, ticket: Ticket, memory: Vectors) -> None:
        """Keep the memory of a node whose upload was accepted."""
        self.last_accepted[str(ticket.client)] = ticket.trip
        if memory:
            self.memories[str(ticket.client)] = memory

    def _own_vectors(self, reply: Reply, dtype: torch.dtype) -> Vectors:
        if not reply.vectors:
            raise NoClientHalf(
                f"{self._algorithm.name} changes how clients train, and the ClientApp does not: train with "
                "tardigrad.flower.ClientHalf there (docs/flower.md), or use an algorithm such as 'fedbuff'"
            )
        found = {name: torch.tensor(array) for name, array in reply.vectors.items()}
        lengths = self._lengths or {name: vector.numel() for name, vector in found.items()}
        if {name: vector.numel() for name, vector in found.items()} != lengths:
            raise BadReply(f"its upload has the vectors {sorted(found)} of other names or lengths")
        return {name: found[name].reshape(-1) for name in lengths}

    def _examples(self, metrics: Mapping[str, float]) -> int:
        examples = metrics.get(EXAMPLES, math.nan if self._weighs else 1.0)
        if not (math.isfinite(examples) and examples >= 1 and examples == int(examples)):
            raise BadReply(f"its metric {EXAMPLES!r} is {examples:g}; give a whole number from 1 on")
        return int(examples)


def _settings(algorithm: Algorithm) -> object:
    return TypeAdapter(AnyAlgorithm).dump_python(algorithm, mode="json")  # type: ignore[arg-type]
