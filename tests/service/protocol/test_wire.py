"""Vectors as bytes."""

import random

import numpy as np
import pytest
import torch

from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.wire import (
    CHUNK,
    chunks,
    from_wire,
    layout_of,
    packed,
    received,
    size_of,
    to_wire,
    unpacked,
)

SEED = 5


def test_vectors_are_the_same_after_a_round_trip():
    generator = torch.Generator().manual_seed(SEED)
    vectors = {
        "model": torch.randn(CHUNK // 4 + 3, generator=generator),
        "control": torch.ones(2),
        "none": torch.ones(0),
    }
    layout = from_wire(to_wire(layout_of(vectors)))
    assert layout == (("model", CHUNK // 4 + 3), ("control", 2), ("none", 0))
    pieces = list(chunks(packed(vectors)))
    assert [len(piece) for piece in pieces] == [CHUNK, 4 * (3 + 2)]
    payload = np.frombuffer(b"".join(pieces), np.uint8).copy()
    assert len(payload) == size_of(layout)
    found = unpacked(payload, layout)
    assert list(found) == list(vectors)
    assert all(torch.equal(found[name], vectors[name]) for name in vectors)


@pytest.mark.parametrize("length", [1, 127, 128, 16_383, 16_384, CHUNK])
def test_a_chunk_is_read_without_a_copy_and_as_protobuf_reads_it(length):
    content = random.Random(SEED).randbytes(length)
    data = v1.UploadPart(chunk=content).SerializeToString()
    found = received(data)
    assert isinstance(found, memoryview)
    assert found.obj is data
    assert bytes(found) == content


def test_other_parts_are_parsed_and_malformed_ones_are_empty():
    header = v1.UploadPart(header=v1.Signed(claim=b"claim"))
    assert received(header.SerializeToString()) == header
    cut = v1.UploadPart(chunk=b"1234").SerializeToString()[:-1]
    for data in (b"", b"\xff\xff", cut, b"\x12", b"\x12\xff\xff\xff\xff\xff\xff"):
        assert received(data) == v1.UploadPart(), f"{data!r}"
