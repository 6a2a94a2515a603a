"""The server's connection to one helper of a secure run: the six calls, signed with the server's identity."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from itertools import chain
from typing import TypeVar

import grpc
import numpy as np
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tardigrad.core.upload import Vectors
from tardigrad.errors import RunError
from tardigrad.secure.helper_refusals import RefusalKind
from tardigrad.secure.masks import UNSIGNED, Codes
from tardigrad.secure.receipts import SignedReceipt, read_receipt
from tardigrad.service.access.signed_requests import SERVER, Signer
from tardigrad.service.protocol.refusals import Cause
from tardigrad.service.protocol.v1 import helper_pb2 as helper_v1
from tardigrad.service.protocol.v1 import helper_pb2_grpc as helper_v1_grpc
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.wire import CHUNK, LARGEST_MESSAGE, chunks, layout_of, to_wire

OPTIONS = [
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
]
SECONDS = 60.0
"""The time-out of a call, besides the time for its bytes."""
SLOWEST = 1 << 16
"""Bytes a second that a helper must send or take."""
GONE = {
    grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL,
}  # fmt: skip
"""Failures after which the call is tried again."""
AGAIN = {Cause.SESSION.value, Cause.TIME.value, Cause.REPLAYED.value}
"""Refusals after which the helper is greeted again: it was started again, or its clock was set."""

T = TypeVar("T")


class HelperAway(Exception):
    """A helper cannot be reached. Every call can be repeated."""


class HelperRefused(RunError):
    """A helper refuses a call for ever. `kind`: the reason, which the server may act on."""

    def __init__(self, sentence: str, kind: str) -> None:
        super().__init__(sentence)
        self.kind = kind


class HelperConnection:
    """One channel to a helper."""

    def __init__(self, address: str, identity: Ed25519PrivateKey, authority: bytes | None) -> None:
        """`identity`: the server's. Without the certificate of an authority there is no TLS."""
        self.address = address
        self._signer = Signer(SERVER, identity)
        if authority is None:
            self._channel = grpc.aio.insecure_channel(address, OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(authority), OPTIONS)
        self._stub = helper_v1_grpc.HelperStub(self._channel)
        self.key: v1.OfferedKey | None = None
        """The key that clients seal their seeds to, as the helper last said; None if it has not yet."""
        self._computes_other_bits = False

    async def close_channel(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def greet(self, run: str, receipt: bytes, version: int) -> helper_v1.Greeting:
        """Compare the histories of both sides. `receipt`: the hash of the server's last, b"" for none."""
        content = helper_v1.GreetRequest(run=run, receipt=receipt, version=version)
        greeting: helper_v1.Greeting = await self._asked(
            self._stub.Greet(self._signer.sign("Greet", content.SerializeToString()), timeout=SECONDS)
        )
        self._signer.session = greeting.session
        if greeting.run:
            self.key = greeting.key
        return greeting

    async def begin(self, policy: bytes, vectors: Vectors) -> tuple[bytes, SignedReceipt]:
        """Begin the run; return the signature of its policy, and the receipt of version 0."""
        content = helper_v1.BeginRequest(policy=policy, vectors=to_wire(layout_of(vectors)))
        signed = self._signer.sign("Begin", content.SerializeToString())

        async def parts() -> AsyncIterator[helper_v1.BeginPart]:
            yield helper_v1.BeginPart(header=signed)
            for chunk in chunks(vectors):
                yield helper_v1.BeginPart(chunk=chunk)

        begun: helper_v1.Begun = await self._asked(
            self._stub.Begin(parts(), timeout=_seconds(_size(vectors)))
        )
        self.key = begun.key
        return begun.policy_signature, _receipt(begun.receipt)

    async def admit(self, deliveries: Sequence[bytes], check_only: bool) -> Sequence[helper_v1.Place]:
        """Return the place of each upload, or its refusal."""
        content = helper_v1.AdmitRequest(deliveries=deliveries, check_only=check_only)
        admitted: helper_v1.Admitted = await self._asked(
            self._stub.Admit(self._signer.sign("Admit", content.SerializeToString()), timeout=SECONDS)
        )
        if len(admitted.places) != len(deliveries):
            raise self._wrong(f"has answered {len(admitted.places)} of {len(deliveries)} uploads")
        self.key = admitted.key
        return admitted.places

    async def release(self, batch: int, masked_digest: bytes, length: int, bits: int) -> Codes:
        """Close a batch and return what the helper releases for it. `length`: how many integers that are."""
        content = helper_v1.CloseRequest(batch=batch, masked_digest=masked_digest)
        release = np.empty(length, UNSIGNED[bits])
        payload = release.view(np.uint8)
        call = self._stub.Close(
            self._signer.sign("Close", content.SerializeToString()), timeout=_seconds(len(payload))
        )
        header = await self._asked(self._filled(call, payload))
        if (header.batch, header.length) != (batch, length) or header.digest != blake3(payload.data).digest():
            raise HelperAway(f"the helper at {self.address} sent a release that is not whole")
        return release

    async def _filled(
        self, call: grpc.aio.UnaryStreamCall[v1.Signed, helper_v1.ReleasePart], place: np.ndarray
    ) -> helper_v1.Release:
        """Read a release into its place, and return its header."""
        header, offset = helper_v1.Release(), 0
        async for part in call:
            if part.WhichOneof("part") == "header":
                header = part.header
                continue
            end = offset + len(part.chunk)
            if end > len(place):
                raise self._wrong("sent more than a release has")
            place[offset:end] = np.frombuffer(part.chunk, np.uint8)
            offset = end
        if offset != len(place):
            raise HelperAway(f"the helper at {self.address} sent {offset} of {len(place)} bytes")
        return header

    async def publish(self, version: int, digest: str, total: Codes, vectors: Vectors) -> SignedReceipt:
        """Return the receipt of a version. `total`: the sum of its batch, without masks.

        The version is sent only if the helper needs it, because another machine computes other last bits. It
        will need the next ones, too.
        """
        if not self._computes_other_bits:
            try:
                return await self._publish(version, digest, total, {})
            except HelperRefused as refused:
                if refused.kind != RefusalKind.OTHER_BITS:
                    raise
                self._computes_other_bits = True
        return await self._publish(version, digest, total, vectors)

    async def _publish(self, version: int, digest: str, total: Codes, vectors: Vectors) -> SignedReceipt:
        content = helper_v1.PublishRequest(
            version=version, digest=bytes.fromhex(digest), vectors=to_wire(layout_of(vectors))
        )
        signed = self._signer.sign("Publish", content.SerializeToString())

        async def parts() -> AsyncIterator[helper_v1.PublishPart]:
            yield helper_v1.PublishPart(header=signed)
            for chunk in chain(_pieces(total), chunks(vectors)):
                yield helper_v1.PublishPart(chunk=chunk)

        seconds = _seconds(total.nbytes + _size(vectors))
        return self._receipted(await self._asked(self._stub.Publish(parts(), timeout=seconds)))

    async def abandon(self, batch: int, reason: str) -> SignedReceipt:
        """Give a batch up, and return the receipt of its version, which is as the one before."""
        content = helper_v1.AbandonRequest(batch=batch, reason=reason)
        signed = self._signer.sign("Abandon", content.SerializeToString())
        return self._receipted(await self._asked(self._stub.Abandon(signed, timeout=SECONDS)))

    def _receipted(self, found: helper_v1.Receipted) -> SignedReceipt:
        self.key = found.key
        return _receipt(found.receipt)

    def _wrong(self, what: str) -> HelperRefused:
        return HelperRefused(f"the helper at {self.address} {what}; is it of another version?", "")

    async def _asked(self, call: Awaitable[T]) -> T:
        """Return the answer; raise `HelperAway` if the call can be tried again, `HelperRefused` if not."""
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            told = {str(name): str(value) for name, value in error.trailing_metadata() or ()}
            sentence = f"the helper at {self.address}: {error.details() or error.code().name}"
            why = told.get("tardigrad-why", "")
            if error.code() in GONE or why in AGAIN:
                if why == Cause.TIME.value and told.get("tardigrad-time-ms", "").isdigit():
                    self._signer.set_clock(int(told["tardigrad-time-ms"]))
                raise HelperAway(sentence) from None
            raise HelperRefused(sentence, why) from None


def _receipt(message: v1.SignedReceipt) -> SignedReceipt:
    return SignedReceipt(read_receipt(message.receipt), message.signature)


def _size(vectors: Vectors) -> int:
    return sum(vector.numel() * vector.element_size() for vector in vectors.values())


def _seconds(size: int) -> float:
    return SECONDS + size / SLOWEST


def _pieces(codes: Codes) -> Iterable[bytes]:
    whole = codes.view(np.uint8)
    return (whole[first : first + CHUNK].tobytes() for first in range(0, len(whole), CHUNK))
