"""Reading and writing the messages of a helper."""

from __future__ import annotations

from typing import TypeVar

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message

from tardigrad.errors import ConfigError
from tardigrad.secure.helper_state import HelperKey
from tardigrad.secure.policy import read_policy
from tardigrad.secure.receipts import SignedReceipt
from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.protocol.v1 import helper_pb2 as helper_v1
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.wire import TYPES, Layout, from_wire
from tardigrad.service.server.limits import unless_silent

IDLE_SECONDS = 30.0
"""Seconds that a server may be silent in the middle of a request."""
MOST_VECTORS = 16
"""Vectors of a version."""

M = TypeVar("M", bound=Message)
Part = helper_v1.BeginPart | helper_v1.PublishPart


async def received_bytes(context: grpc.aio.ServicerContext, *sizes: int) -> list[np.ndarray]:
    """Receive so many bytes, in chunks, into arrays of these sizes; raise `Refused` if they are not all."""
    try:
        arrays = [np.empty(size, np.uint8) for size in sizes]
    except MemoryError:
        raise Refused(Cause.FULL, f"this helper has no room for {sum(sizes)} bytes") from None
    rest = [array for array in arrays if len(array)]
    while True:
        part = await unless_silent(context.read(), IDLE_SECONDS)
        if part is grpc.aio.EOF or not isinstance(part, Part):
            break
        chunk = np.frombuffer(part.chunk, np.uint8)
        if part.WhichOneof("part") != "chunk" or len(chunk) > sum(map(len, rest)):
            raise Refused(Cause.LENGTH, f"after the header come {sum(sizes)} bytes in chunks")
        while len(chunk):
            taken = min(len(chunk), len(rest[0]))
            rest[0][:taken] = chunk[:taken]
            chunk, rest[0] = chunk[taken:], rest[0][taken:]
            if not len(rest[0]):
                del rest[0]
    if rest:
        raise Refused(Cause.LENGTH, f"{sum(map(len, rest))} of {sum(sizes)} bytes are missing")
    return arrays


def version_layout(asked: helper_v1.BeginRequest) -> Layout:
    """Return the layout of version 0; raise `Refused` if it cannot be one of this policy."""
    try:
        longest = max(read_policy(asked.policy).lengths, default=0)
    except ConfigError as error:
        raise Refused(Cause.SHAPE, str(error)) from None
    layout = from_wire(asked.vectors)
    names = {name for name, _, _ in layout}
    if "model" not in names or len(names) < len(layout) or len(layout) > MOST_VECTORS:
        raise Refused(Cause.SHAPE, "a version has a vector called model, and few others, each once")
    if any(dtype not in TYPES or length > longest for _, dtype, length in layout):
        raise Refused(Cause.SHAPE, f"the vectors of a version have known types and at most {longest} numbers")
    return layout


def parsed(message: M, content: bytes) -> M:
    try:
        message.ParseFromString(content)
    except DecodeError:
        raise Refused(Cause.UNSIGNED, f"the request's content is not a {type(message).__name__}") from None
    return message


def receipt_message(signed: SignedReceipt) -> v1.SignedReceipt:
    return v1.SignedReceipt(receipt=signed.receipt.to_bytes(), signature=signed.signature)


def key_message(key: HelperKey | None) -> v1.OfferedKey:
    return (
        v1.OfferedKey()
        if key is None
        else v1.OfferedKey(key_id=key.key_id, public_key=key.public, signature=key.signature)
    )


def begin_part(data: bytes) -> helper_v1.BeginPart:
    try:
        return helper_v1.BeginPart.FromString(data)
    except DecodeError:
        return helper_v1.BeginPart()


def publish_part(data: bytes) -> helper_v1.PublishPart:
    try:
        return helper_v1.PublishPart.FromString(data)
    except DecodeError:
        return helper_v1.PublishPart()
