"""Upload layers: what happens to an upload between a client's rule and the algorithm's step.

A layer is one change of this kind: clipping, noise, an encoding, a mask. Layers form a stack with a fixed
order. Neither the algorithm nor the drivers know which layers there are. A layer can act at these moments:

- `client`: an upload leaves the client that trained it;
- `add`: the server adds an accepted upload to the buffer;
- `closed`: the buffer is full. From now on it waits for the step, and later uploads go into the next buffer;
- `ready`: whether the step can be made, or must wait;
- `release`: the step is made now; this is the last change of the sum before the algorithm sees it;
- `moved`: the algorithm has made its step.

To add a layer, subclass `UploadLayer` and have `experiments/runs/traffic.py` put it on the stack.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from tardigrad.algorithms.upload_buffer import UploadBuffer as UploadBuffer
from tardigrad.core.outcomes import Accepted
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Task, TypedVector, Upload, Vectors, WeightedSum
from tardigrad.errors import ConfigError

if TYPE_CHECKING:
    from tardigrad.algorithms.algorithm import Individual, Metrics, SumOnly

ENCODING_MEMORY, ADVERSARY_MEMORY = LAYER_MEMORIES = ("encoding/", "adversary/")
"""The prefixes of the names of vectors that layers keep in the memories of clients."""


@dataclass(frozen=True, slots=True)
class Wire:
    """A layer's effect on an upload on its way to the server."""

    dtype: str = "float32"
    """The type in which numbers travel."""
    extra_bytes: int = 0
    """The number of bytes that are sent besides the numbers."""
    common_scale: bool = False
    """Whether all uploads of a buffer have one scale, so that integers can be added up."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The facts about a run that a layer may use before the run begins."""

    algorithm: SumOnly | Individual
    situation: Situation
    shapes: dict[str, torch.Size]
    """The shapes of the vectors that a client uploads, by name."""
    dtype: torch.dtype
    """The type of the model, as clients train it."""
    device: torch.device
    whole: bool = False
    """Whether the algorithm or a layer needs the vectors of each upload as a whole."""


class UploadLayer:
    """The base of all layers. Its hooks have no effect."""

    name: ClassVar[str] = "layer"
    """The name of the layer in error messages, and of its tensors in snapshots."""
    needs_only_sums: ClassVar[bool] = False
    """Whether algorithms that need single uploads are refused."""
    needs_common_scale: ClassVar[bool] = False
    """Whether a layer below must give all uploads one scale."""
    needs_vectors: ClassVar[bool] = False
    """Whether its `add` uses the vectors of an upload, as floats. Then they are decoded as a whole when they
    are added; else they are decoded and added up in pieces."""
    wire: Wire = Wire()
    sums_of_short_floats: ClassVar[torch.dtype] = torch.float32
    """The narrowest type in which the uploads of a model in short floats are summed."""

    @property
    def has_client_half(self) -> bool:
        """Whether clients must change their uploads. A server must tell its clients to do so."""
        return type(self).client is not UploadLayer.client

    def extras(self, situation: Situation) -> dict[str, int]:
        """Return the names and sizes of what this layer sums up besides the vectors."""
        return {}

    def begin(self, surroundings: Surroundings, extras: dict[str, int]) -> None:
        """Prepare for a run. `extras`: those of all layers. Raise a ConfigError if it cannot work."""

    def client(self, upload: Upload, task: Task, memory: Vectors) -> Upload:
        """Change an upload on the client that trained it, before it is sent.

        `memory`: what the client will remember if the upload is accepted. A layer finds there what it has put
        in at the client's last upload that was, under names that begin with its own, such as
        "encoding/delta".

        A client of the service calls it after training. In a simulation the engine calls it when it commits
        the trip, so that a trip that is not accepted uses no random numbers.
        """
        return upload

    def add(self, buffer: UploadBuffer, delivery: Accepted, upload: Upload, start: Tensor) -> Upload:
        """Change an accepted upload before it is added to the buffer. `start`: the model it started from."""
        return upload

    def closed(self, buffer: UploadBuffer, version: int) -> None:
        """Note that the buffer of the step from this version is full."""

    def ready(self, version: int) -> bool:
        """Return whether the step from this version can be made now."""
        return True

    def notify(self, ready: Callable[[], None]) -> None:
        """Have `ready` called, from any thread, whenever a step that had to wait can be made."""

    def release(self, buffer: UploadBuffer, total: WeightedSum) -> WeightedSum:
        """Change the sum of a buffer before the algorithm sees it; the extras are changed in place."""
        return total

    def moved(self, buffer: UploadBuffer, total: WeightedSum) -> Metrics:
        """Note that the algorithm has made its step from `total`, and return metrics of it."""
        return {}

    def objection(self, version: int) -> str | None:
        """Return why the model must not move from this version, or None."""
        return None

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, object]]:
        """Return everything that is needed to continue: tensors, and the rest as JSON."""
        return {}, {}

    def restore(self, tensors: dict[str, Tensor], document: dict[str, object]) -> None:
        """Continue from a `snapshot()`."""


class DecodingLayer(UploadLayer):
    """A layer whose client half gives the vectors of an upload other types, and whose server half gives them
    back as floats. A stack has at most one."""

    @property
    def kind(self) -> str:
        """The name of the encoding, which the header of an upload says."""
        return self.name

    @abstractmethod
    def layout(self, lengths: dict[str, int]) -> tuple[TypedVector, ...]:
        """Return how vectors of these lengths travel."""

    @abstractmethod
    def upload_objection(self, vectors: Vectors) -> str | None:
        """Return what is wrong with the values of an upload of the right layout, or None."""

    @abstractmethod
    def pieces(self, vectors: Vectors) -> Iterator[tuple[str, int, Tensor]]:
        """Yield the vectors of an upload, decoded: names, offsets and pieces, in order."""

    @abstractmethod
    def norms(self, vectors: Vectors) -> Iterator[float]:
        """Yield the norms of the decoded pieces, in order."""

    def summands(self, vectors: Vectors) -> Iterator[tuple[str, int, Tensor]]:
        """Yield what is added up: the decoded pieces, or integers that `release` decodes."""
        return self.pieces(vectors)

    def factor(self, weight: float) -> float:
        """Return the factor of an upload of this weight in the sum of what `summands` yields."""
        return weight


def kept_by_layers(memory: Vectors) -> Vectors:
    """Return the part of a client's memory that belongs to the layers of its uploads. Training neither uses
    nor changes it."""
    return {name: vector for name, vector in memory.items() if name.startswith(LAYER_MEMORIES)}


def check_layers(layers: Sequence[UploadLayer], only_sums: bool, algorithm: str) -> None:
    """Raise a ConfigError if these layers cannot work together, or with the algorithm.

    `only_sums`: whether the algorithm needs only the sum of a buffer.
    """
    for position, layer in enumerate(layers):
        if layer.needs_only_sums and not only_sums:
            raise ConfigError(
                f"{algorithm} looks at every upload by itself, which does not go with the {layer.name}, "
                "where only their sum is known; use an algorithm that needs only the sum, such as 'fedbuff'"
            )
        if layer.needs_common_scale and not any(below.wire.common_scale for below in layers[:position]):
            raise ConfigError(
                f"the {layer.name} adds up integers and needs an encoding with one scale for all uploads "
                "below it; give one, such as 'grid'"
            )
        if layer.needs_vectors and any(below.wire.common_scale for below in layers[:position]):
            raise ConfigError(
                f"the {layer.name} of central privacy changes each upload on the server, which would take it "
                "off the common grid; use another encoding, such as 'int8', or privacy.kind 'local'"
            )
    encodings = [layer.name for layer in layers if layer.wire.dtype != Wire().dtype]
    if len(encodings) > 1:
        raise ConfigError(
            f"{' and '.join(encodings)} both change the type in which uploads travel; give one of them"
        )


def check_layers_served(layers: Sequence[UploadLayer], told: Sequence[UploadLayer]) -> None:
    """Raise a ConfigError if a server cannot have these layers. `told`: those whose client half the server's
    clients are told to apply."""
    for layer in layers:
        if layer.has_client_half and layer not in told:
            raise ConfigError(
                f"the {layer.name} changes uploads on the client, and the clients of a server are not told "
                "to do so; use it in a simulation"
            )
        if layer.wire.dtype != Wire().dtype and not isinstance(layer, DecodingLayer):
            raise ConfigError(
                f"the {layer.name} sends uploads as {layer.wire.dtype}, and a server receives "
                f"{Wire().dtype}; use it in a simulation"
            )
