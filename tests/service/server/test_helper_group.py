"""All helpers as one: they must agree, and what they sign must be what they were asked to sign."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from secure_world import World

from tardigrad.errors import RunError
from tardigrad.secure.receipts import FIRST, Receipt, ReceiptError, sign_receipt
from tardigrad.service.protocol.v1 import helper_pb2 as helper_v1
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.server.helper_connection import HelperAway
from tardigrad.service.server.helper_group import HelperGroup, ServerHistory

NOTHING = ServerHistory(None, 0, {}, ())


class ScriptedHelper:
    """A helper that says what a test wants, in place of the connection to it."""

    def __init__(self, identity, address):
        self.identity, self.address, self.key = identity, address, v1.OfferedKey(key_id=address.encode())
        self.signs = identity
        self.receipt, self.greeting = None, None
        self.places, self.refusals, self.asked = {}, {}, []
        self.released = np.zeros(4, np.uint32)
        self.away = False

    async def greet(self, run, receipt, version):
        if self.away:
            raise HelperAway("gone")
        if self.greeting is None:
            return helper_v1.Greeting()
        greeting = helper_v1.Greeting(run=run, policy_signature=self.signs.sign(self.policy.digest))
        signed = sign_receipt(self.greeting, self.identity)
        greeting.receipt.receipt, greeting.receipt.signature = signed.receipt.to_bytes(), signed.signature
        for trip, batch in self.places.items():
            greeting.places.add(trip=trip, batch=batch)
        return greeting

    async def begin(self, policy, vectors):
        return self.signs.sign(self.policy.digest), sign_receipt(self.receipt, self.identity)

    async def admit(self, deliveries, check_only):
        self.asked.append((check_only, list(deliveries)))
        found = []
        for one in deliveries:
            refusal = self.refusals.get(one, "")
            batch = 0 if refusal or check_only else self.places.get(one, 1)
            found.append(helper_v1.Place(trip=one[0], batch=batch, refusal=refusal))
        return found

    async def release(self, batch, masked_digest, length, bits):
        return self.released.copy()

    async def publish(self, version, digest, total, vectors):
        return sign_receipt(self.receipt, self.identity)


@pytest.fixture
def helpers():
    return [ScriptedHelper(Ed25519PrivateKey.generate(), f"helper-{n}") for n in range(2)]


@pytest.fixture
def group(helpers):
    policy = World(identities=[helper.identity for helper in helpers]).policy
    for helper in helpers:
        helper.policy = policy
        helper.receipt = Receipt(policy.run, 0, policy.start, policy.digest.hex(), FIRST)
    return HelperGroup(policy, helpers)


def asked(call):
    return asyncio.run(call)


def following(receipt, digest="22" * 32):
    return Receipt(receipt.run, receipt.version + 1, digest, receipt.policy, receipt.hash)


def test_all_helpers_begin_the_run(group, helpers):
    signatures, receipts = asked(group.begin({}))
    for helper, signature, receipt in zip(helpers, signatures, receipts, strict=True):
        helper.identity.public_key().verify(signature, group.policy.digest)
        assert receipt.is_signed_by(helper.identity.public_key())
    offered = group.keys()
    assert [key.key_id for key in offered] == [b"helper-0", b"helper-1"]
    helpers[1].key = None
    assert group.keys() is None


def test_policy_that_somebody_else_has_signed_ends_the_run(group, helpers):
    helpers[1].signs = Ed25519PrivateKey.generate()
    with pytest.raises(RunError, match="the helper at helper-1 has signed another policy"):
        asked(group.begin({}))


@pytest.mark.parametrize("forged", ["another digest", "another run", "signed by the other helper"])
def test_receipts_that_differ_end_the_run(group, helpers, forged):
    if forged == "signed by the other helper":
        helpers[1].identity = helpers[0].identity
    else:
        change = {"digest": "33" * 32} if forged == "another digest" else {"run": "other"}
        helpers[1].receipt = replace(helpers[1].receipt, **change)
    with pytest.raises(ReceiptError):
        asked(group.begin({}))


def test_receipt_of_another_version_than_was_published_ends_the_run(group, helpers):
    last = helpers[0].receipt
    total, digest = np.zeros(4, np.uint32), "22" * 32
    for helper in helpers:
        helper.receipt = following(last, digest)
    assert len(asked(group.publish(1, digest, total, {}, last))) == 2
    with pytest.raises(RunError, match="has signed another version 1 than it was given"):
        asked(group.publish(1, "44" * 32, total, {}, last))
    other = replace(last, digest="55" * 32)
    with pytest.raises(RunError, match="does not follow the last"):
        asked(group.publish(1, digest, total, {}, other))


def test_upload_that_one_helper_refuses_is_admitted_by_none(group, helpers):
    helpers[1].refusals = {b"b": "not on the list"}
    decisions = asked(group.admit([b"a", b"b", b"c"]))
    assert [(one.batch, one.refusal) for one in decisions] == [(1, ""), (0, "not on the list"), (1, "")]
    for helper in helpers:
        assert helper.asked == [(True, [b"a", b"b", b"c"]), (False, [b"a", b"c"])]


def test_helpers_that_put_an_upload_into_different_batches_end_the_run(group, helpers):
    helpers[1].places = {b"a": 2}
    with pytest.raises(RunError, match="the helpers have decided differently about the upload of trip 97"):
        asked(group.admit([b"a"]))


def test_what_is_released_is_the_sum_of_all_helpers_modulo_the_bits(group, helpers):
    helpers[0].released = np.array([1, 2, 2**32 - 1, 0], np.uint32)
    helpers[1].released = np.array([5, 2**32 - 2, 1, 0], np.uint32)
    assert asked(group.release(1, b"")).tolist() == [6, 0, 0, 0]


def test_one_helper_that_is_away_is_enough_to_wait(group, helpers):
    helpers[1].away = True
    with pytest.raises(HelperAway):
        asked(group.greet(NOTHING))


def test_helpers_may_be_where_the_server_is_or_one_receipt_ahead(group, helpers):
    asked(group.greet(NOTHING))  # no run has begun
    first = helpers[0].receipt
    helpers[0].greeting = first  # the other was not asked before the server was killed
    asked(group.greet(NOTHING))
    helpers[1].greeting = first
    here = ServerHistory(first, 0, {5: 1}, [6])
    for helper in helpers:
        helper.places = {5: 1, 6: 1}
    asked(group.greet(here))
    helpers[0].greeting, helpers[0].places = following(first), {}
    asked(group.greet(ServerHistory(first, 1, {5: 1, 6: 1}, ())))


@pytest.mark.parametrize(
    ("history", "who"),
    [
        ("helper two ahead", "server"),
        ("helper one ahead without a release", "server"),
        ("helper behind", "helper"),
        ("helper without the run", "helper"),
        ("another history of the same length", "helper"),
        ("upload that the server does not know", "server"),
        ("upload that the helper does not know", "helper"),
    ],
)
def test_a_side_that_was_put_back_is_named(group, helpers, history, who):
    first = helpers[0].receipt
    second = following(first)
    server = ServerHistory(second, 1, {}, ())
    told, places = second, {}
    match history:
        case "helper two ahead":
            told = following(following(second))
        case "helper one ahead without a release":
            told = following(second)
        case "helper behind":
            told = first
        case "helper without the run":
            told = None
        case "another history of the same length":
            told = following(first, "66" * 32)
        case "upload that the server does not know":
            places = {9: 2}
        case "upload that the helper does not know":
            server = server._replace(admitted={9: 2})
    for helper in helpers:
        helper.greeting, helper.places = told, places
    with pytest.raises(RunError, match=f"the {who} was put back from a backup"):
        asked(group.greet(server))
