"""The trips of a client in a secure run: what it checks before it trains, and how it hides its uploads.

The client believes the helpers that it has pinned, and not the server. What the server says must be in the
policy that all helpers have signed, in a receipt, or in a key that a helper has signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tardigrad.core.files import write_text
from tardigrad.core.upload import Upload
from tardigrad.encodings.common_grid import Grid
from tardigrad.errors import ConfigError, RunError
from tardigrad.privacy.releases import digest_of as digest_of_version
from tardigrad.secure.masks import masked, new_seeds
from tardigrad.secure.policy import Policy, declared_digest, policy_digest, read_policy
from tardigrad.secure.receipts import FIRST, ReceiptError, SignedReceipt, agreed, read_receipt
from tardigrad.service.access.enrolment import public_key
from tardigrad.service.client.client_memory import TrainedUpload
from tardigrad.service.client.client_trainer import Assignment
from tardigrad.service.client.guardrails import Guardrails
from tardigrad.service.client.seen_receipts import SeenReceipts
from tardigrad.service.protocol.task_settings import upload_encoding
from tardigrad.service.protocol.v1 import service_pb2 as v1

CODES = "/codes"
"""How the names of vectors end that are codes on the grid."""
KEY_PREFIX = b"tardigrad key 1\n"
"""What a helper signs of a key begins with this."""
CLASSIC_BYTES, HYBRID_BYTES = 32, 1216
"""Bytes of the keys that helpers offer."""


class SecureTrips:
    """The trips of one client in one secure run."""

    def __init__(self, policy: Policy, client: str, folder: Path) -> None:
        """Continue with what the client has seen of the run, in its own folder. Raise a ReceiptError if the
        policy is another one than before."""
        import tardigrad.secure.envelopes  # noqa: F401 - raises a ConfigError if the library is too old

        self.policy, self._client = policy, client
        self._identities = [_identity(helper) for helper in policy.helpers]
        self._digest = policy.digest
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._seen = SeenReceipts(folder)
        self._seen.check_history()
        file, content = folder / "policy.json", policy.to_bytes().decode()
        if not file.exists():
            write_text(file, content)
        elif file.read_text(encoding="utf-8") != content:
            raise ReceiptError(
                f"the policy of the run was changed: {file} has the one that this client has agreed to; a "
                "run keeps its policy, so the helpers or the server cannot be trusted"
            )

    def promise(self) -> str:
        """Return what the policy promises, in one sentence for the log."""
        policy, noise = self.policy, self.policy.noise
        count = len(policy.helpers)
        hidden = f"the server sees sums of at least {policy.least_clients} clients, and no single upload, "
        hidden += "unless it works together with " + ("the helper" if count == 1 else f"all {count} helpers")
        if noise is None:
            return f"{hidden}; nobody adds noise"
        if noise.seed is not None:
            return f"{hidden}; noise is drawn from a seed that everybody knows: nothing is private"
        return f"{hidden}; with noise, epsilon is {noise.epsilon:g} at delta {noise.delta:g}"

    def check_task(self, assignment: Assignment) -> None:
        """Raise an error unless the task is what the policy says, of a version that all helpers have signed
        and that belongs to the history that this client has seen."""
        policy, task = self.policy, assignment.task
        if assignment.settings != policy.settings:
            raise RunError(
                f"the task of trip {task.trip} has other settings than the policy that the helpers have "
                "signed, so it is not trained"
            )
        signed = [SignedReceipt(read_receipt(one.receipt), one.signature) for one in assignment.receipts]
        self._compare(signed)
        receipt = agreed(signed, self._identities, self._digest.hex(), task.version)
        if receipt.run != policy.run:
            raise ReceiptError(f"the receipt of version {task.version} is of the run {receipt.run[:32]}")
        if task.version == 0 and (receipt.digest, receipt.previous) != (policy.start, FIRST):
            raise ReceiptError("the receipt of version 0 is not of the model that the policy begins with")
        self._seen.keep(signed)
        found = digest_of_version(task.vectors)
        if found != receipt.digest:
            raise ReceiptError(
                f"the server sent another model as version {task.version} than the helpers have signed "
                f"(digest {found[:16]}, and not {receipt.digest[:16]}), so it is not trained"
            )

    def _compare(self, signed: Sequence[SignedReceipt]) -> None:
        """Stop if two helpers have signed different receipts for one version. Others are refused later."""
        true = [
            one
            for one, identity in zip(signed, self._identities)
            if one.receipt.policy == self._digest.hex() and one.is_signed_by(identity)
        ]
        for one in true[1:]:
            if one.receipt != true[0].receipt and one.receipt.version == true[0].receipt.version:
                self._seen.stop(true[:1], [one])

    def hidden(self, finished: TrainedUpload) -> TrainedUpload:
        """Return the upload with masks, and without everything else that would tell of its client.

        The seeds are new ones of the operating system. They stay with the client.
        """
        policy, vectors = self.policy, finished.upload.vectors
        lengths = {name.removesuffix(CODES): vector.numel() for name, vector in vectors.items()}
        named = {vector.name: vector.length for vector in policy.vectors}
        if list(lengths.items()) != list(named.items()):
            raise RunError(
                f"the upload has vectors of the lengths {lengths}, and the policy names {named}, so nothing "
                "is sent; give the module that the server has"
            )
        seeds = new_seeds(len(policy.helpers))
        upload = Upload(masked(vectors, seeds, policy.bits), examples=1, steps=1, loss=0.0)
        return replace(finished, upload=upload, metrics={}, evaluated=0, seeds=seeds)

    def envelopes(self, finished: TrainedUpload, keys: Sequence[v1.OfferedKey]) -> list[v1.Envelope]:
        """Seal the seeds of an upload to the keys that the helpers offer now. Raise a RunError if a key is
        not of its helper."""
        from tardigrad.secure.envelopes import Purpose, seal

        policy, digest = self.policy, finished.digest
        if len(finished.seeds) != len(policy.helpers):
            raise RunError(
                f"the upload of trip {finished.trip} is not masked for this run, so it is not sent; remove "
                "its file from the client's state"
            )
        self._check_keys(keys)
        sealed = []
        for helper, key, seed in zip(policy.helpers, keys, finished.seeds, strict=True):
            purpose = Purpose(
                self._digest, helper, key.key_id, finished.trip, finished.version, self._client, digest
            )
            sealed.append(v1.Envelope(key_id=key.key_id, sealed=seal(seed, key.public_key, purpose.info())))
        return sealed

    def _check_keys(self, keys: Sequence[v1.OfferedKey]) -> None:
        if len(keys) != len(self._identities):
            raise RunError(
                f"the server offers {len(keys)} keys of {len(self._identities)} helpers, so nothing is sent"
            )
        size = HYBRID_BYTES if self.policy.post_quantum else CLASSIC_BYTES
        for number, (key, identity) in enumerate(zip(keys, self._identities), 1):
            content = KEY_PREFIX + self._digest + key.key_id + key.public_key
            if len(key.public_key) != size or not _is_signed(identity, key.signature, content):
                raise RunError(
                    f"the key that the server offers for helper {number} is not signed by that helper for "
                    "this run, so nothing is sent"
                )


def secure_trips(
    joined: v1.Joined, guardrails: Guardrails, client: str, state: Path, declaration: str | None = None
) -> SecureTrips | None:
    """Return the trips of a client in the secure run that it has joined; None if the run is not secure.

    Raise a ConfigError if the client does not take part, because of its guardrails or because the policy is
    not signed by the helpers that it has pinned. `state`: the folder with what the client keeps.
    `declaration`: what the server declared, if the client was made of it and of a table.
    """
    if not joined.policy:
        if guardrails.helpers:
            raise ConfigError(
                "this client takes part in secure runs only, because it has pinned helpers, and this run is "
                "not secure: the server would see each upload. Nothing is trained; leave --helper out if "
                "that is meant"
            )
        return None
    policy = read_policy(joined.policy)
    guardrails.check(policy)
    if len(joined.policy_signatures) != len(policy.helpers):
        raise ConfigError(
            f"the policy of the run has {len(joined.policy_signatures)} signatures of {len(policy.helpers)} "
            "helpers, so nothing is trained"
        )
    for helper, signature in zip(policy.helpers, joined.policy_signatures, strict=True):
        if not _is_signed(_identity(helper), signature, policy_digest(joined.policy)):
            raise ConfigError(
                f"the policy of the run is not signed by the helper {helper}, so nothing is trained"
            )
    if (policy.run, policy.settings) != (joined.run, joined.settings):
        raise ConfigError(
            "the server's run or settings are not those of the policy that the helpers have signed, so "
            "nothing is trained"
        )
    if declaration is not None and declared_digest(declaration) != policy.declaration:
        raise ConfigError(
            "the server declared other columns, or another model, than the policy that the helpers have "
            "signed, so nothing is trained"
        )
    _check_grid(policy)
    return SecureTrips(policy, client, state / policy.run)


def _check_grid(policy: Policy) -> None:
    """Raise a ConfigError if the settings ask for another grid than the one that the policy has."""
    grid = upload_encoding(policy.settings)
    signed = policy.bits, policy.step, policy.largest, policy.denominator, policy.norm
    if not isinstance(grid, Grid) or signed != (
        grid.bits, grid.step, grid.largest, grid.denominator, grid.norm(sum(policy.lengths)),
    ):  # fmt: skip
        raise ConfigError(
            "the settings of the policy ask for another grid than the policy has, so nothing is trained"
        )


def _identity(text: str) -> Ed25519PublicKey:
    return public_key(text, "the policy's helpers")


def _is_signed(identity: Ed25519PublicKey, signature: bytes, content: bytes) -> bool:
    try:
        identity.verify(signature, content)
    except InvalidSignature:
        return False
    return True
