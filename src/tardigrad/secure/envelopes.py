"""Envelopes: a seed that is sealed to one helper, for one upload, with HPKE (RFC 9180).

This is the only module that imports HPKE, because only newer versions of the cryptography library have it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from tardigrad.core.extras import pip_install
from tardigrad.errors import ConfigError
from tardigrad.secure.masks import SEED

try:
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
    from cryptography.hazmat.primitives.hpke import (
        AEAD,
        KDF,
        KEM,
        MLKEM768X25519PrivateKey,
        MLKEM768X25519PublicKey,
        Suite,
    )
except ImportError:
    raise ConfigError(
        f"secure aggregation needs a newer cryptography library; {pip_install('secure')}"
    ) from None

X25519_BYTES = 32
MLKEM_SEED = 64
"""Bytes of the private part of an ML-KEM key."""
CLASSIC = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
HYBRID = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


class EnvelopeError(Exception):
    """An envelope cannot be opened: it was sealed to another key, or for another upload."""


class Purpose(NamedTuple):
    """The one upload and helper that an envelope is sealed for. It is opened for no other."""

    policy: bytes
    """The digest of the run's policy."""
    helper: str
    """The identity of the helper: its public key."""
    key: bytes
    """The identifier of the key that the envelope is sealed to."""
    trip: int
    version: int
    client: str
    digest: bytes
    """The digest of the masked bytes."""

    def info(self) -> bytes:
        """Return what binds an envelope to this purpose."""
        parts = (
            b"tardigrad envelope 1", self.policy, self.helper.encode(), self.key,
            struct.pack("<QQ", self.trip, self.version), self.client.encode(), self.digest,
        )  # fmt: skip
        return blake3(b"".join(struct.pack("<I", len(part)) + part for part in parts)).digest()


class SealingKey(Protocol):
    """The private part of a key that a helper offers."""

    def private_bytes(self) -> bytes:
        """Return the key, to be stored."""

    def public_bytes(self) -> bytes:
        """Return what is offered to clients."""

    def open(self, sealed: bytes, info: bytes) -> bytes:
        """Return the seed in an envelope; raise an `EnvelopeError` if it was sealed for something else."""


@dataclass(frozen=True)
class ClassicKey:
    """An X25519 key. An envelope has 80 bytes."""

    own: X25519PrivateKey

    def private_bytes(self) -> bytes:
        """Return the key, to be stored."""
        return self.own.private_bytes_raw()

    def public_bytes(self) -> bytes:
        """Return what is offered to clients."""
        return self.own.public_key().public_bytes_raw()

    def open(self, sealed: bytes, info: bytes) -> bytes:
        """Return the seed in an envelope."""
        try:
            return _seed(CLASSIC.decrypt(sealed, self.own, info))
        except (InvalidTag, ValueError):
            raise EnvelopeError("the envelope was not sealed to this key, or for something else") from None


@dataclass(frozen=True)
class HybridKey:
    """An ML-KEM-768 key and an X25519 key: safe as long as one of the two is. An envelope has 1,168 bytes."""

    lattice: MLKEM768PrivateKey
    own: X25519PrivateKey

    def private_bytes(self) -> bytes:
        """Return the key, to be stored."""
        return self.lattice.private_bytes_raw() + self.own.private_bytes_raw()

    def public_bytes(self) -> bytes:
        """Return what is offered to clients."""
        return self.lattice.public_key().public_bytes_raw() + self.own.public_key().public_bytes_raw()

    def open(self, sealed: bytes, info: bytes) -> bytes:
        """Return the seed in an envelope."""
        try:
            return _seed(HYBRID.decrypt(sealed, MLKEM768X25519PrivateKey(self.lattice, self.own), info))
        except (InvalidTag, ValueError):
            raise EnvelopeError("the envelope was not sealed to this key, or for something else") from None


def new_sealing_key(post_quantum: bool) -> SealingKey:
    """Return a new key.

    >>> key = new_sealing_key(post_quantum=False)
    >>> sealed = seal(bytes(32), key.public_bytes(), b"a purpose")
    >>> len(sealed), key.open(sealed, b"a purpose") == bytes(32)
    (80, True)
    """
    if post_quantum:
        return HybridKey(MLKEM768PrivateKey.generate(), X25519PrivateKey.generate())
    return ClassicKey(X25519PrivateKey.generate())


def stored_sealing_key(private: bytes) -> SealingKey:
    """Return a key from its `private_bytes()`."""
    own = X25519PrivateKey.from_private_bytes(private[-X25519_BYTES:])
    if len(private) == X25519_BYTES:
        return ClassicKey(own)
    return HybridKey(MLKEM768PrivateKey.from_seed_bytes(private[:MLKEM_SEED]), own)


def seal(seed: bytes, public: bytes, info: bytes) -> bytes:
    """Seal a seed to the key with these public bytes; raise a ValueError if they are no key."""
    own = X25519PublicKey.from_public_bytes(public[-X25519_BYTES:])
    if len(public) == X25519_BYTES:
        return CLASSIC.encrypt(seed, own, info)
    lattice = MLKEM768PublicKey.from_public_bytes(public[:-X25519_BYTES])
    return HYBRID.encrypt(seed, MLKEM768X25519PublicKey(lattice, own), info)


def _seed(opened: bytes) -> bytes:
    if len(opened) != SEED:
        raise ValueError("what was sealed is not a seed")
    return opened
