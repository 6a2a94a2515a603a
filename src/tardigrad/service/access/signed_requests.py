"""Signed requests: a client signs each request for one call, one session and one moment.

A session is a random number of the server process. A request that was signed for another process is refused,
so a server need not remember the nonces of its predecessor.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import DecodeError

from tardigrad.errors import ConfigError
from tardigrad.service.protocol.refusals import Cause, Refused, log
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.server.clock import SYSTEM, Clock, SteadyTime

WINDOW_MS = 90_000
"""How far a client's clock may be from the server's, and how long nonces are remembered."""
NONCE = 16
SERVER = "server"
"""The name under which a server signs its requests to helpers."""
REFRESH_SECONDS = 1.0
FIRST_CALLS = frozenset({"Join", "Greet", "Enter"})
"""Calls whose claims have no session, because their answers tell the session: the first one of a client to a
server, of a server to a helper, and of an operator to a server."""


class KnownKeys(Protocol):
    """Those whose requests are admitted, by their names; `Enrolled` is one."""

    def __len__(self) -> int: ...

    def refresh(self) -> None:
        """Read the keys again if they have changed; raise a ConfigError if they cannot be read."""

    def knows(self, client: str) -> bool:
        """Return whether there is a key of this name."""

    def signed(self, client: str, signature: bytes, content: bytes) -> bool:
        """Return whether this is the signature of exactly this content, with the key of this name."""


class Signer:
    """Signs the requests of a client."""

    def __init__(self, client: str, key: Ed25519PrivateKey, clock: Clock = SYSTEM) -> None:
        self.client = client
        self.session = b""
        self._key, self._time = key, SteadyTime(clock)
        self.ahead_ms = 0
        """How far the server's clock is ahead of this machine's, as the server said."""

    def sign(self, method: str, content: bytes = b"") -> v1.Signed:
        """Return a signed request, which the server accepts once."""
        claim = v1.Claim(
            client=self.client,
            method=method,
            session=b"" if method in FIRST_CALLS else self.session,
            nonce=os.urandom(NONCE),
            time_ms=self._time.now_ms() + self.ahead_ms,
            content=content,
        ).SerializeToString()
        return v1.Signed(claim=claim, signature=self._key.sign(claim))

    def set_clock(self, server_ms: int) -> None:
        """Use the server's clock from now on."""
        self.ahead_ms = server_ms - self._time.now_ms()


class RequestVerifier:
    """Admits requests that an enrolled client has signed for this call, just now, and not sent before."""

    def __init__(self, enrolled: KnownKeys, clock: Clock = SYSTEM) -> None:
        self.session = os.urandom(NONCE)
        self._enrolled, self._clock = enrolled, clock
        self._time = SteadyTime(clock)
        self._began_ms = self.now_ms()
        self._nonces: set[bytes] = set()
        self._ages: deque[tuple[int, bytes]] = deque()
        self._refreshed = clock.monotonic()
        self._warned = ""

    @property
    def enrolled(self) -> KnownKeys:
        """Those whose requests are admitted."""
        return self._enrolled

    def now_ms(self) -> int:
        """Return the time against which claims are checked, in milliseconds since 1970; it never jumps."""
        return self._time.now_ms()

    def knows(self, client: str) -> bool:
        """Return whether there is a key of this name."""
        return self._enrolled.knows(client)

    async def check_still_known(self, client: str) -> None:
        """Raise `Refused` if a client whose call goes on for long was taken off the list meanwhile."""
        if self._must_refresh(client):
            await asyncio.to_thread(self._refresh)
        if not self._enrolled.knows(client):
            raise Refused(Cause.NOT_ENROLLED, f"{client} is not enrolled here any more")

    def admit(self, signed: v1.Signed, method: str) -> tuple[str, bytes]:
        """Return the client and the content of its request, or raise `Refused`."""
        claim = claim_of(signed)
        if self._must_refresh(claim.client):
            self._refresh()
        return self._check_claim(claim, signed, method)

    async def admitted(self, signed: v1.Signed, method: str) -> tuple[str, bytes]:
        """Do the same as `admit` in the event loop, and read the list of clients in a thread."""
        claim = claim_of(signed)
        if self._must_refresh(claim.client):
            await asyncio.to_thread(self._refresh)
        return self._check_claim(claim, signed, method)

    def _must_refresh(self, client: str) -> bool:
        outdated = self._clock.monotonic() - self._refreshed >= REFRESH_SECONDS
        return outdated or not self._enrolled.knows(client)

    def _check_claim(self, claim: v1.Claim, signed: v1.Signed, method: str) -> tuple[str, bytes]:
        client = claim.client
        if not self._enrolled.knows(client):
            raise Refused(
                Cause.NOT_ENROLLED,
                f"client {client[:64]!r} is not enrolled here; ask the server's operator for "
                "`tardigrad enroll`, or correct --name",
            )
        if not self._enrolled.signed(client, signed.signature, signed.claim):
            raise Refused(Cause.SIGNATURE, f"this is not signed with the key that {client} is enrolled with")
        if claim.method != method:
            raise Refused(Cause.MISDIRECTED, f"signed for {claim.method[:32]!r}, not for {method}")
        first = method in FIRST_CALLS
        if claim.session != (b"" if first else self.session):
            raise Refused(Cause.SESSION, "signed for another session of the server; join again")
        now = self.now_ms()
        # without a session: a claim signed before this process began may have been used already
        if abs(now - claim.time_ms) > WINDOW_MS or (first and claim.time_ms < self._began_ms):
            raise Refused(
                Cause.TIME,
                f"signed {(now - claim.time_ms) / 1000:.1f} s ago by the server's clock, or before the "
                f"server began; at most {WINDOW_MS // 1000} s are allowed",
            )
        self._forget(now)
        if len(claim.nonce) != NONCE or claim.nonce in self._nonces:
            raise Refused(Cause.REPLAYED, "this request was made before; each one needs a new nonce")
        self._nonces.add(claim.nonce)
        self._ages.append((now + 2 * WINDOW_MS, claim.nonce))  # its time may be a window ahead
        return client, claim.content

    def reload(self, whom: str = "clients") -> None:
        """Read the list now, and log its length. `whom`: who is on it."""
        self._refresh()
        log.info("the list has %d %s", len(self._enrolled), whom, extra={"event": "clients"})

    def _forget(self, now: int) -> None:
        while self._ages and self._ages[0][0] < now:
            self._nonces.discard(self._ages.popleft()[1])

    def _refresh(self) -> None:
        """Read the list of clients again; a list that cannot be read changes nothing."""
        self._refreshed = self._clock.monotonic()
        warned, self._warned = self._warned, ""
        try:
            self._enrolled.refresh()
        except ConfigError as error:
            self._warned = str(error)
            if self._warned != warned:  # log each fault once, because strangers can cause the list to be read
                log.warning("%s; going by the list as it was", error, extra={"event": "clients"})


def claim_of(signed: v1.Signed) -> v1.Claim:
    """Return the claim of a request, which is not verified; raise `Refused` if it is none."""
    claim = v1.Claim()
    try:
        claim.ParseFromString(signed.claim)
    except DecodeError:
        claim.Clear()
    if not claim.client:
        raise Refused(Cause.UNSIGNED, "the request is not a signed claim")
    return claim
