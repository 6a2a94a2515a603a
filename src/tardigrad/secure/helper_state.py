"""A helper's decisions: which uploads it admits, what it releases, which versions it signs.

It knows no network. Each call is one transaction, can be repeated, and then has the same outcome. A call
that another one contradicts is refused for ever. Whatever is given away was made durable before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tardigrad.core.outcomes import Reason
from tardigrad.core.upload import Vectors
from tardigrad.errors import ConfigError, RunError
from tardigrad.privacy.releases import NEW_RUN, ReleaseLog, digest_of
from tardigrad.secure.batches import AdmittedUpload, BatchBook, too_few
from tardigrad.secure.envelopes import (
    EnvelopeError,
    Purpose,
    SealingKey,
    new_sealing_key,
    stored_sealing_key,
)
from tardigrad.secure.helper_database import DecidedBatch, HelperDatabase, SealingKeyRecord, TripRecord
from tardigrad.secure.helper_guardrails import HelperGuardrails, check_policy
from tardigrad.secure.masks import UNSIGNED, Codes, weighted_masks
from tardigrad.secure.policy import Policy, policy_digest, read_policy
from tardigrad.secure.receipts import FIRST, Receipt, SignedReceipt, read_receipt, sign_receipt
from tardigrad.secure.step_repetition import StepRepetition, difference, stored_repetition

RESEAL = "sealed to an old key"
"""The refusal of an upload whose client must ask for the present key, seal again and deliver again."""
KEYS = 2
"""Keys whose envelopes can be opened: the newest and the one before."""
LARGEST_NUMBER = 2**63 - 1
"""Of a trip or a version that the database can store."""
LOG = "releases.log"


class RefusalKind(StrEnum):
    """Why a call was refused; the server acts on it."""

    TOO_FEW = "too few clients"
    """The batch can only be abandoned."""
    HISTORY = "another history"
    """A side was put back from a backup, or would make a second history."""
    ORDER = "not now"
    """The call does not fit what has happened so far."""
    POLICY = "policy"
    """The policy is not acceptable."""
    BUDGET = "budget used up"
    """The noise was planned for fewer steps."""


class HelperRefusal(Exception):
    """A call that was refused, with one sentence for the server's operator. It has changed nothing."""

    def __init__(self, kind: RefusalKind, sentence: str) -> None:
        super().__init__(sentence)
        self.kind, self.sentence = kind, sentence


class OfferedUpload(NamedTuple):
    """What a helper uses of a client's signed header."""

    client: str
    run: str
    trip: int
    version: int
    digest: bytes
    """Of the masked bytes."""
    envelopes: tuple[tuple[bytes, bytes], ...]
    """Key identifier and sealed seed, for each helper."""
    fault: str = ""
    """Why its signature is not that of a client on the helper's own list; "" if it is."""


class HelperKey(NamedTuple):
    """A key that clients seal their seeds to, signed by the helper."""

    key_id: bytes
    public: bytes
    signature: bytes


@dataclass
class _BegunRun:
    """The run that a helper takes part in."""

    policy: Policy
    digest: bytes
    signature: bytes
    """The helper's, of the policy's digest."""
    position: int
    """Of this helper among the policy's."""
    book: BatchBook
    repetition: StepRepetition
    receipt: SignedReceipt
    """The newest."""
    keys: dict[bytes, SealingKey]
    """By identifier, the newest last."""

    @property
    def version(self) -> int:
        return self.receipt.receipt.version


class HelperState:
    """All that a helper knows and decides, in one folder."""

    def __init__(
        self,
        folder: Path,
        identity: Ed25519PrivateKey,
        server: str,
        guardrails: HelperGuardrails | None = None,
        key_seconds: float = 60.0,
        guard: Path | None = None,
        moved: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Open the folder, or create it.

        `server`: the public key of the only server that is served. `key_seconds`: a sealing key is replaced
        when a batch is released, if it has been there for so long. `guard`, `moved`: as those of a private
        run (`ReleaseLog`).
        """
        self._identity, self._server, self._now = identity, server, now
        self._guardrails, self._key_seconds = guardrails or HelperGuardrails(), key_seconds
        self._failed = False
        self._run: _BegunRun | None = None
        self.identity = _public(identity)
        """The helper's public key in base64."""
        self._database = HelperDatabase(folder)
        try:
            content = self._database.fact("policy")
            self._log = ReleaseLog(folder / LOG, guard, moved, begun=content is not None)
            try:
                if content is not None:
                    self._resume(content)
                self._compare_log()
            except BaseException:
                self._log.close()
                raise
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> HelperState:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
        self._database.close()

    # -- what a server is told ---------------------------------------------------------------------

    @property
    def policy(self) -> Policy | None:
        """The policy of the run, or None if none has begun."""
        return None if self._run is None else self._run.policy

    @property
    def policy_signature(self) -> bytes:
        """The signature of the policy's digest; b"" if no run has begun."""
        return b"" if self._run is None else self._run.signature

    @property
    def receipt(self) -> SignedReceipt | None:
        """The newest receipt, or None if no run has begun."""
        return None if self._run is None else self._run.receipt

    @property
    def key(self) -> HelperKey | None:
        """The key that clients seal their seeds to now, or None if no run has begun."""
        if self._run is None:
            return None
        key_id, key = next(reversed(self._run.keys.items()))
        public = key.public_bytes()
        signed = self._identity.sign(b"tardigrad key 1\n" + self._run.digest + key_id + public)
        return HelperKey(key_id, public, signed)

    @property
    def open_batch(self) -> int:
        """The number of the batch that is being filled; 0 if no run has begun."""
        return 0 if self._run is None else self._run.book.open.number

    def version(self) -> Vectors:
        """Return the newest version with a receipt; {} if no run has begun."""
        return {} if self._run is None else self._run.repetition.broadcast()

    def places(self) -> list[tuple[AdmittedUpload, bytes]]:
        """Return the uploads of all batches that no receipt covers yet, in order, and their digests."""
        return [] if self._run is None else self._database.members(self._run.version)

    # -- calls -------------------------------------------------------------------------------------

    def greet(self, run: str, receipt: bytes, version: int) -> None:
        """Compare the histories of both sides. `receipt`: the hash of the server's newest, b"" for none."""
        with self._call():
            own = self._run
            if own is None:
                if receipt:
                    _refuse(
                        RefusalKind.HISTORY,
                        f"the server has receipts of the run {run} up to version {version}, but this helper "
                        f"knows of no run: its folder was lost or replaced; {NEW_RUN}",
                    )
                return
            if run and run != own.policy.run:
                _refuse(
                    RefusalKind.HISTORY,
                    f"this helper takes part in the run {own.policy.run}, not in {run}; give it a new folder "
                    "for each run",
                )
            newest = own.receipt.receipt
            same = (version, receipt) == (newest.version, bytes.fromhex(newest.hash))
            behind = (version, receipt) == (newest.version - 1, bytes.fromhex(newest.previous))
            new = not receipt and newest.version == 0  # the server was stopped before it stored the first
            if not (same or behind or new):
                who = "the helper" if version > newest.version else "the server"
                _refuse(
                    RefusalKind.HISTORY,
                    f"the last receipt of the server is of version {version}, that of the helper of version "
                    f"{newest.version}, and they are not of one history: {who} was put back from a backup; "
                    + NEW_RUN,
                )

    def begin(self, content: bytes, vectors: Vectors) -> SignedReceipt:
        """Begin a run: check its policy and version 0, sign both, and return the receipt of version 0."""
        with self._call():
            if self._run is not None:
                if content != self._run.policy.to_bytes():
                    _refuse(
                        RefusalKind.POLICY,
                        "the policy is not the one that the run began with; a run keeps its policy",
                    )
                return self._stored_receipt(0)
            try:
                policy = read_policy(content)
                check_policy(policy, self.identity, self._server, self._guardrails)
                if digest_of(vectors) != policy.start:
                    raise ConfigError("version 0 does not have the digest that the policy says")
                repetition = StepRepetition(policy, vectors["model"])
                if fault := difference(vectors, start := repetition.broadcast(), start):
                    raise ConfigError(f"version 0 does not belong to the algorithm: {fault}")
                repetition.adopt(vectors)
            except ConfigError as error:
                _refuse(RefusalKind.POLICY, str(error))
            receipt = Receipt(policy.run, 0, policy.start, policy.digest.hex(), FIRST)
            with self._database.transaction():
                self._database.set_fact("policy", content)
                signed = self._sign(receipt)
                self._database.store("step", repetition.to_bytes())
                self._add_key(policy)
            self._resume(content)
            return signed

    def admit(self, offers: Sequence[OfferedUpload], check_only: bool = False) -> list[TripRecord]:
        """Decide about uploads, in order. With `check_only` none is admitted, and only those are refused that
        would be refused whatever else is in the batch."""
        with self._call():
            run = self._begun()
            with self._database.transaction():
                return [self._decide(run, offer, check_only) for offer in offers]

    def close(self, batch: int, masked_digest: bytes) -> Codes:
        """Release a full batch: return its mask sum less noise, once and for all."""
        with self._call():
            run = self._begun()
            decided = self._decided(batch, run)
            if decided is not None:
                if decided.abandoned or decided.masked_digest != masked_digest:
                    how = "abandoned" if decided.abandoned else "released for another masked sum"
                    _refuse(RefusalKind.HISTORY, f"batch {batch} was {how}, and a batch is decided once")
                return self._recorded(batch, run.policy)
            members = self._full(run, batch)
            policy = run.policy
            if too_few(policy, members):
                _refuse(
                    RefusalKind.TOO_FEW,
                    f"batch {batch} has fewer than {policy.least_clients} effective clients; abandon it",
                )
            seeds = self._database.seeds(batch)
            release = weighted_masks(
                ((seeds[one.trip], policy.weights(one.staleness)) for one in members),
                policy.lengths,
                policy.bits,
            )
            with self._database.transaction():
                self._database.decide(DecidedBatch(batch, masked_digest, False))
                self._database.store("release", release.data)
                if self._now() - self._database.sealing_keys()[-1].made >= self._key_seconds:
                    self._add_key(policy)
            run.keys = self._stored_keys()
            return self._recorded(batch, policy)

    def publish(self, version: int, digest: str, total: Codes, vectors: Vectors) -> SignedReceipt:
        """Repeat the step of a released batch, compare it with the server's version, and sign that one.

        `total`: the sum without masks. With one helper it must be that of the masked sum which the batch was
        released for. With several, only all of them together could check it.
        """
        with self._call():
            run = self._begun()
            if version == run.version:
                if digest == run.receipt.receipt.digest:
                    return run.receipt
                _refuse(RefusalKind.HISTORY, f"version {version} was signed with another digest")
            decided = self._decided(version, run)
            if decided is None:
                _refuse(RefusalKind.ORDER, f"batch {version} was not released, so there is no such version")
            self._check_published(run, decided, digest, total, vectors)
            members = run.book.full[version].members
            before = run.repetition.broadcast()
            if fault := difference(vectors, run.repetition.step(total, members), before):
                run.repetition.take_back()
                _refuse(
                    RefusalKind.HISTORY, f"version {version} is not the step of the released sum: {fault}"
                )
            run.repetition.adopt(vectors)
            with self._database.transaction():
                run.receipt = self._sign(_next(run.receipt.receipt, digest))
                self._database.store("step", run.repetition.to_bytes())
                self._forget(run, version)
            self._database.scrub()
            return run.receipt

    def abandon(self, batch: int) -> SignedReceipt:
        """Give up a full batch, once and for all: nothing is released, and its version is that before."""
        with self._call():
            run = self._begun()
            last = self._database.last_decided()
            if last is not None and last.number == batch == run.version and last.abandoned:
                return run.receipt
            if self._decided(batch, run) is not None:
                _refuse(RefusalKind.ORDER, f"batch {batch} was released, and cannot be abandoned any more")
            self._full(run, batch)
            run.repetition.skip()
            with self._database.transaction():
                self._database.decide(DecidedBatch(batch, b"", True))
                run.receipt = self._sign(_next(run.receipt.receipt, run.receipt.receipt.digest))
                self._database.store("step", run.repetition.to_bytes())
                self._forget(run, batch)
            self._database.scrub()
            self._log.release(batch, {})
            return run.receipt

    # -- details -----------------------------------------------------------------------------------

    @contextmanager
    def _call(self) -> Iterator[None]:
        """After an error that is not a refusal, memory and database may differ: refuse all further calls."""
        if self._failed:
            raise RunError("the helper has failed before; start it again")
        try:
            yield
        except HelperRefusal:
            raise
        except BaseException:
            self._failed = True
            raise

    def _begun(self) -> _BegunRun:
        if self._run is None:
            _refuse(RefusalKind.ORDER, "no run has begun here; send its policy first")
        return self._run

    def _decide(self, run: _BegunRun, offer: OfferedUpload, check_only: bool) -> TripRecord:
        trip, client, version, digest = offer.trip, offer.client, offer.version, offer.digest
        refused = TripRecord(trip, client, version, digest, 0, 0, 0, Reason.UNKNOWN.value)
        if max(trip, version) > LARGEST_NUMBER:
            return refused
        known = self._database.trip(trip)
        if known is not None:
            if (client, version, digest) == known[1:4]:
                return known
            return refused._replace(refusal="delivered before with other bytes")
        seed, refusal = self._opened(run, offer)
        if refusal == RESEAL or (check_only and not refusal):
            return refused._replace(refusal=refusal)
        record = refused._replace(refusal=refusal)
        if not refusal:
            found = run.book.admit(trip, client, version)
            if isinstance(found, AdmittedUpload):
                record = refused._replace(
                    batch=found.batch, place=found.place, weight=found.weight, refusal=""
                )
            else:
                record = refused._replace(refusal=found.value)
        self._database.add_trip(record, seed if record.batch else None)
        return record

    def _opened(self, run: _BegunRun, offer: OfferedUpload) -> tuple[bytes, str]:
        """Return the seed in the envelope to this helper, or b"" and why the upload is refused."""
        policy = run.policy
        if offer.fault:
            return b"", offer.fault
        if offer.run != policy.run:
            return b"", "the upload is of another run"
        if offer.version > run.version:
            return b"", Reason.UNKNOWN.value
        if len(offer.envelopes) != len(policy.helpers):
            return b"", "the upload must have one envelope for each helper"
        key_id, sealed = offer.envelopes[run.position]
        key = run.keys.get(key_id)
        if key is None:
            return b"", RESEAL
        purpose = Purpose(
            run.digest, self.identity, key_id, offer.trip, offer.version, offer.client, offer.digest
        )
        try:
            return key.open(sealed, purpose.info()), ""
        except EnvelopeError:
            return b"", "the envelope was not sealed for this upload"

    def _decided(self, batch: int, run: _BegunRun) -> DecidedBatch | None:
        """Return how the next batch was decided, or None if it was not; refuse a batch out of order."""
        if batch != run.version + 1:
            _refuse(
                RefusalKind.ORDER,
                f"batch {batch} is not the next one: the last version with a receipt is {run.version}",
            )
        last = self._database.last_decided()
        return last if last is not None and last.number == batch else None

    def _full(self, run: _BegunRun, batch: int) -> list[AdmittedUpload]:
        full = run.book.full.get(batch)
        if full is None:
            held = len(run.book.open.members)
            _refuse(
                RefusalKind.ORDER,
                f"batch {batch} is not full: {held} of {run.policy.batch_size(batch)} uploads were admitted",
            )
        return full.members

    def _recorded(self, batch: int, policy: Policy) -> Codes:
        """Return the released bytes of the last batch, once they are in the log."""
        release = np.frombuffer(self._database.load("release"), UNSIGNED[policy.bits])
        self._log.release(batch, {"release": torch.from_numpy(release.view(np.uint8).copy())})
        return release

    def _check_published(
        self, run: _BegunRun, decided: DecidedBatch, digest: str, total: Codes, vectors: Vectors
    ) -> None:
        if digest_of(vectors) != digest:
            _refuse(RefusalKind.ORDER, "the new version does not have the digest that was said")
        dtype, length = np.dtype(UNSIGNED[run.policy.bits]), sum(run.policy.lengths)
        if len(total) != length or total.dtype != dtype:
            _refuse(RefusalKind.ORDER, f"the sum must have {length} numbers of {dtype}")
        if len(run.policy.helpers) == 1:
            masked = total + np.frombuffer(self._database.load("release"), dtype)
            if blake3(masked.view(np.uint8).data).digest() != decided.masked_digest:
                _refuse(
                    RefusalKind.HISTORY,
                    "the sum is not that of the masked sum which the batch was released for",
                )

    def _forget(self, run: _BegunRun, batch: int) -> None:
        """Erase what a batch has no use for after its receipt."""
        self._database.erase("release")
        self._database.erase_seeds(batch)
        run.book.remove(batch)

    def _sign(self, receipt: Receipt) -> SignedReceipt:
        signed = sign_receipt(receipt, self._identity)
        self._database.add_receipt(receipt.version, receipt.to_bytes(), signed.signature)
        return signed

    def _stored_receipt(self, version: int | None) -> SignedReceipt:
        """Return the receipt of a version, or the newest."""
        content, signature = self._database.receipt(version)
        return SignedReceipt(read_receipt(content), signature)

    def _add_key(self, policy: Policy) -> None:
        key = new_sealing_key(policy.post_quantum)
        record = SealingKeyRecord(os.urandom(16), key.private_bytes(), self._now())
        self._database.add_sealing_key(record, KEYS)

    def _stored_keys(self) -> dict[bytes, SealingKey]:
        return {one.key_id: stored_sealing_key(one.private) for one in self._database.sealing_keys()}

    # -- opening a folder --------------------------------------------------------------------------

    def _resume(self, content: bytes) -> None:
        """Continue the run with this policy."""
        policy = read_policy(content)
        if policy.server != self._server or self.identity not in policy.helpers:
            raise ConfigError(
                f"the run in this folder is of the server {policy.server} and of other keys; give the same "
                "--keys and --server as before, or another folder"
            )
        receipt = self._stored_receipt(None)
        version, digest = receipt.receipt.version, policy_digest(content)
        book = BatchBook(policy)
        book.open.number = version + 1
        if book.ledger is not None:
            book.ledger.restore({"entries": self._database.participations(version)}, version + 1)
        for admitted, _ in self._database.members(version):
            book.enter(admitted)
        self._run = _BegunRun(
            policy,
            digest,
            self._identity.sign(digest),
            policy.helpers.index(self.identity),
            book,
            stored_repetition(policy, self._database.load("step")),
            receipt,
            self._stored_keys(),
        )

    def _compare_log(self) -> None:
        """Raise a ConfigError unless log and database are of one history; complete the log if the process
        was killed between the two."""
        last = self._database.last_decided()
        number = 0 if last is None else last.number
        if last is not None and self._run is not None and self._log.last == number - 1:
            if last.abandoned:
                self._log.release(number, {})
            elif number > self._run.version:
                self._recorded(number, self._run.policy)
        if self._log.last != number:
            raise ConfigError(
                f"{LOG} knows of {self._log.last} batches and the database of {number}: a part of the folder "
                f"was put back from a backup; {NEW_RUN}"
            )


def _refuse(kind: RefusalKind, sentence: str) -> NoReturn:
    raise HelperRefusal(kind, sentence)


def _next(receipt: Receipt, digest: str) -> Receipt:
    """Return the receipt of the next version."""
    return Receipt(receipt.run, receipt.version + 1, digest, receipt.policy, receipt.hash)


def _public(key: Ed25519PrivateKey) -> str:
    import base64

    return base64.b64encode(key.public_key().public_bytes_raw()).decode()
