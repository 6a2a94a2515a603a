"""The calls of a helper: authenticate the server, check the request, and pass it to the helper's state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

import grpc
import numpy as np
from blake3 import blake3

from tardigrad.core.upload import Vectors
from tardigrad.errors import ConfigError
from tardigrad.secure.helper_refusals import HelperRefusal, RefusalKind
from tardigrad.secure.helper_state import HelperState
from tardigrad.secure.masks import UNSIGNED
from tardigrad.service.access.enrolment import Enrolled
from tardigrad.service.access.signed_requests import RequestVerifier
from tardigrad.service.helper.helper_messages import (
    IDLE_SECONDS,
    Part,
    begin_part,
    key_message,
    parsed,
    publish_part,
    receipt_message,
    received_bytes,
    version_layout,
)
from tardigrad.service.helper.trusted_keys import offered
from tardigrad.service.protocol.refusals import LONGEST, Cause, Refusals, Refused, log
from tardigrad.service.protocol.v1 import helper_pb2 as helper_v1
from tardigrad.service.protocol.v1 import helper_pb2_grpc as helper_v1_grpc
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.wire import (
    CHUNK,
    MOST_PLACES,
    Layout,
    from_wire,
    layout_of,
    size_of,
    unpacked,
)
from tardigrad.service.server.limits import unless_silent
from tardigrad.service.server.listener import parsed_signed

NAME = "tardigrad.v1.Helper"

T = TypeVar("T")


class HelperServicer(helper_v1_grpc.HelperServicer):
    """The six calls of a helper."""

    def __init__(self, state: HelperState, gate: RequestVerifier, enrolled: Enrolled) -> None:
        """`enrolled`: the helper's own list of clients."""
        self._state, self._gate, self._enrolled = state, gate, enrolled
        self._thread = ThreadPoolExecutor(1, "helper")  # one call at a time
        self.refusals = Refusals()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the error after which the helper cannot go on."""

    def shut_down(self) -> None:
        """Wait for the call that is being decided."""
        self._thread.shutdown()

    @asynccontextmanager
    async def _answering(self, method: str, context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
        """Turn a refusal into a gRPC status with one sentence."""
        try:
            yield
        except Refused as refused:
            self.refusals.note("", method, refused)
            await context.abort(refused.status, refused.sentence, self._trailing(refused.why.value))
        except HelperRefusal as refusal:
            why, sentence = refusal.kind.value, refusal.sentence[:LONGEST]
            extra = {"event": "refused", "method": method, "why": why}
            log.warning("refused %s: %s", method, sentence, extra=extra)
            self.refusals.counts[why] += 1
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, sentence, self._trailing(why))
        except Exception:
            if not context.done():
                raise
            # the server has hung up, so nobody can be told

    def _trailing(self, why: str) -> tuple[tuple[str, str], ...]:
        return ("tardigrad-time-ms", str(self._gate.now_ms())), ("tardigrad-why", why)

    async def _decide(self, function: Callable[[], T]) -> T:
        """Call the helper's state in its thread. An error that is not a refusal ends the helper."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function)
        except HelperRefusal:
            raise
        except Exception as error:
            if not self.failed.done():
                self.failed.set_exception(error)
            raise Refused(Cause.STOPPING, "the helper has failed; its log says why") from None

    async def _content(self, signed: v1.Signed, method: str) -> bytes:
        return (await self._gate.admitted(signed, method))[1]

    async def Greet(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> helper_v1.Greeting:
        """Compare histories, and tell the server what this helper has."""
        async with self._answering("Greet", context):
            asked = parsed(helper_v1.GreetRequest(), await self._content(request, "Greet"))
            return await self._decide(lambda: self._greeting(asked))

    def _greeting(self, asked: helper_v1.GreetRequest) -> helper_v1.Greeting:
        state = self._state
        state.greet(asked.run, asked.receipt, asked.version)
        greeting = helper_v1.Greeting(session=self._gate.session)
        if state.policy is not None and state.receipt is not None:
            greeting.run, greeting.policy_signature = state.policy.run, state.policy_signature
            greeting.open_batch = state.open_batch
            greeting.receipt.CopyFrom(receipt_message(state.receipt))
            greeting.key.CopyFrom(key_message(state.key))
            for one, digest in state.places()[:MOST_PLACES]:
                greeting.places.add(trip=one.trip, batch=one.batch, position=one.place, digest=digest)
        return greeting

    async def Begin(
        self, _: AsyncIterator[helper_v1.BeginPart], context: grpc.aio.ServicerContext
    ) -> helper_v1.Begun:
        """Receive a policy and version 0, and sign both."""
        async with self._answering("Begin", context):
            asked = parsed(helper_v1.BeginRequest(), await self._header(context, "Begin"))
            layout = version_layout(asked)
            (payload,) = await received_bytes(context, size_of(layout))
            vectors = unpacked(payload, layout)
            return await self._decide(lambda: self._begun(asked.policy, vectors))

    def _begun(self, policy: bytes, vectors: Vectors) -> helper_v1.Begun:
        state = self._state
        new = state.policy is None
        receipt = state.begin(policy, vectors)
        if new:
            log.info("the run %s begins", receipt.receipt.run, extra={"event": "begin"})
        return helper_v1.Begun(
            policy_signature=state.policy_signature,
            receipt=receipt_message(receipt),
            key=key_message(state.key),
        )

    async def Admit(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> helper_v1.Admitted:
        """Decide about uploads, in order."""
        async with self._answering("Admit", context):
            asked = parsed(helper_v1.AdmitRequest(), await self._content(request, "Admit"))
            return await self._decide(lambda: self._admitted(asked))

    def _admitted(self, asked: helper_v1.AdmitRequest) -> helper_v1.Admitted:
        try:
            self._enrolled.refresh()
        except ConfigError as error:
            log.warning("%s; going by the list as it was", error, extra={"event": "clients"})
        offers = [offered(delivery, self._enrolled) for delivery in asked.deliveries]
        places = [
            helper_v1.Place(
                trip=one.trip, batch=one.batch, position=one.place, refusal=one.refusal, digest=one.digest
            )
            for one in self._state.admit(offers, asked.check_only)
        ]
        return helper_v1.Admitted(places=places, key=key_message(self._state.key))

    async def Close(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> None:
        """Release a batch: the mask sum less noise, in chunks."""
        async with self._answering("Close", context):
            asked = parsed(helper_v1.CloseRequest(), await self._content(request, "Close"))
            release = await self._decide(lambda: self._state.close(asked.batch, asked.masked_digest))
            log.info("batch %d is released", asked.batch, extra={"event": "release"})
            content = release.view(np.uint8)
            header = helper_v1.Release(
                batch=asked.batch, length=len(release), digest=blake3(content.data).digest()
            )
            await unless_silent(context.write(helper_v1.ReleasePart(header=header)), IDLE_SECONDS)
            for first in range(0, len(content), CHUNK):
                part = helper_v1.ReleasePart(chunk=content[first : first + CHUNK].tobytes())
                await unless_silent(context.write(part), IDLE_SECONDS)

    async def Publish(
        self, _: AsyncIterator[helper_v1.PublishPart], context: grpc.aio.ServicerContext
    ) -> helper_v1.Receipted:
        """Receive a version and the sum that it was made of, and sign it."""
        async with self._answering("Publish", context):
            asked = parsed(helper_v1.PublishRequest(), await self._header(context, "Publish"))
            bits, length, layout = await self._decide(self._expected)
            if from_wire(asked.vectors) != layout:
                raise Refused(Cause.SHAPE, "the new version does not have the vectors of the one before")
            size = length * bits // 8
            codes, payload = await received_bytes(context, size, size_of(layout))
            total, vectors = codes.view(UNSIGNED[bits]), unpacked(payload, layout)
            signed = await self._decide(
                lambda: self._state.publish(asked.version, asked.digest.hex(), total, vectors)
            )
            log.info("version %d has a receipt", asked.version, extra={"event": "receipt"})
            return helper_v1.Receipted(receipt=receipt_message(signed), key=key_message(self._state.key))

    def _expected(self) -> tuple[int, int, Layout]:
        """Return the bits and the number of the codes of a sum, and the layout of a version."""
        policy, version = self._state.policy, self._state.version()
        if policy is None:
            raise HelperRefusal(RefusalKind.ORDER, "no run has begun here; send its policy first")
        return policy.bits, sum(policy.lengths), layout_of(version)

    async def Abandon(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> helper_v1.Receipted:
        """Give a batch up."""
        async with self._answering("Abandon", context):
            asked = parsed(helper_v1.AbandonRequest(), await self._content(request, "Abandon"))
            signed = await self._decide(lambda: self._state.abandon(asked.batch))
            log.warning("batch %d is abandoned: %s", asked.batch, asked.reason, extra={"event": "abandon"})
            return helper_v1.Receipted(receipt=receipt_message(signed), key=key_message(self._state.key))

    async def _header(self, context: grpc.aio.ServicerContext, method: str) -> bytes:
        """Return the content of the signed header that a streamed request begins with."""
        first = await unless_silent(context.read(), IDLE_SECONDS)
        if not isinstance(first, Part) or first.WhichOneof("part") != "header":
            raise Refused(Cause.UNSIGNED, "the request must begin with its signed header")
        return await self._content(first.header, method)


def handlers(servicer: HelperServicer) -> grpc.GenericRpcHandler:
    """Return the calls by their names. Malformed bytes become empty requests, which are not signed."""
    return grpc.method_handlers_generic_handler(NAME, {
        "Greet": grpc.unary_unary_rpc_method_handler(
            servicer.Greet, parsed_signed, helper_v1.Greeting.SerializeToString),
        "Begin": grpc.stream_unary_rpc_method_handler(
            servicer.Begin, begin_part, helper_v1.Begun.SerializeToString),
        "Admit": grpc.unary_unary_rpc_method_handler(
            servicer.Admit, parsed_signed, helper_v1.Admitted.SerializeToString),
        "Close": grpc.unary_stream_rpc_method_handler(
            servicer.Close, parsed_signed, helper_v1.ReleasePart.SerializeToString),
        "Publish": grpc.stream_unary_rpc_method_handler(
            servicer.Publish, publish_part, helper_v1.Receipted.SerializeToString),
        "Abandon": grpc.unary_unary_rpc_method_handler(
            servicer.Abandon, parsed_signed, helper_v1.Receipted.SerializeToString),
    })  # fmt: skip
