"""Refused requests: the sentence and the gRPC status for the client, and the server's counters."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from enum import StrEnum
from typing import NoReturn

import grpc

from tardigrad.service.protocol.refusal_streaks import RefusalStreaks

log = logging.getLogger("tardigrad.service")
OVER = "tardigrad-over"
"""The key of the trailing metadata that says why the run is over."""
PAUSED = "paused by the operator"
"""Why there is no task now, if the run is paused. A client that takes any run asks for another then."""
LONGEST = 500
"""The longest sentence in characters, because a part of it may come from a client."""
LONGEST_NAME = 64


class Cause(StrEnum):
    """The reasons of refusals; each is counted."""

    UNSIGNED = "not signed"
    NOT_ENROLLED = "not enrolled"
    SIGNATURE = "wrong signature"
    MISDIRECTED = "signed for another call"
    SESSION = "another session"
    TIME = "too old or too new"
    REPLAYED = "replayed"
    RATE = "too many requests"
    FULL = "too much in reception"
    SILENT = "silent or too slow"
    DISK = "disk full"
    BODY = "body differs from its digest"
    LENGTH = "wrong length"
    SHAPE = "wrong vectors"
    ENCODING = "wrong encoding"
    CODES = "cannot be decoded"
    VERSION = "wrong version"
    VALUES = "not finite"
    NUMBERS = "impossible numbers"
    UNSOLICITED = "unknown or ended trip"
    NOT_YOURS = "another client's trip"
    NO_EPOCH = "client too old"
    TOO_OLD = "client knows no encodings"
    DUPLICATE = "delivered already with other values"
    AT_ONCE = "delivered twice at once"
    STOPPING = "server is stopping"
    FROZEN = "other frozen parts"
    ENVELOPES = "wrong envelopes"
    HELPER_AWAY = "helper is away"
    EJECTED = "ejected"
    ACT = "act is not possible"
    FAILED = "run has failed"


STATUS = {
    Cause.UNSIGNED: grpc.StatusCode.INVALID_ARGUMENT,
    Cause.NOT_ENROLLED: grpc.StatusCode.PERMISSION_DENIED,
    Cause.SIGNATURE: grpc.StatusCode.UNAUTHENTICATED,
    Cause.MISDIRECTED: grpc.StatusCode.UNAUTHENTICATED,
    Cause.SESSION: grpc.StatusCode.UNAUTHENTICATED,
    Cause.TIME: grpc.StatusCode.UNAUTHENTICATED,
    Cause.REPLAYED: grpc.StatusCode.UNAUTHENTICATED,
    Cause.RATE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Cause.FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Cause.SILENT: grpc.StatusCode.DEADLINE_EXCEEDED,
    Cause.DISK: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Cause.UNSOLICITED: grpc.StatusCode.NOT_FOUND,
    Cause.NOT_YOURS: grpc.StatusCode.PERMISSION_DENIED,
    Cause.NO_EPOCH: grpc.StatusCode.FAILED_PRECONDITION,
    Cause.TOO_OLD: grpc.StatusCode.FAILED_PRECONDITION,
    Cause.DUPLICATE: grpc.StatusCode.ALREADY_EXISTS,
    Cause.AT_ONCE: grpc.StatusCode.ABORTED,
    Cause.STOPPING: grpc.StatusCode.UNAVAILABLE,
    Cause.FROZEN: grpc.StatusCode.FAILED_PRECONDITION,
    Cause.HELPER_AWAY: grpc.StatusCode.UNAVAILABLE,
    Cause.EJECTED: grpc.StatusCode.PERMISSION_DENIED,
    Cause.FAILED: grpc.StatusCode.UNAVAILABLE,
}
"""The gRPC status by reason; INVALID_ARGUMENT for those that are not listed."""


class Refused(Exception):
    """A refused request: the reason, and one sentence for the client."""

    def __init__(self, why: Cause, sentence: str, retry_after: float | None = None) -> None:
        sentence = sentence if len(sentence) <= LONGEST else sentence[:LONGEST] + "..."
        super().__init__(sentence)
        self.why = why
        self.sentence = sentence
        self.retry_after = retry_after
        """Seconds after which the client should try again; None if it should not wait."""

    @property
    def status(self) -> grpc.StatusCode:
        """The gRPC status of the reason."""
        return STATUS.get(self.why, grpc.StatusCode.INVALID_ARGUMENT)


async def abort_refused(
    context: grpc.aio.ServicerContext, refused: Refused, now_ms: int, over: str | None = None
) -> NoReturn:
    """End a call with the status of a refusal, its sentence, and the server's time. `over`: why the run is
    over, if the client is to know it."""
    trailing = [("tardigrad-time-ms", str(now_ms)), ("tardigrad-why", refused.why.value)]
    if refused.retry_after is not None:
        trailing.append(("tardigrad-retry-after", f"{refused.retry_after * random.uniform(1, 2):.3f}"))
    if over is not None:
        trailing.append((OVER, over))
    await context.abort(refused.status, refused.sentence, tuple(trailing))
    raise AssertionError("`abort` raises")


async def abort_over(context: grpc.aio.ServicerContext, reason: str) -> None:
    """End a call because the run is over."""
    status = grpc.StatusCode.FAILED_PRECONDITION
    await context.abort(status, f"the run is over ({reason})", ((OVER, reason),))


class Refusals:
    """Counts and logs refused requests of this server process."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.streaks = RefusalStreaks()
        """Times are of the monotonic clock."""
        self._logged: dict[Cause, float] = {}

    def note(self, client: str, method: str, refused: Refused) -> None:
        """Count a refusal, and log it; at most one of each reason a second is logged."""
        self.counts[refused.why.value] += 1
        client, method = client[:LONGEST_NAME], method[:LONGEST_NAME]
        now = time.monotonic()
        self.streaks.refused(refused.why.value, method, client, now, refused.sentence)
        if now - self._logged.get(refused.why, -1.0) >= 1.0:
            self._logged[refused.why] = now
            log.warning(
                "refused %s of %s (%s): %s",
                method, client or "an unknown client", refused.why, refused.sentence,
                extra={"event": "refused", "client": client, "method": method, "why": refused.why.value},
            )  # fmt: skip

    def answered(self, method: str) -> None:
        """Note a request that was not refused."""
        self.streaks.answered(method, time.monotonic())
