"""Receipts: the helpers' signatures on the one history of versions, and how signatures are checked.

A receipt says which broadcast a version is, and names the receipt of the version before it. So there is one
chain of receipts, and whoever sees two receipts of one version holds the proof that there are two histories.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tardigrad.errors import RunError

FIRST = ""
"""The predecessor that the receipt of version 0 names."""


class ReceiptError(RunError):
    """A receipt is forged, or there are two histories. The client must stop."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """A helper's record of one version."""

    run: str
    version: int
    digest: str
    """The digest of the broadcast, in hexadecimal."""
    policy: str
    """Digest of the policy, in hexadecimal."""
    previous: str
    """Hash of the receipt of the version before, or `FIRST`."""

    def to_bytes(self) -> bytes:
        """Return what is signed."""
        fields = [self.run, self.version, self.digest, self.policy, self.previous]
        return b"tardigrad receipt 1\n" + json.dumps(fields, separators=(",", ":")).encode()

    @property
    def hash(self) -> str:
        """The hash by which the next receipt names this one."""
        return blake3(self.to_bytes()).hexdigest()

    def follows(self, before: Receipt) -> bool:
        """Return whether this is the receipt of the next version in the same history."""
        return (self.run, self.policy) == (before.run, before.policy) and (
            self.version == before.version + 1 and self.previous == before.hash
        )


@dataclass(frozen=True, slots=True)
class SignedReceipt:
    """A receipt and the signature of one helper."""

    receipt: Receipt
    signature: bytes

    def is_signed_by(self, identity: Ed25519PublicKey) -> bool:
        """Return whether this helper has signed exactly this receipt."""
        return is_signed(identity, self.signature, self.receipt.to_bytes())


def is_signed(identity: Ed25519PublicKey, signature: bytes, content: bytes) -> bool:
    """Return whether the owner of this identity has signed this content."""
    try:
        identity.verify(signature, content)
    except InvalidSignature:
        return False
    return True


def key_content(policy: bytes, key_id: bytes, public: bytes) -> bytes:
    """Return what a helper signs of a key that clients seal seeds to. `policy`: its digest."""
    return b"tardigrad key 1\n" + policy + key_id + public


def sign_receipt(receipt: Receipt, key: Ed25519PrivateKey) -> SignedReceipt:
    """Return the receipt with a signature."""
    return SignedReceipt(receipt, key.sign(receipt.to_bytes()))


def read_receipt(content: bytes) -> Receipt:
    """Return the receipt in these signed bytes; raise a ReceiptError if they are none."""
    prefix, _, fields = content.partition(b"\n")
    try:
        receipt = Receipt(*json.loads(fields))
    except (ValueError, TypeError):
        raise ReceiptError("the server sent something that is not a receipt") from None
    if prefix != b"tardigrad receipt 1" or receipt.to_bytes() != content:
        raise ReceiptError("the server sent something that is not a receipt")
    return receipt


def agreed(
    receipts: Sequence[SignedReceipt], identities: Sequence[Ed25519PublicKey], policy: str, version: int
) -> Receipt:
    """Return the one receipt that all helpers have signed for this version; raise a ReceiptError if one of
    them has not, or if they differ."""
    if len(receipts) != len(identities):
        raise ReceiptError(
            f"version {version} has {len(receipts)} receipts, but there are {len(identities)} helpers"
        )
    for number, (one, identity) in enumerate(zip(receipts, identities), 1):
        if not one.is_signed_by(identity):
            raise ReceiptError(f"the receipt of version {version} is not signed by helper {number}")
    first = receipts[0].receipt
    if any(one.receipt != first for one in receipts):
        raise ReceiptError(
            f"the helpers have signed different receipts for version {version}: there are two histories"
        )
    if first.version != version or first.policy != policy:
        raise ReceiptError(
            f"the receipt is of version {first.version} of the policy {first.policy[:16]}, but the task is "
            f"of version {version} of {policy[:16]}"
        )
    return first
