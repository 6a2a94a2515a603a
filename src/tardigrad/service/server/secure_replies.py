"""The server's replies to clients of a secure run, and the parts of deliveries that go to the helpers."""

from __future__ import annotations

from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.wire import KNOWS_SECURE
from tardigrad.service.server.helper_link import HelperLink
from tardigrad.service.server.offered_uploads import come_again
from tardigrad.service.server.secure_state import SecureState

LARGEST_HEADER = 2048
"""Bytes of the signed header of an upload, and as many for the envelope to each helper."""


class SecureReplies:
    """Answers clients of a secure run."""

    def __init__(self, secure: SecureState, link: HelperLink) -> None:
        self._secure, self._link, self._helpers = secure, link, link.helpers

    def policy(self, revision: int) -> tuple[bytes, tuple[bytes, ...]]:
        """Return the policy and the helpers' signatures, for a client that joins; raise `Refused` if they
        have not signed it yet, or the client is too old. `revision`: what the client knows."""
        if revision < KNOWS_SECURE:
            raise Refused(Cause.TOO_OLD, "this run is secure, which this client does not know; upgrade it")
        if not self._secure.signatures:
            raise Refused(Cause.HELPER_AWAY, "the helpers have not signed the policy yet; come again", 1.0)
        return self._helpers.content, self._secure.signatures

    def keys(self) -> list[v1.OfferedKey]:
        """Return the keys that clients seal their seeds to; raise `Refused` if a helper is away."""
        keys = self._helpers.keys()
        if self._link.away is not None or keys is None:
            raise come_again()
        return keys

    def receipts(self, version: int) -> list[v1.SignedReceipt]:
        """Return the receipts of a version; raise `Refused` if nobody can start from it any more."""
        if version > self._secure.version:
            raise Refused(Cause.STOPPING, "the server is about to stop; come again", retry_after=1.0)
        if version not in self._secure.receipts:
            raise Refused(Cause.UNSOLICITED, f"version {version} is gone: the trip has just ended")
        return [
            v1.SignedReceipt(receipt=one.receipt.to_bytes(), signature=one.signature)
            for one in self._secure.receipts[version]
        ]

    def signed(self, header: v1.UploadHeader, signed: v1.Signed) -> bytes:
        """Return a delivery as its client has signed it, for the helpers; raise `Refused` if it has not one
        envelope for each of them, or is too large to be passed on."""
        content, count = signed.SerializeToString(), len(self._helpers.policy.helpers)
        most = LARGEST_HEADER * (1 + count)
        if len(header.envelopes) != count or len(content) > most:
            raise Refused(
                Cause.ENVELOPES,
                f"the upload has {len(header.envelopes)} envelopes and a header of {len(content)} bytes; in "
                f"this secure run it has {count}, one for each helper, and at most {most} bytes",
            )
        return content
