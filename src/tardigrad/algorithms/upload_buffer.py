"""The upload buffer: the accepted uploads of one step, and how a snapshot stores them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

import torch
from torch import Tensor

from tardigrad.core.tensor_names import strip_prefix
from tardigrad.core.upload import Member, Received, Upload, Vectors


@dataclass(slots=True)
class UploadBuffer:
    """The accepted uploads of one step: their weighted sum, or the uploads themselves."""

    sums: Vectors = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    extras: dict[str, Tensor] = field(default_factory=dict)
    """Sums that layers keep besides those of the vectors, by names that they choose."""


class BufferState(TypedDict):
    """The contents of a snapshot of an `UploadBuffer`, besides the tensors."""

    members: list[tuple[int, int, float, float]]
    """The fields of each `Member`."""
    received: list[tuple[int, int, float]]
    """Examples, steps and loss of each upload."""
    clients: NotRequired[list[int | str]]
    """The client of each upload."""


def buffer_state(buffer: UploadBuffer) -> tuple[dict[str, Tensor], BufferState]:
    """Return what a snapshot contains of a buffer: tensors, and the rest as JSON."""
    tensors = {f"sum/{name}": value for name, value in buffer.sums.items()}
    tensors |= {f"extra/{name}": value for name, value in buffer.extras.items()}
    received: list[tuple[int, int, float]] = []
    for index, one in enumerate(buffer.received):
        tensors[f"received/{index}/start"] = one.start
        tensors |= {f"received/{index}/vector/{n}": v for n, v in one.upload.vectors.items()}
        received.append((one.upload.examples, one.upload.steps, one.upload.loss))
    clients = [one.client for one in buffer.received]
    return tensors, {"members": [*buffer.members], "received": received, "clients": clients}


def restored_buffer(tensors: dict[str, Tensor], document: BufferState, device: torch.device) -> UploadBuffer:
    """Return the buffer of a `buffer_state()`, with its tensors on this device; the extras stay on the
    CPU."""
    extras = strip_prefix("extra/", tensors)
    tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    members = [Member(*row) for row in document["members"]]
    clients = document.get("clients", [-1] * len(members))  # older snapshots have none
    received = [
        Received(
            Upload(strip_prefix(f"received/{i}/vector/", tensors), *row),
            members[i],
            tensors[f"received/{i}/start"],
            clients[i],
        )
        for i, row in enumerate(document["received"])
    ]
    return UploadBuffer(strip_prefix("sum/", tensors), received, members, extras)
