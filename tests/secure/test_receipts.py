"""Receipts: one history, signed by all helpers."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tardigrad.secure.receipts import (
    FIRST,
    Receipt,
    ReceiptError,
    SignedReceipt,
    agreed,
    read_receipt,
    sign_receipt,
)

KEYS = [Ed25519PrivateKey.generate() for _ in range(2)]
IDENTITIES = [key.public_key() for key in KEYS]
ZERO = Receipt("run-1", 0, "aa", "bb", FIRST)
ONE = Receipt("run-1", 1, "cc", "bb", ZERO.hash)


def test_receipt_is_read_as_it_was_signed():
    signed = sign_receipt(ONE, KEYS[0])
    assert read_receipt(signed.receipt.to_bytes()) == ONE
    assert signed.is_signed_by(IDENTITIES[0])
    assert not signed.is_signed_by(IDENTITIES[1])


@pytest.mark.parametrize(
    "change",
    [{"run": "run-2"}, {"version": 2}, {"digest": "dd"}, {"policy": "ee"}, {"previous": "ff"}],
    ids=str,
)
def test_receipt_that_was_changed_is_forged_and_does_not_follow(change):
    forged = SignedReceipt(replace(ONE, **change), sign_receipt(ONE, KEYS[0]).signature)
    assert not forged.is_signed_by(IDENTITIES[0])
    assert ONE.follows(ZERO)
    assert replace(ONE, **change).follows(ZERO) == ("digest" in change)
    assert replace(ONE, **change).hash != ONE.hash


@pytest.mark.parametrize(
    "content",
    [
        b"", b"tardigrad receipt 1\n", b"tardigrad receipt 1\n[]", b"tardigrad receipt 1\n{}", b"[1,2,3,4,5]",
        ONE.to_bytes() + b" ", ONE.to_bytes().replace(b"receipt 1", b"receipt 2"), b"\xff\xfe",
        b'tardigrad receipt 1\n["run-1", 1, "cc", "bb", "dd"]',
    ],
)  # fmt: skip
def test_other_bytes_are_no_receipt(content):
    with pytest.raises(ReceiptError, match="not a receipt"):
        read_receipt(content)


def test_all_helpers_agree():
    assert agreed([sign_receipt(ONE, key) for key in KEYS], IDENTITIES, "bb", 1) == ONE


@pytest.mark.parametrize(
    ("receipts", "match"),
    [
        ([sign_receipt(ONE, KEYS[0])], "has 1 receipts, but there are 2 helpers"),
        ([sign_receipt(ONE, KEYS[0])] * 2, "not signed by helper 2"),
        ([sign_receipt(ONE, key) for key in KEYS[::-1]], "not signed by helper 1"),
        ([sign_receipt(ONE, KEYS[0]), sign_receipt(replace(ONE, digest="dd"), KEYS[1])], "two histories"),
        ([sign_receipt(ZERO, key) for key in KEYS], "is of version 0"),
        ([sign_receipt(replace(ONE, policy="cc"), key) for key in KEYS], "of the policy cc"),
    ],
)
def test_receipts_that_do_not_agree_are_refused(receipts, match):
    with pytest.raises(ReceiptError, match=match):
        agreed(receipts, IDENTITIES, "bb", 1)
