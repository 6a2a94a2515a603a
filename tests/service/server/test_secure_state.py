"""What the journal says of a secure run: offers, releases, receipts, and their order."""

import json
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tardigrad.core.bookkeeping import Bookkeeping, Buffer
from tardigrad.core.download_sizes import DownloadSizes
from tardigrad.core.outcomes import Accepted, Reason
from tardigrad.core.pace import Asynchronous
from tardigrad.core.stop import Stop
from tardigrad.data.evaluation import Evaluation
from tardigrad.errors import RunError
from tardigrad.secure.receipts import FIRST, Receipt, sign_receipt
from tardigrad.service.server.run_state import RunState
from tardigrad.service.server.secure_state import SecureState, receipts_as_json, receipts_from_json
from tardigrad.service.store.contract import JournalEntry

KEYS = [Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()]


def receipts(version):
    """The entry of two helpers' receipts."""
    receipt = Receipt("run", version, "00" * 32, "11" * 32, FIRST if version == 0 else "before")
    signed = b"".join(key.sign(b"policy") for key in KEYS) if version == 0 else b""
    text = receipts_as_json([sign_receipt(receipt, key) for key in KEYS])
    return JournalEntry("receipt", 0.0, version=version, signed=signed, receipts=text)


def run_state(trips=100):
    return RunState(
        Bookkeeping(Asynchronous(concurrency=10), Buffer(size=2, once_per_client=True)),
        Stop(trips=trips), Evaluation(), DownloadSizes(0), 0, centrally=True, secure=SecureState(),
    )  # fmt: skip


def begun(clients="abcdef", **options):
    """A run with its first receipts, in which these clients are training."""
    state = run_state(**options)
    state.apply(receipts(0))
    for client in clients:
        state.apply(JournalEntry("check_in", 0.0, client=client, epoch=7))
    return state


def offer(state, trip):
    """Offer the upload of this trip."""
    entry = JournalEntry(
        "offer", 1.0, "abcdef"[trip], trip, f"{trip}-file", digest=bytes([trip]), epoch=7, signed=b"\x00\xff"
    )
    state.apply(entry)
    return entry


def outcome(state, entry, batch, refusal=""):
    decided = replace(entry, kind="deliver", signed=b"", version=batch, refusal=refusal)
    return state.apply(decided)


def test_nobody_starts_before_the_receipts_of_version_0():
    state = run_state()
    assert state.unreceipted
    state.apply(receipts(0))
    assert not state.unreceipted
    assert [len(signature) for signature in state.secure.signatures] == [64, 64]


def test_an_offer_changes_nothing_but_that_the_trip_is_offered():
    state = begun()
    before = state.book.state()
    effects = [state.apply(offer(state, trip)) for trip in (3, 1)]
    assert list(state.secure.offers) == [3, 1], "in the order of the journal"
    assert state.book.state() == before
    assert all(one.delivery is None and not one.moved for one in effects)


def test_an_offer_of_a_trip_that_is_not_under_way_is_none():
    state = begun("a")
    offer(state, 5)
    assert not state.secure.offers


def test_a_withdrawn_offer_leaves_the_trip_under_way():
    state = begun()
    entry = offer(state, 2)
    state.apply(replace(entry, kind="withdraw", signed=b""))
    assert not state.secure.offers
    assert 2 in state.book.in_flight


def test_uploads_count_in_the_batch_that_the_helpers_say():
    state = begun()
    offers = [offer(state, trip) for trip in range(3)]
    assert isinstance(outcome(state, offers[0], 1).delivery, Accepted)
    refused = outcome(state, offers[1], 0, Reason.HELPER.value).delivery
    assert refused.reason is Reason.HELPER
    assert outcome(state, offers[2], 1).moved
    assert state.secure.admitted == {0: 1, 2: 1}
    assert not state.secure.offers
    assert state.unreceipted


@pytest.mark.parametrize("batch", [0, 2])
def test_a_batch_that_the_books_of_the_server_do_not_confirm_ends_the_run(batch):
    state = begun()
    with pytest.raises(RunError, match="by the server's own books it belongs into 1"):
        outcome(state, offer(state, 0), batch)


def test_a_release_and_receipts_count_although_the_run_is_over():
    state = begun(trips=2)
    for trip in range(2):
        outcome(state, offer(state, trip), 1)
    assert state.over == "trips"
    released = state.apply(JournalEntry("release", 2.0, file="f", digest=b"d", version=1))
    assert (released.released, released.abandoned) == (1, False)
    assert state.apply(receipts(1)).receipted == 1
    assert not state.unreceipted
    assert not state.secure.admitted


def test_a_release_without_a_digest_is_an_abandoned_batch():
    state = begun()
    for trip in range(2):
        outcome(state, offer(state, trip), 1)
    assert state.apply(JournalEntry("release", 2.0, version=1)).abandoned
    assert state.secure.abandoned


@pytest.mark.parametrize("version", [0, 2])
def test_a_release_out_of_order_ends_the_run(version):
    with pytest.raises(RunError, match="the journal is damaged"):
        begun().apply(JournalEntry("release", 2.0, version=version))


def test_receipts_are_kept_as_long_as_somebody_may_download_the_version():
    state = begun("abc")
    for trip in range(2):
        outcome(state, offer(state, trip), 1)
    state.apply(JournalEntry("release", 2.0, file="f", digest=b"d", version=1))
    state.apply(receipts(1))
    assert set(state.secure.receipts) == {0, 1}, "client c has started from version 0"
    state.apply(JournalEntry("give_up", 3.0, trip=2))
    assert set(state.secure.receipts) == {1}
    assert state.secure.last.version == 1


def test_everything_survives_a_snapshot():
    state = begun()
    outcome(state, offer(state, 0), 1)
    offer(state, 4), offer(state, 2)
    other = run_state()
    held = other.secure.offers
    other.restore(json.loads(json.dumps(state.state())))
    assert list(held.items()) == list(state.secure.offers.items()), "others hold this dict"
    assert vars(other.secure) == vars(state.secure)
    assert other.secure.receipts[0][0].is_signed_by(KEYS[0].public_key())
    assert receipts_from_json(receipts(3).receipts)[1].receipt.version == 3
