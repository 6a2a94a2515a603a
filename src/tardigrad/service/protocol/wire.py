"""Named flat vectors as one run of bytes: raw little-endian float32, one vector after the other."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from blake3 import blake3
from google.protobuf.message import DecodeError

from tardigrad.core.upload import Vectors
from tardigrad.service.protocol.v1 import service_pb2 as v1

CHUNK = 1 << 20
"""Bytes of one message, at most."""
LARGEST_MESSAGE = CHUNK + (1 << 16)
CHUNK_TAG = bytes([v1.UploadPart.CHUNK_FIELD_NUMBER << 3 | 2])
"""How a part begins that is a chunk and nothing else: the field's number, and that bytes follow."""
WORD = 4

Layout = tuple[tuple[str, int], ...]
"""Names and lengths, in the order in which they travel."""

assert sys.byteorder == "little", "vectors are sent as they lie in memory"


def layout_of(vectors: Vectors) -> Layout:
    """What these vectors are called, and how long they are."""
    return tuple((name, vector.numel()) for name, vector in vectors.items())


def size_of(layout: Layout) -> int:
    """In bytes."""
    return WORD * sum(length for _, length in layout)


def to_wire(layout: Layout) -> list[v1.Vector]:
    """As messages."""
    return [v1.Vector(name=name, length=length) for name, length in layout]


def from_wire(vectors: Iterable[v1.Vector]) -> Layout:
    """Back from messages."""
    return tuple((vector.name, vector.length) for vector in vectors)


def packed(vectors: Vectors) -> np.ndarray:
    """All vectors in one array of bytes."""
    room = empty(layout_of(vectors))
    for own, vector in zip(unpacked(room, layout_of(vectors)).values(), vectors.values()):
        own.copy_(vector)
    return room


def empty(layout: Layout) -> np.ndarray:
    """Room for vectors of this layout, to be filled."""
    return np.empty(size_of(layout), np.uint8)


def unpacked(room: np.ndarray, layout: Layout) -> Vectors:
    """The vectors, without a copy."""
    whole = torch.from_numpy(room).view(torch.float32)
    parts = whole.split([length for _, length in layout])
    return {name: part for (name, _), part in zip(layout, parts)}


def chunks(room: np.ndarray) -> Iterator[bytes]:
    """The bytes in messages of at most `CHUNK`."""
    for place in range(0, len(room), CHUNK):
        yield room[place : place + CHUNK].tobytes()


def received(data: bytes) -> v1.UploadPart | memoryview:
    """A part of an upload as it came; an empty one if it is none. A chunk stays where it is: protobuf would
    copy it twice."""
    if data[:1] == CHUNK_TAG:
        length = shift = 0
        for place in range(1, min(len(data), 6)):
            length |= (data[place] & 0x7F) << shift
            if data[place] < 0x80:
                if place + 1 + length == len(data):
                    return memoryview(data)[place + 1 :]
                break
            shift += 7
    try:
        return v1.UploadPart.FromString(data)
    except DecodeError:
        return v1.UploadPart()


def digest(room: np.ndarray) -> bytes:
    """BLAKE3: a few times as fast as what the standard library has."""
    return blake3(room.data).digest()
