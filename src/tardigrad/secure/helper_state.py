"""A helper's decisions: which uploads it admits, what it releases, which versions it signs.

It knows no network. Each call is one transaction, can be repeated, and then has the same outcome. A call that
contradicts an earlier one is refused for ever. Whatever is given away was made durable before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tardigrad.core.upload import Vectors
from tardigrad.errors import ConfigError, RunError
from tardigrad.privacy.releases import ReleaseLog, digest_of
from tardigrad.secure.admission import OfferedUpload, decide
from tardigrad.secure.batches import AdmittedUpload, too_few
from tardigrad.secure.begun_run import (
    BegunRun,
    add_key,
    mask_sum,
    public_text_of,
    resumed_run,
    stored_keys,
    stored_receipt,
)
from tardigrad.secure.helper_database import DecidedBatch, HelperDatabase, TripRecord
from tardigrad.secure.helper_guardrails import HelperGuardrails, check_policy
from tardigrad.secure.helper_refusals import HelperRefusal, RefusalKind, refuse
from tardigrad.secure.histories import check_greeting, record_release, resumed_history
from tardigrad.secure.masks import UNSIGNED, Codes
from tardigrad.secure.policy import Policy, read_policy
from tardigrad.secure.receipts import FIRST, Receipt, SignedReceipt, sign_receipt
from tardigrad.secure.step_repetition import begun_repetition, difference
from tardigrad.secure.stored_state import to_bytes

LOG = "releases.log"
KEY_SECONDS = 60.0
"""How long clients may seal to one key. It is longer than most uploads take, so that few must seal again."""


class HelperKey(NamedTuple):
    """A key that clients seal their seeds to, signed by the helper."""

    key_id: bytes
    public: bytes
    signature: bytes


class HelperState:
    """All that a helper knows and decides, in one folder. Use it as a context, which closes its files."""

    def __init__(
        self,
        folder: Path,
        identity: Ed25519PrivateKey,
        server: str,
        guardrails: HelperGuardrails | None = None,
        key_seconds: float = KEY_SECONDS,
        guard: Path | None = None,
        moved: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Open the folder, or create it.

        `server`: the public key of the only server that is served. `key_seconds`: a sealing key is replaced
        when a batch is released, if it has been there for so long. `guard`, `moved`: as for a private run
        (`ReleaseLog`). `now`: returns the time.
        """
        self._identity, self._server, self._now = identity, server, now
        self._guardrails, self._key_seconds = guardrails or HelperGuardrails(), key_seconds
        self._failed = False
        self.identity = public_text_of(identity)
        """The helper's public key in base64."""
        self._database = HelperDatabase(folder)
        try:
            begun = self._database.fact("policy") is not None
            self._log = ReleaseLog(folder / LOG, guard, moved, begun=begun)
            try:
                self._run = resumed_history(self._database, self._log, identity, server)
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
            check_greeting(self._run, run, receipt, version)

    def begin(self, content: bytes, vectors: Vectors) -> SignedReceipt:
        """Begin a run: check its policy and version 0, sign both, and return the receipt of version 0."""
        with self._call():
            if self._run is not None:
                if content != self._run.policy.to_bytes():
                    refuse(
                        RefusalKind.POLICY,
                        "the policy is not the one that the run began with; a run keeps its policy",
                    )
                return stored_receipt(self._database, 0)
            try:
                policy = read_policy(content)
                check_policy(policy, self.identity, self._server, self._guardrails)
                if digest_of(vectors) != policy.start:
                    raise ConfigError("version 0 does not have the digest that the policy says")
                repetition = begun_repetition(policy, vectors)
            except ConfigError as error:
                refuse(RefusalKind.POLICY, str(error))
            self._database.values.store("step", 0, repetition.to_bytes())
            with self._database.transaction():
                self._database.set_fact("policy", content)
                signed = self._sign(Receipt(policy.run, 0, policy.start, policy.digest.hex(), FIRST))
                add_key(self._database, policy, self._now())
            self._run = resumed_run(self._database, self._identity, self._server)
            return signed

    def admit(self, offers: Sequence[OfferedUpload], check_only: bool = False) -> list[TripRecord]:
        """Decide about uploads, in order. With `check_only` none is admitted, and only those are refused that
        would be refused whatever else is in the batch."""
        with self._call():
            run = self._begun()
            with self._database.transaction():
                return [decide(run, self._database, offer, check_only) for offer in offers]

    def close(self, batch: int, masked_digest: bytes) -> Codes:
        """Release a full batch: return its mask sum less noise, once and for all."""
        with self._call():
            run = self._begun()
            if self._database.last_decided() == DecidedBatch(batch, b"", True):
                refuse(RefusalKind.TOO_FEW, f"batch {batch} was abandoned")  # the server was killed then
            decided = self._decided(batch, run)
            if decided is not None:
                if decided.masked_digest != masked_digest:
                    refuse(
                        RefusalKind.HISTORY,
                        f"batch {batch} was released for another masked sum, and it is released once",
                    )
                return self._recorded(run)
            members, policy = self._full(run, batch), run.policy
            if too_few(policy, members):
                refuse(
                    RefusalKind.TOO_FEW,
                    f"batch {batch} has fewer than {policy.least_clients} effective clients; abandon it",
                )
            if policy.noise is not None and batch > policy.noise.allowed:
                refuse(RefusalKind.BUDGET, f"the noise allows {policy.noise.allowed} steps, which were made")
            release = mask_sum(self._database, policy, members)
            if run.noise is not None:  # it is drawn once, because its state changes with the release
                release -= run.noise.draw(batch - 1).astype(release.dtype)
                self._database.values.store("noise", batch, to_bytes(*run.noise.snapshot()))
                self._database.values.store("release", batch, release.data)
            with self._database.transaction():
                self._database.decide(DecidedBatch(batch, masked_digest, False))
                if self._now() - self._database.sealing_keys()[-1].made >= self._key_seconds:
                    add_key(self._database, policy, self._now())
            self._database.values.keep("noise", batch, secret=True)
            run.keys, run.release = stored_keys(self._database), release
            return self._recorded(run)

    def publish(self, version: int, digest: str, total: Codes, vectors: Vectors) -> SignedReceipt:
        """Repeat the step of a released batch, compare it with the server's version, and sign that one.

        `total`: the sum without masks. With one helper it must be that of the masked sum which the batch was
        released for. With several, only all of them together could check it.
        """
        with self._call():
            run = self._begun()
            if version == run.version:
                if digest != run.receipt.receipt.digest:
                    refuse(RefusalKind.HISTORY, f"version {version} was signed with another digest")
                return run.receipt
            decided = self._decided(version, run)
            if decided is None:
                refuse(RefusalKind.ORDER, f"batch {version} was not released, so there is no such version")
            self._check_published(run, decided, digest, total, vectors)
            before, members = run.repetition.broadcast(), run.book.full[version].members
            if fault := difference(vectors, run.repetition.step(total, members), before):
                run.repetition.take_back()
                refuse(RefusalKind.HISTORY, f"version {version} is not the step of the released sum: {fault}")
            run.repetition.adopt(vectors)
            self._receipted(run, digest)
            return run.receipt

    def abandon(self, batch: int) -> SignedReceipt:
        """Give up a full batch, once and for all: nothing is released, and its version is that before."""
        with self._call():
            run = self._begun()
            last = self._database.last_decided()
            if last == DecidedBatch(batch, b"", True):
                return run.receipt
            if self._decided(batch, run) is not None:
                refuse(RefusalKind.ORDER, f"batch {batch} was released, and cannot be abandoned any more")
            self._full(run, batch)
            run.repetition.skip()
            self._receipted(run, run.receipt.receipt.digest, abandoned=True)
            record_release(self._log, batch, None)
            return run.receipt

    # -- details -----------------------------------------------------------------------------------

    @contextmanager
    def _call(self) -> Iterator[None]:
        """After an error that is not a refusal, memory and database may differ: no further call is made."""
        if self._failed:
            raise RunError("the helper has failed before; start it again")
        try:
            yield
        except HelperRefusal:
            raise
        except BaseException:
            self._failed = True
            raise

    def _begun(self) -> BegunRun:
        if self._run is None:
            refuse(RefusalKind.ORDER, "no run has begun here; send its policy first")
        return self._run

    def _decided(self, batch: int, run: BegunRun) -> DecidedBatch | None:
        """Return the next batch if it was released, and None if it was not; refuse a batch out of order."""
        if batch != run.version + 1:
            refuse(
                RefusalKind.ORDER,
                f"batch {batch} is not the next one: the last version with a receipt is {run.version}",
            )
        last = self._database.last_decided()
        return last if last is not None and last.number == batch else None

    def _full(self, run: BegunRun, batch: int) -> list[AdmittedUpload]:
        full = run.book.full.get(batch)
        if full is None:
            held, size = len(run.book.open.members), run.policy.batch_size(batch)
            refuse(RefusalKind.ORDER, f"batch {batch} is not full: {held} of {size} uploads were admitted")
        return full.members

    def _recorded(self, run: BegunRun) -> Codes:
        """Return what was released for the last batch, once its digest is in the log."""
        assert run.release is not None, "released"
        record_release(self._log, run.version + 1, run.release)
        return run.release

    def _check_published(
        self, run: BegunRun, decided: DecidedBatch, digest: str, total: Codes, vectors: Vectors
    ) -> None:
        if digest_of(vectors) != digest:
            refuse(RefusalKind.ORDER, "the new version does not have the digest that was said")
        dtype, length = np.dtype(UNSIGNED[run.policy.bits]), sum(run.policy.lengths)
        if len(total) != length or total.dtype != dtype:
            refuse(RefusalKind.ORDER, f"the sum must have {length} numbers of {dtype}")
        if len(run.policy.helpers) == 1:
            assert run.release is not None, "released"
            masked = total + run.release
            if blake3(masked.view(np.uint8).data).digest() != decided.masked_digest:
                refuse(
                    RefusalKind.HISTORY,
                    "the sum is not that of the masked sum which the batch was released for",
                )

    def _receipted(self, run: BegunRun, digest: str, abandoned: bool = False) -> None:
        """Sign the next version, and erase what its batch has no use for any more."""
        version, values = run.version + 1, self._database.values
        values.store("step", version, run.repetition.to_bytes())
        with self._database.transaction():
            if abandoned:
                self._database.decide(DecidedBatch(version, b"", True))
            run.receipt = self._sign(run.next_receipt(digest))
            self._database.erase_seeds(version)
        run.release = None
        run.book.remove(version)
        values.keep("step", version)
        values.keep("release", 0)
        self._database.scrub()

    def _sign(self, receipt: Receipt) -> SignedReceipt:
        signed = sign_receipt(receipt, self._identity)
        self._database.add_receipt(receipt.version, receipt.to_bytes(), signed.signature)
        return signed
