"""Named flat vectors as bytes: raw little-endian float32, one vector after the other."""

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
"""The largest number of payload bytes in one message."""
LARGEST_MESSAGE = CHUNK + (1 << 16)
CHUNK_TAG = bytes([v1.UploadPart.CHUNK_FIELD_NUMBER << 3 | 2])
"""The first byte of an `UploadPart` that is only a chunk: the field's number, and the wire type for bytes."""
WORD = 4

Layout = tuple[tuple[str, int], ...]
"""Names and lengths of vectors, in the order in which they are sent."""

assert sys.byteorder == "little", "vectors are sent as they are in memory, which must be little-endian"


def layout_of(vectors: Vectors) -> Layout:
    """Return the names and lengths of these vectors."""
    return tuple((name, vector.numel()) for name, vector in vectors.items())


def size_of(layout: Layout) -> int:
    """Return the size in bytes of vectors with this layout."""
    return WORD * sum(length for _, length in layout)


def to_wire(layout: Layout) -> list[v1.Vector]:
    """Return the layout as protobuf messages."""
    return [v1.Vector(name=name, length=length) for name, length in layout]


def from_wire(vectors: Iterable[v1.Vector]) -> Layout:
    """Return the layout that these messages describe."""
    return tuple((vector.name, vector.length) for vector in vectors)


def packed(vectors: Vectors) -> np.ndarray:
    """Copy all vectors into one array of bytes."""
    payload = empty(layout_of(vectors))
    for part, vector in zip(unpacked(payload, layout_of(vectors)).values(), vectors.values()):
        part.copy_(vector)
    return payload


def empty(layout: Layout) -> np.ndarray:
    """Return an uninitialised array of bytes for vectors of this layout."""
    return np.empty(size_of(layout), np.uint8)


def unpacked(payload: np.ndarray, layout: Layout) -> Vectors:
    """Return the vectors as views of these bytes, without a copy."""
    whole = torch.from_numpy(payload).view(torch.float32)
    parts = whole.split([length for _, length in layout])
    return {name: part for (name, _), part in zip(layout, parts)}


def chunks(payload: np.ndarray) -> Iterator[bytes]:
    """Yield the bytes in pieces of at most `CHUNK`."""
    for offset in range(0, len(payload), CHUNK):
        yield payload[offset : offset + CHUNK].tobytes()


def received(data: bytes) -> v1.UploadPart | memoryview:
    """Parse a part of an upload; malformed bytes become an empty part.

    A chunk is returned as a view of `data`, because protobuf would copy it twice.
    """
    if data[:1] == CHUNK_TAG:
        length = shift = 0
        for offset in range(1, min(len(data), 6)):  # the length is a varint of at most 5 bytes
            length |= (data[offset] & 0x7F) << shift
            if data[offset] < 0x80:
                if offset + 1 + length == len(data):
                    return memoryview(data)[offset + 1 :]
                break
            shift += 7
    try:
        return v1.UploadPart.FromString(data)
    except DecodeError:
        return v1.UploadPart()


def digest(payload: np.ndarray) -> bytes:
    """Return the BLAKE3 digest, which is a few times faster than those of the standard library."""
    return blake3(payload.data).digest()
