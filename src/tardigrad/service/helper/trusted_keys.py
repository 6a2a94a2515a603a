"""Whose signatures a helper believes: those of its one server, and of the clients on its own list."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from google.protobuf.message import DecodeError

from tardigrad.secure.admission import NO_TRIP, OfferedUpload
from tardigrad.service.access.enrolment import NAME, Enrolled, public_key
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.server.listener import parsed_signed

DIGEST = 32
"""Bytes of the digest of an upload."""
SERVER = "server"
"""The name under which a server signs its requests to helpers."""


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
        try:
            self._key.verify(signature, content)
        except InvalidSignature:
            return False
        return client == SERVER


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
        fault = "the client is not on the helper's own list"
    elif not enrolled.signed(claim.client, signed.signature, signed.claim):
        fault = "not signed with the key that the client is enrolled with at the helper"
    envelopes = tuple((one.key_id, one.sealed) for one in header.envelopes)
    return OfferedUpload(
        claim.client, header.run, header.trip, header.version, header.digest, envelopes, fault
    )
