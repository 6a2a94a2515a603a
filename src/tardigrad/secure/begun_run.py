"""The run that a helper takes part in, as it is in memory. It is rebuilt from the database at every start."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tardigrad.errors import ConfigError
from tardigrad.privacy.releases import NEW_RUN
from tardigrad.secure.batches import AdmittedUpload, BatchBook
from tardigrad.secure.envelopes import SealingKey, new_sealing_key, stored_sealing_key
from tardigrad.secure.helper_database import HelperDatabase, SealingKeyRecord
from tardigrad.secure.integer_noise import IntegerNoise
from tardigrad.secure.masks import UNSIGNED, Codes, weighted_masks
from tardigrad.secure.policy import Policy, policy_digest, read_policy
from tardigrad.secure.receipts import Receipt, SignedReceipt, read_receipt
from tardigrad.secure.step_repetition import StepRepetition, stored_repetition
from tardigrad.secure.stored_state import from_bytes

PUT_BACK = f"a part of the folder was put back from a backup; {NEW_RUN}"
KEPT_KEYS = 2
"""Keys whose envelopes can be opened: the newest and the one before."""


@dataclass
class BegunRun:
    """A run that has begun."""

    policy: Policy
    digest: bytes
    """The digest of the policy."""
    signature: bytes
    """The helper's, of that digest."""
    position: int
    """The position of this helper among those of the policy."""
    book: BatchBook
    repetition: StepRepetition
    noise: IntegerNoise | None
    receipt: SignedReceipt
    """The newest."""
    keys: dict[bytes, SealingKey]
    """By identifier, the newest last."""
    release: Codes | None = None
    """The sum that was released for the batch that has no receipt yet; None if it was not released."""

    @property
    def version(self) -> int:
        """The newest version with a receipt."""
        return self.receipt.receipt.version

    def next_receipt(self, digest: str) -> Receipt:
        """Return the receipt of the next version, which has this digest."""
        last = self.receipt.receipt
        return Receipt(last.run, last.version + 1, digest, last.policy, last.hash)


def resumed_run(database: HelperDatabase, identity: Ed25519PrivateKey, server: str) -> BegunRun | None:
    """Return the run in this database; None if none has begun. `server`: the server's public key."""
    content = database.fact("policy")
    if content is None:
        return None
    policy, public = read_policy(content), public_text_of(identity)
    if policy.server != server or public not in policy.helpers:
        raise ConfigError(
            f"the folder holds the run {policy.run} of the server {policy.server} with the helpers "
            f"{', '.join(policy.helpers)}, but this is the helper {public} of the server {server}; give the "
            "same --keys and --server as before, or another --out"
        )
    receipt = stored_receipt(database, None)
    version, position = receipt.receipt.version, policy.helpers.index(public)
    book = BatchBook(policy)
    book.open.number = version + 1
    if book.ledger is not None:
        book.ledger.restore({"entries": database.participations(version)}, version + 1)
    for admitted, _ in database.members(version):
        book.enter(admitted)
    released, values, noise = database.last_released(), database.values, None
    step = values.load("step", version)
    if not step:
        raise ConfigError(f"the state of version {version} is gone: {PUT_BACK}")
    for name, number in (("step", version), ("release", version + 1), ("noise", released)):
        values.keep(name, number, secret=name != "step")  # delete what a process that was killed has left
    if policy.noise is not None:
        noise = IntegerNoise(policy.noise, sum(policy.lengths), position)
        if released:
            noise.restore(*from_bytes(values.load("noise", released)))
    release = None
    if released == version + 1 and noise is None:
        release = mask_sum(database, policy, book.full[released].members)
    elif released == version + 1:
        release = np.frombuffer(bytearray(values.load("release", released)), UNSIGNED[policy.bits])
    digest = policy_digest(content)
    return BegunRun(
        policy, digest, identity.sign(digest), position, book,
        stored_repetition(policy, step), noise, receipt, stored_keys(database),
        release,
    )  # fmt: skip


def mask_sum(database: HelperDatabase, policy: Policy, members: Sequence[AdmittedUpload]) -> Codes:
    """Return the sum of weight times mask over the uploads of a batch, whose seeds are not erased yet."""
    seeds = database.seeds(members[0].batch)
    weighted = ((seeds[one.trip], policy.weights(one.staleness)) for one in members)
    return weighted_masks(weighted, policy.lengths, policy.bits)


def stored_receipt(database: HelperDatabase, version: int | None) -> SignedReceipt:
    """Return the receipt of a version, or the newest."""
    content, signature = database.receipt(version)
    return SignedReceipt(read_receipt(content), signature)


def add_key(database: HelperDatabase, policy: Policy, now: float) -> None:
    """Store a new key that clients seal seeds to, and erase those that are too old."""
    key = new_sealing_key(policy.post_quantum)
    database.add_sealing_key(SealingKeyRecord(os.urandom(16), key.private_bytes(), now), KEPT_KEYS)


def stored_keys(database: HelperDatabase) -> dict[bytes, SealingKey]:
    """Return the keys that are kept, by identifier, the newest last."""
    return {one.key_id: stored_sealing_key(one.private) for one in database.sealing_keys()}


def public_text_of(key: Ed25519PrivateKey) -> str:
    """Return the public key in base64."""
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()
