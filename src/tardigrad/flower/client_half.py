"""The client half of an algorithm in a ClientApp, for those that change how clients train."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from pydantic import TypeAdapter
from torch import Tensor, nn

from tardigrad.algorithms.algorithm import Algorithm
from tardigrad.algorithms.registry import BuiltIn
from tardigrad.core.upload import Task, Vectors
from tardigrad.errors import ConfigError
from tardigrad.flower.grid_carrier import (
    ARRAYS,
    CONFIG,
    VECTORS,
    array_record,
    arrays_of,
    metric_record,
    vectors_record,
)
from tardigrad.flower_grid.named_arrays import ArraysModule
from tardigrad.flower_grid.node_trips import ACCEPTED, ALGORITHM, TRIP

MEMORY, PENDING, PENDING_TRIP = "tardigrad.memory", "tardigrad.pending", "tardigrad.pending-trip"
"""Records in the state of a node: what it remembers, and what it will if its last upload was accepted."""


class ClientHalf:
    """Trains a module as the algorithm of the server asks for. It takes the place of the optimiser.

    >>> half = ClientHalf(msg, context, model, lr=0.1)  # doctest: +SKIP
    >>> loss_of(model, batch).backward(); half.step()  # doctest: +SKIP
    >>> return half.reply({"train_loss": loss, "num-examples": len(examples)})  # doctest: +SKIP
    """

    def __init__(self, message: Message, context: Context, module: nn.Module, lr: float) -> None:
        """Put the model of the message into the module; training starts where the algorithm says."""
        self._message, self._context, self._module = message, context, module
        config = message.content[CONFIG]
        if ALGORITHM not in config:
            raise ConfigError(
                "ClientHalf: the server's algorithm does not change how clients train; use an optimiser of "
                "torch"
            )
        arrays = arrays_of(message.content[ARRAYS])
        module.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
        self._holder = ArraysModule(arrays)
        own = dict(module.named_parameters())
        names = [name for name, _ in self._holder.named_parameters()]
        missing = [name for name in names if name not in own]
        if missing:
            raise ConfigError(f"ClientHalf: the module has no parameter {missing[0]!r}, which the server has")
        self._parameters = [own[name] for name in names]
        algorithm: Algorithm = TypeAdapter(BuiltIn).validate_python(json.loads(str(config[ALGORITHM])))
        self._trip, self._steps, self._lr_sum = int(config[TRIP]), 0, 0.0
        sent = message.content[VECTORS] if VECTORS in message.content else ArrayRecord()
        vectors = {name: torch.tensor(vector) for name, vector in arrays_of(sent).items()}
        version = int(config["server-round"]) - 1
        task = Task(self._trip, int(context.node_id), version, {"model": self._flat(), **vectors})
        self._rule = algorithm.rule(task, self._memory(int(config[ACCEPTED])), lr)
        self._put(self._rule.start)

    @torch.no_grad()
    def step(self) -> None:
        """Make a local step along the gradients of the parameters, and set these to zero."""
        x = self._flat()
        gradient = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in self._parameters]
        )
        self._put(x.sub_(self._rule.direction(gradient, x), alpha=self._rule.lr))
        self._steps += 1
        self._lr_sum += self._rule.lr
        for parameter in self._parameters:
            parameter.grad = None

    def reply(self, metrics: Mapping[str, float]) -> Message:
        """Return the reply of the ClientApp, and remember what the algorithm needs at the next trip."""
        vectors = self._rule.finish(self._flat(), self._steps, self._lr_sum)
        state = self._context.state
        state[PENDING] = vectors_record(self._rule.memory)
        state[PENDING_TRIP] = ConfigRecord({TRIP: self._trip})
        values = self._module.state_dict()
        statistics = {name: values[name].detach().numpy() for name in self._holder.statistics}
        content = RecordDict({VECTORS: vectors_record(vectors), "metrics": metric_record(metrics)})
        if statistics:
            content[ARRAYS] = array_record(statistics)
        return Message(content, reply_to=self._message)

    def _memory(self, accepted: int) -> Vectors:
        """Return what this node remembers: what it kept at the last of its trips that was accepted."""
        state = self._context.state
        if PENDING in state and int(state[PENDING_TRIP][TRIP]) == accepted:
            state[MEMORY] = state[PENDING]
        record = state[MEMORY] if MEMORY in state else ArrayRecord()
        return {name: torch.tensor(vector) for name, vector in arrays_of(record).items()}

    def _flat(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self._parameters])

    @torch.no_grad()
    def _put(self, vector: Tensor) -> None:
        parts = vector.split([p.numel() for p in self._parameters])
        for parameter, part in zip(self._parameters, parts):
            parameter.copy_(part.view(parameter.shape))
