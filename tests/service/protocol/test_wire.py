"""Vectors as bytes."""

import random

import numpy as np
import pytest
import torch

from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.wire import (
    CHUNK,
    chunks,
    digest,
    digest_of,
    from_wire,
    layout_of,
    offsets,
    packed,
    read,
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
    assert layout == (("model", "float32", CHUNK // 4 + 3), ("control", "float32", 2), ("none", "float32", 0))
    pieces = list(chunks(vectors))
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


TYPED = {
    "delta/codes": torch.arange(-3, 4, dtype=torch.int8),
    "delta/scales": torch.tensor([0.5, -2.0]),
    "control/codes": torch.tensor([7, 255, 0], dtype=torch.uint8),
    "control/sums": torch.tensor([-(2**31), 2**31 - 1], dtype=torch.int32),
    "short": torch.tensor([1.5, -0.25, 3.0], dtype=torch.bfloat16),
    "words": torch.tensor([-(2**15), 2**15 - 1], dtype=torch.int16),
}


def test_every_type_is_the_same_after_a_round_trip_and_begins_at_a_multiple_of_its_size():
    layout = from_wire(to_wire(layout_of(TYPED)))
    payload = packed(TYPED)
    assert len(payload) == size_of(layout) == digest_size(TYPED)
    for (name, vector), begin in zip(TYPED.items(), offsets(layout)):
        size = vector.numel() * vector.element_size()
        assert begin % vector.element_size() == 0
        assert payload[begin : begin + size].tobytes() == vector.view(torch.uint8).numpy().tobytes(), name
    found = unpacked(payload, layout)
    for name, vector in TYPED.items():
        assert found[name].dtype == vector.dtype
        assert torch.equal(found[name], vector)


def digest_size(vectors):
    """Return how many bytes the chunks have, after a look at their digest."""
    whole = b"".join(chunks(vectors))
    assert digest(np.frombuffer(whole, np.uint8)) == digest_of(vectors)
    return len(whole)


@pytest.mark.parametrize("step", [1, 3, 7, 64])
def test_any_part_of_the_bytes_can_be_read(step):
    whole = packed(TYPED)
    for begin in range(0, len(whole), step):
        assert (read(TYPED, begin, min(begin + step, len(whole))) == whole[begin : begin + step]).all()


def test_float32_is_sent_as_older_versions_send_it():
    """Without a type and without gaps, so that files and peers from before are understood."""
    vectors = {"delta": torch.arange(3.0), "control": torch.ones(1)}
    assert packed(vectors).tobytes() == torch.cat(list(vectors.values())).numpy().tobytes()
    assert [one.dtype for one in to_wire(layout_of(vectors))] == ["", ""]
    assert from_wire([v1.Vector(name="delta", length=3)]) == (("delta", "float32", 3),)


def test_numbers_of_other_types_travel_as_float32():
    vectors = {"delta": torch.tensor([0.5, 2.0], dtype=torch.float64)}
    assert layout_of(vectors) == (("delta", "float32", 2),)
    assert torch.equal(unpacked(packed(vectors), layout_of(vectors))["delta"], torch.tensor([0.5, 2.0]))
