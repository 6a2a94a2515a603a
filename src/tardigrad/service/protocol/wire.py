"""Named flat vectors as bytes: raw and little-endian, one vector after the other.

Each vector begins at a multiple of the size of its numbers, so that the bytes can be used in place. Between
vectors of float32 there is no gap. The layout says how many bytes there are, before any of them arrives.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from blake3 import blake3
from google.protobuf.message import DecodeError
from torch import Tensor

from tardigrad.core.upload import DTYPES, TypedVector, Vectors
from tardigrad.service.protocol.v1 import service_pb2 as v1

CHUNK = 1 << 20
"""The largest number of payload bytes in one message."""
LARGEST_MESSAGE = CHUNK + (1 << 16)
MOST_PLACES = 16_384
"""The largest number of uploads that a helper lists when it is greeted."""
CHUNK_TAG = bytes([v1.UploadPart.CHUNK_FIELD_NUMBER << 3 | 2])
"""The first byte of an `UploadPart` that is only a chunk: the field's number, and the wire type for bytes."""
KNOWS_ENCODINGS, KNOWS_SECURE = 1, 2
"""Revisions of the protocol from which clients know types of vectors and encodings of uploads, and secure
runs. Clients from before say nothing, which is 0."""
REVISION = KNOWS_SECURE
"""The revision of the protocol that this client knows, which it says when it joins."""
PLAIN = "float32"
"""The type of a vector that names none."""
TYPES = (PLAIN, "bfloat16", "int8", "uint8", "int16", "int32")
"""The types that vectors can have on the wire; numbers of all others travel as float32."""
NAMES = {DTYPES[name]: name for name in TYPES}

Layout = tuple[TypedVector, ...]
"""Names, types and lengths of vectors, in the order in which they are sent."""

assert sys.byteorder == "little", "vectors are sent as they are in memory, which must be little-endian"


def layout_of(vectors: Vectors) -> Layout:
    """Return the names, types and lengths of these vectors.

    >>> for vector in layout_of({"codes": torch.zeros(5, dtype=torch.uint8), "scales": torch.ones(1)}):
    ...     print(*vector)
    codes uint8 5
    scales float32 1
    """
    return tuple(TypedVector(name, NAMES.get(v.dtype, PLAIN), v.numel()) for name, v in vectors.items())


def offsets(layout: Layout) -> list[int]:
    """Return where each vector begins, and last where the bytes end.

    >>> offsets((TypedVector("delta/codes", "uint8", 5), TypedVector("delta/scales", "float32", 1)))
    [0, 8, 12]
    """
    found, end = [], 0
    for _, dtype, length in layout:
        size = DTYPES[dtype].itemsize
        begin = -(-end // size) * size
        found.append(begin)
        end = begin + size * length
    return [*found, end]


def size_of(layout: Layout) -> int:
    """Return how many bytes vectors with this layout are on the wire."""
    return offsets(layout)[-1]


def described(layout: Layout) -> str:
    """Return the layout for a message.

    >>> described((TypedVector("delta", "float32", 3),))
    'delta (3 float32)'
    """
    more = ", ..." if len(layout) > 8 else ""
    return ", ".join(f"{name} ({length} {dtype})" for name, dtype, length in layout[:8]) + more or "nothing"


def to_wire(layout: Layout) -> list[v1.Vector]:
    """Return the layout as protobuf messages. The type of float32 is left out, as older peers do."""
    return [
        v1.Vector(name=name, length=length, dtype="" if dtype == PLAIN else dtype)
        for name, dtype, length in layout
    ]


def from_wire(vectors: Iterable[v1.Vector]) -> Layout:
    """Return the layout that these messages describe; its types may be unknown ones."""
    return tuple(TypedVector(vector.name, vector.dtype or PLAIN, vector.length) for vector in vectors)


def packed(vectors: Vectors) -> np.ndarray:
    """Copy all vectors into one array of bytes."""
    return read(vectors, 0, size_of(layout_of(vectors)))


def empty(layout: Layout) -> np.ndarray:
    """Return an uninitialised array of bytes for vectors of this layout."""
    return np.empty(size_of(layout), np.uint8)


def unpacked(payload: np.ndarray, layout: Layout) -> Vectors:
    """Return the vectors as views of these bytes, without a copy."""
    whole = torch.from_numpy(payload)
    vectors: Vectors = {}
    for (name, dtype, length), begin in zip(layout, offsets(layout)):
        kind = DTYPES[dtype]
        vectors[name] = whole[begin : begin + kind.itemsize * length].view(kind)
    return vectors


def read(vectors: Vectors, begin: int, end: int) -> np.ndarray:
    """Return a copy of the bytes from `begin` to `end` of these vectors as they are sent; gaps are zeros."""
    found = np.zeros(end - begin, np.uint8)
    for vector, start in zip(vectors.values(), offsets(layout_of(vectors))):
        size = _numbers(vector).itemsize
        first, last = max(begin, start), min(end, start + size * vector.numel())
        if first < last:  # whole numbers, of which not all bytes may be wanted
            low, high = (first - start) // size, -(-(last - start) // size)
            part = _bytes(vector.reshape(-1)[low:high])
            at = start + low * size
            found[first - begin : last - begin] = part[first - at : last - at]
    return found


def _numbers(vector: Tensor) -> torch.dtype:
    return vector.dtype if vector.dtype in NAMES else torch.float32


def _bytes(vector: Tensor) -> np.ndarray:
    """Return the bytes of a flat vector; a view of it if it is on the CPU and has a type of the wire."""
    plain = vector.detach().to("cpu", _numbers(vector)).contiguous()
    return plain.view(torch.uint8).numpy()


def chunks(vectors: Vectors) -> Iterator[bytes]:
    """Yield the bytes of these vectors in pieces of at most `CHUNK`; they are never in memory all at once."""
    size = size_of(layout_of(vectors))
    for begin in range(0, size, CHUNK):
        yield read(vectors, begin, min(begin + CHUNK, size)).tobytes()


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


def digest_of(vectors: Vectors) -> bytes:
    """Return the digest of these vectors' bytes as they are sent."""
    found = blake3()
    for chunk in chunks(vectors):
        found.update(chunk)
    return found.digest()
