"""Whose signatures a helper believes: those of its one server, and of the clients on its own list."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from tardigrad.secure.admission import NO_TRIP, OfferedUpload
from tardigrad.secure.helper_refusals import NOT_LISTED, OTHER_KEY
from tardigrad.secure.receipts import is_signed
from tardigrad.service.access.enrolment import NAME, Enrolled, public_key
from tardigrad.service.access.signed_requests import SERVER
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.server.listener import parsed_signed

DIGEST = 32
"""Bytes of the digest of an upload."""


class ServerKey:
    """The one server that may call, by its public key in base64."""

    def __init__(self, public: str) -> None:
        self._key = public_key(public, "--server")

    def __len__(self) -> int:
        return 1

    def refresh(self) -> None:
        """Do nothing: the key does not change."""

    def knows(self, client: str) -> bool:
        """Return whether this is the name of the server."""
        return client == SERVER

    def signed(self, client: str, signature: bytes, content: bytes) -> bool:
        """Return whether the server has signed this."""
        return client == SERVER and is_signed(self._key, signature, content)


def offered(delivery: bytes, enrolled: Enrolled) -> OfferedUpload:
    """Return what a helper uses of a delivery that a client has signed. `enrolled`: the helper's own list."""
    signed, claim, header = parsed_signed(delivery), v1.Claim(), v1.UploadHeader()
    try:
        claim.ParseFromString(signed.claim)
        header.ParseFromString(claim.content)
    except DecodeError:
        claim.Clear()
    if claim.method != "Deliver" or len(header.digest) != DIGEST or not NAME.fullmatch(claim.client):
        return OfferedUpload("", "", NO_TRIP, 0, b"", (), "this is not the signed header of an upload")
    fault = ""
    if not enrolled.knows(claim.client):
        fault = NOT_LISTED
    elif not enrolled.signed(claim.client, signed.signature, signed.claim):
        fault = OTHER_KEY
    envelopes = tuple((one.key_id, one.sealed) for one in header.envelopes)
    return OfferedUpload(
        claim.client, header.run, header.trip, header.version, header.digest, envelopes, fault
    )
