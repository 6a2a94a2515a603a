"""The journal's record of a secure run besides its bookkeeping: uploads that wait for the helpers, batches
that the helpers have released, and the receipts of the versions.

It is deterministic, as all of `RunState`: the same entries give the same state.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TypedDict

from tardigrad.errors import RunError
from tardigrad.secure.receipts import Receipt, SignedReceipt, read_receipt
from tardigrad.service.store.contract import JournalEntry

SIGNATURE = 64
"""Bytes of an Ed25519 signature."""


class SecureDocument(TypedDict):
    """`SecureState` as JSON."""

    offers: list[dict[str, str | int | float]]
    """The fields of each entry; bytes in hexadecimal."""
    admitted: list[tuple[int, int]]
    receipts: list[tuple[int, str]]
    signatures: str
    released: int
    abandoned: bool


class SecureState:
    """The state of a secure run that is neither bookkeeping nor a value."""

    def __init__(self) -> None:
        self.offers: dict[int, JournalEntry] = {}
        """By trip, uploads that wait for the helpers, in the order of the journal."""
        self.admitted: dict[int, int] = {}
        """By trip, the batches of uploads that the helpers have admitted and that no receipt covers yet."""
        self.receipts: dict[int, tuple[SignedReceipt, ...]] = {}
        """By version, the receipts of all helpers: of the last version, and of those that clients may still
        download."""
        self.signatures: tuple[bytes, ...] = ()
        """The helpers' signatures of the policy; none before the run has begun."""
        self.released = 0
        """The last batch that the helpers released or abandoned, which is the version that it makes."""
        self.abandoned = False
        """Whether that batch was abandoned."""

    @property
    def version(self) -> int:
        """The last version that has receipts; -1 before the run has begun."""
        return next(reversed(self.receipts), -1)

    @property
    def last(self) -> Receipt | None:
        """The receipt of the last version; None before the run has begun."""
        return self.receipts[self.version][0].receipt if self.receipts else None

    def deliver(self, entry: JournalEntry, step: int) -> None:
        """Note the outcome of an offer. `step`: the batch that bookkeeping puts the upload into, or 0."""
        self.offers.pop(entry.trip, None)
        if step != entry.version:
            raise RunError(
                f"the helpers have put the upload of trip {entry.trip} into batch {entry.version or 'none'}, "
                f"but by the server's own books it belongs into {step or 'none'}: one of them was put back "
                "from a backup, or is of another version; start a new run"
            )
        if step:
            self.admitted[entry.trip] = step

    def release(self, entry: JournalEntry) -> None:
        """Note that the helpers have released or abandoned a batch."""
        if not self.released == self.version == entry.version - 1:
            raise RunError(
                f"the journal has a release of batch {entry.version} after that of {self.released} and the "
                f"receipt of version {self.version}; the journal is damaged: start a new run"
            )
        self.released, self.abandoned = entry.version, not entry.digest

    def receipt(self, entry: JournalEntry, kept: bool) -> None:
        """Note the receipts of a new version. `kept`: whether clients may still start from the one before."""
        before = self.version
        self.receipts[entry.version] = receipts_from_json(entry.receipts)
        if not kept:
            self.receipts.pop(before, None)
        self.admitted = {trip: batch for trip, batch in self.admitted.items() if batch > entry.version}
        if entry.signed:
            starts = range(0, len(entry.signed), SIGNATURE)
            self.signatures = tuple(entry.signed[start : start + SIGNATURE] for start in starts)

    def forget(self, versions: Sequence[int]) -> None:
        """Drop the receipts of versions that nobody will start from any more, but for the last."""
        last = self.version
        for version in versions:
            if version != last:
                self.receipts.pop(version, None)

    def state(self) -> SecureDocument:
        """Return everything as JSON."""
        return {
            "offers": [_as_json(entry) for entry in self.offers.values()],
            "admitted": list(self.admitted.items()),
            "receipts": [(version, receipts_as_json(found)) for version, found in self.receipts.items()],
            "signatures": b"".join(self.signatures).hex(),
            "released": self.released,
            "abandoned": self.abandoned,
        }

    def restore(self, state: SecureDocument) -> None:
        """Go on from `state()`."""
        offers = [_from_json(fields) for fields in state["offers"]]
        self.offers.clear()  # others hold this dict
        self.offers.update((offer.trip, offer) for offer in offers)
        self.admitted = dict(state["admitted"])
        self.receipts = {version: receipts_from_json(text) for version, text in state["receipts"]}
        signatures = bytes.fromhex(state["signatures"])
        self.signatures = tuple(
            signatures[start : start + SIGNATURE] for start in range(0, len(signatures), SIGNATURE)
        )
        self.released, self.abandoned = state["released"], state["abandoned"]


def receipts_as_json(receipts: Sequence[SignedReceipt]) -> str:
    """Return receipts as an entry has them: what was signed and its signature, in hexadecimal."""
    return json.dumps([(one.receipt.to_bytes().hex(), one.signature.hex()) for one in receipts])


def receipts_from_json(text: str) -> tuple[SignedReceipt, ...]:
    """Return the receipts of an entry."""
    return tuple(
        SignedReceipt(read_receipt(bytes.fromhex(content)), bytes.fromhex(signature))
        for content, signature in json.loads(text)
    )


def _as_json(entry: JournalEntry) -> dict[str, str | int | float]:
    return {name: v.hex() if isinstance(v, bytes) else v for name, v in asdict(entry).items()}


def _from_json(fields: dict[str, str | int | float]) -> JournalEntry:
    given = {name: bytes.fromhex(str(fields[name])) for name in ("digest", "signed")}
    return JournalEntry(**(fields | given))  # type: ignore[arg-type]
