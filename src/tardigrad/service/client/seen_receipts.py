"""The newest receipts that a client has seen in a run, on its own disk."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tardigrad.core.files import write_text
from tardigrad.errors import RunError
from tardigrad.secure.receipts import Receipt, ReceiptError, SignedReceipt, read_receipt

Signed = Sequence[SignedReceipt]
"""The receipts of one version, one of each helper, which all say the same."""


class SeenReceipts:
    """The one history that a client has seen. It holds against restarts of the client.

    The newest version is enough: an older one is refused, and the next one names its receipt.
    """

    def __init__(self, folder: Path) -> None:
        self._file, self._proof = folder / "receipts.json", folder / "two-histories.json"
        self._last = self._read()

    def check_history(self) -> None:
        """Raise a ReceiptError if this client has seen two histories, now or in an earlier process."""
        if self._proof.exists():
            raise ReceiptError(
                f"this client has seen two histories of the run, and stopped; {self._proof} has the signed "
                "receipts of both. Show them to the operators; this run cannot be trusted any more"
            )

    def keep(self, receipts: Signed) -> None:
        """Keep the receipts of a version, durably, before anything is made of it. Raise a ReceiptError if
        they do not belong to the history that was seen before."""
        if self._last:
            before, now = self._last[0].receipt, receipts[0].receipt
            if now == before:
                return
            if now.version < before.version:
                raise ReceiptError(
                    f"the server gave version {now.version}, but this client has seen version "
                    f"{before.version}: the server was put back to an older state"
                )
            if not _one_history(before, now):
                self.stop(self._last, receipts)
        write_text(self._file, json.dumps(_to_json(receipts)) + "\n")
        self._last = list(receipts)

    def stop(self, seen: Signed, given: Signed) -> NoReturn:
        """Keep the receipts of two histories as a proof, and raise a ReceiptError."""
        document = {"seen": _to_json(seen), "given": _to_json(given)}
        write_text(self._proof, json.dumps(document, indent=2) + "\n")
        raise ReceiptError(
            f"there are two histories of the run: this client has seen {_described(seen[0].receipt)}, and "
            f"was given {_described(given[0].receipt)}; {self._proof} has both, signed by the helpers. Show "
            "them to the operators; this run cannot be trusted any more"
        )

    def _read(self) -> list[SignedReceipt]:
        if not self._file.exists():
            return []
        try:
            return [
                SignedReceipt(read_receipt(one["receipt"].encode()), base64.b64decode(one["signature"]))
                for one in json.loads(self._file.read_text(encoding="utf-8"))
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ReceiptError) as error:
            raise RunError(
                f"{self._file} is damaged ({error}); which history this client has seen is not known any "
                "more, so it cannot go on in this run"
            ) from None


def _one_history(before: Receipt, now: Receipt) -> bool:
    """Return whether a receipt of the same or a later version can be of the same history."""
    if now.version == before.version + 1:
        return now.follows(before)
    return now.version > before.version


def _described(receipt: Receipt) -> str:
    return f"version {receipt.version} with the receipt {receipt.hash[:16]} after {receipt.previous[:16]!r}"


def _to_json(receipts: Signed) -> list[dict[str, str]]:
    return [
        {"receipt": one.receipt.to_bytes().decode(), "signature": base64.b64encode(one.signature).decode()}
        for one in receipts
    ]
