"""The workers' half of training on Ray."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tardigrad.core.upload import Task, Vectors
from tardigrad.errors import TardigradError
from tardigrad.simulation.ray_kit import Kit, Packed, pack, unpack, unpack_kit

Order = tuple[int, int, int, float | None, int, Packed]
"""trip, client, version, staleness, seed, memory."""
Reply = tuple[int, Packed, Packed, int, int, float] | tuple[int, str]
"""trip, upload, memory, examples, steps, loss; or trip and what went wrong."""


class Greeting(NamedTuple):
    """What a worker says when it has started."""

    platform: str
    """What the bits depend on, beside the inputs."""
    node: str
    process: int


class Answer(NamedTuple):
    """What it says to a call."""

    replies: list[Reply]
    profile: dict[str, float]
    """Where the trips' seconds went."""
    used: float
    """Processor seconds since it started."""


class Actor:
    """A worker, on whichever node Ray has put it."""

    def greet(self) -> Greeting:
        """It has started: where, and on what."""
        import ray

        context: Any = ray.get_runtime_context()
        return Greeting(platform(), context.get_node_id(), os.getpid())

    def build(self, kit: Kit) -> None:
        """Get ready."""
        torch.set_num_threads(1)
        self._trainer, self._clients = unpack_kit(kit)
        self._trainer.profile.on = True  # how long trips take decides how many go in one call
        self._versions: dict[int, Vectors] = {}

    def train(self, orders: Sequence[Order], gone: set[int], new: Sequence[int], *versions: Packed) -> Answer:
        """Train some trips. Forgets the versions that nobody needs any more, and keeps the new ones."""
        for version in gone:
            del self._versions[version]
        for version, packed in zip(new, versions):
            self._versions[version] = unpack(packed)
        replies = [self._train(order) for order in orders]
        return Answer(replies, self._trainer.profile.take(), time.process_time())

    def _train(self, order: Order) -> Reply:
        trip, client, version, staleness, seed, packed = order
        task = Task(trip, client, version, self._versions[version], staleness)
        profile = self._trainer.profile
        try:
            with profile.part("training"):
                with profile.part("data"):
                    examples = self._clients.indexed(client)
                upload, memory = self._trainer.train(task, unpack(packed), examples, seed)
        except TardigradError as error:
            return trip, str(error)
        except Exception as error:  # of the user's own model, data or rule
            return trip, f"trip {trip} of client {client}: {type(error).__name__}: {error}"
        with profile.part("upload"):
            sent, kept = self._packed(upload.vectors), self._packed(memory)
        return trip, sent, kept, upload.examples, upload.steps, upload.loss

    def _packed(self, vectors: Vectors) -> Packed:
        # what lies in the scratch module is copied, for the next trip of the same call uses that again
        flat = self._trainer.flat
        scratch = {_place(flat.vector), _place(flat.gradient)}
        return pack({name: v.clone() if _place(v) in scratch else v for name, v in vectors.items()})


def platform() -> str:
    """What the bits depend on, beside the inputs."""
    return f"torch {torch.__version__} with {torch.backends.cpu.get_cpu_capability()}"


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
