"""A helper's decisions, and what a lying server gets from it."""

import json

import numpy as np
import pytest
import torch
from secure_world import LR, NUMBERS, World, closing, refusals, refused

import tardigrad as td
from tardigrad.errors import RunError
from tardigrad.privacy.releases import digest_of
from tardigrad.secure.helper_refusals import RefusalKind
from tardigrad.secure.step_repetition import StepRepetition
from tardigrad.service.access.enrolment import public_key


@pytest.mark.parametrize("helpers", [1, 2])
def test_released_sum_is_the_weighted_sum_of_codes(helpers, tmp_path):
    world = World(helpers)
    states = [world.open(tmp_path / str(number), number) for number in range(helpers)]
    last = states[0].receipt.receipt
    for version in range(3):
        starts = [max(0, version - late) for late in range(3)]
        trips, total, receipts = world.round(states, version, starts=starts)
        assert total.tolist() == world.code_sum(version + 1, trips).tolist()
        for state, signed in zip(states, receipts, strict=True):
            assert signed.is_signed_by(public_key(state.identity, ""))
            assert signed.receipt.follows(last)
        assert len({one.receipt for one in receipts}) == 1
        last = receipts[0].receipt
    for state in states:
        state.__exit__()


def test_key_and_policy_are_signed_by_the_helper(world, state):
    identity = public_key(state.identity, "")
    identity.verify(state.policy_signature, world.policy.digest)
    key = state.key
    identity.verify(key.signature, b"tardigrad key 1\n" + world.policy.digest + key.key_id + key.public)


def test_all_calls_can_be_repeated_with_the_same_outcome(world, state, tmp_path):
    state.begin(world.policy.to_bytes(), world.version(0))
    offers = [world.offer([state], name) for name in ("ann", "ann", "bob", "eve", "dan")]
    places = state.admit(offers)
    assert refusals(places) == ["", "already in this buffer", "", "", ""]
    assert [one.batch for one in places] == [1, 0, 1, 1, 2]
    assert state.admit(offers) == places
    trips = [offers[index].trip for index in (0, 2, 3)]
    request = closing(world, 1, trips)
    release = state.close(*request)
    assert np.array_equal(state.close(*request), release)
    total = world.masked_sum(1, trips) - release
    new = world.stepped(0, total, 3)
    signed = state.publish(1, digest_of(new), total, new)
    state.__exit__()
    with world.reopened(tmp_path / "helper") as again:
        assert again.publish(1, digest_of(new), total, new) == signed
        assert again.admit(offers) == places
        assert again.begin(world.policy.to_bytes(), world.version(0)).receipt.version == 0
        assert again.open_batch == 2
        assert [(one.trip, digest) for one, digest in again.places()] == [(offers[4].trip, offers[4].digest)]


def test_receipts_are_json_that_names_the_policy(world, state):
    fields = json.loads(state.receipt.receipt.to_bytes().partition(b"\n")[2])
    assert fields == ["run-1", 0, world.policy.start, world.policy.digest.hex(), ""]


def test_after_a_failed_transaction_no_call_is_answered(world, state):
    offers = [world.offer([state], "ann")]
    state._database._connection.execute("PRAGMA query_only=ON")
    with pytest.raises(RunError, match="cannot be written"):
        state.admit(offers)
    state._database._connection.execute("PRAGMA query_only=OFF")
    with pytest.raises(RunError, match="start it again"):
        state.admit(offers)


def test_batch_that_is_not_full_is_not_released(world, state):
    offers = [world.offer([state], name) for name in ("ann", "bob")]
    state.admit(offers)
    request = closing(world, 1, [one.trip for one in offers])
    refused(RefusalKind.ORDER, "batch 1 is not full: 2 of 3", state.close, *request)


def test_batch_in_which_all_others_are_too_late_is_not_released_but_abandoned(tmp_path):
    """Two uploads of 60 versions ago weigh next to nothing beside a fresh one."""
    world = World(staleness=td.Exponential(a=0.5))
    with world.open(tmp_path / "helper") as state:
        for version in range(12):
            world.round([state], version)
        trips = world.filled([state], 12, starts=[0, 0, 12])
        request = closing(world, 13, trips)
        refused(RefusalKind.TOO_FEW, "fewer than 2 effective clients", state.close, *request)
        refused(RefusalKind.TOO_FEW, "fewer than 2 effective clients", state.close, *request)
        before = state.receipt.receipt
        signed = state.abandon(13)
        assert signed.receipt.follows(before)
        assert signed.receipt.digest == before.digest
        assert state.abandon(13) == signed
        refused(RefusalKind.TOO_FEW, "batch 13 was abandoned", state.close, *request)
        world.models[13] = world.models[12]
        world.round([state], 13)
        refused(RefusalKind.ORDER, "not the next one", state.abandon, 13)
        refused(RefusalKind.ORDER, "not the next one", state.close, *request)


@pytest.mark.parametrize("batch", [0, 2, 3, 2**63, 2**64 - 1])
def test_batches_are_closed_in_order(world, state, batch):
    world.filled([state])
    refused(RefusalKind.ORDER, "not the next one", state.close, batch, bytes(32))
    refused(RefusalKind.ORDER, "not the next one", state.abandon, batch)


def test_second_close_for_another_masked_sum_is_refused_for_ever(world, state, tmp_path):
    trips = world.filled([state])
    release = state.close(*closing(world, 1, trips))
    refused(RefusalKind.HISTORY, "for another masked sum", state.close, *closing(world, 1, trips[:2]))
    refused(RefusalKind.ORDER, "cannot be abandoned", state.abandon, 1)
    state.__exit__()
    with world.reopened(tmp_path / "helper") as again:
        refused(RefusalKind.HISTORY, "for another masked sum", again.close, *closing(world, 1, trips[:2]))
        assert np.array_equal(again.close(*closing(world, 1, trips)), release)


def test_next_batch_is_released_only_after_the_receipt_of_this_one(world, state):
    trips = world.filled([state])
    later = [world.offer([state], name) for name in ("ann", "bob", "eve")]
    assert [one.batch for one in state.admit(later)] == [2, 2, 2]
    state.close(*closing(world, 1, trips))
    request = closing(world, 2, [one.trip for one in later])
    refused(RefusalKind.ORDER, "not the next one", state.close, *request)


def published(world, state, change=None, version=1):
    """A version whose sum or vectors were changed before it is published."""
    trips = world.filled([state])
    total = world.masked_sum(1, trips) - state.close(*closing(world, 1, trips))
    new = {name: vector.clone() for name, vector in world.stepped(0, total, 3).items()}
    if change is not None:
        total, new = change(total.copy(), new)
    return version, digest_of(new), total, new


def other_model(total, new):
    new["model"][3] += 0.01
    return total, new


def same_model(total, new):
    """The step is left out."""
    return total, {"model": new["model"] * 0}


def other_sum(total, new):
    """A sum that nobody released, and its honest step."""
    total[0] += 1000
    new["model"][0] -= LR * 1000 * 0.001 / 256 / 3
    return total, new


def not_finite(total, new):
    new["model"][0] = float("nan")
    return total, new


@pytest.mark.parametrize(
    ("change", "kind", "match"),
    [
        (other_model, RefusalKind.HISTORY, "is not the step of the released sum: a number of model differs"),
        (same_model, RefusalKind.HISTORY, "is not the step"),
        (not_finite, RefusalKind.HISTORY, "is not the step"),
        (other_sum, RefusalKind.HISTORY, "the sum is not that of the masked sum"),
        (lambda total, new: (total, new | {"more": new["model"]}), RefusalKind.HISTORY, "should have"),
        (lambda total, new: (total[:-1], new), RefusalKind.ORDER, "the sum must have 12 numbers"),
        (lambda total, new: (total.astype(np.uint16), new), RefusalKind.ORDER, "must have 12 numbers"),
        (lambda total, new: (total, {"model": new["model"][1:]}), RefusalKind.HISTORY, "should have 12"),
        (lambda total, new: (total, {"model": new["model"].half()}), RefusalKind.HISTORY, "should have 12"),
    ],
)
def test_version_that_is_not_the_step_of_the_last_is_not_signed(world, state, change, kind, match):
    honest = published(world, state)
    total, new = change(honest[2].copy(), {name: vector.clone() for name, vector in honest[3].items()})
    refused(kind, match, state.publish, 1, digest_of(new), total, new)
    assert state.receipt.receipt.version == 0
    assert state.publish(*honest).receipt.version == 1  # the honest one still is


def test_last_bits_of_a_version_may_be_others(world, state):
    version, _, total, new = published(world, state)
    new["model"] = torch.nextafter(new["model"], torch.full((NUMBERS,), torch.inf))
    signed = state.publish(version, digest_of(new), total, new)
    assert signed.receipt.digest == digest_of(new)
    assert torch.equal(state.version()["model"], new["model"])  # the helper goes on from the server's


def test_version_with_other_last_bits_is_asked_for(world, state):
    version, _, total, _ = published(world, state)
    repeated = StepRepetition(world.policy, world.models[0]).step(total, state._run.book.full[1].members)
    other = {"model": torch.nextafter(repeated["model"], torch.full((NUMBERS,), torch.inf))}
    refused(RefusalKind.OTHER_BITS, "is needed", state.publish, version, digest_of(other), total)
    assert state.receipt.receipt.version == 0
    assert torch.equal(state.version()["model"], world.models[0])
    signed = state.publish(version, digest_of(repeated), total)  # whose digest is all that is needed
    assert (signed.receipt.version, signed.receipt.digest) == (1, digest_of(repeated))
    assert torch.equal(state.version()["model"], repeated["model"])


def test_second_model_under_one_version_is_not_signed(world, state):
    version, digest, total, new = published(world, state)
    state.publish(version, digest, total, new)
    new["model"] = torch.nextafter(new["model"], torch.full((NUMBERS,), torch.inf))
    refused(RefusalKind.HISTORY, "with another digest", state.publish, version, digest_of(new), total, new)


def test_digest_must_be_that_of_the_version(world, state):
    version, _, total, new = published(world, state)
    refused(RefusalKind.ORDER, "the digest that was said", state.publish, version, "00" * 32, total, new)


def test_version_without_a_release_is_not_signed(world, state):
    world.filled([state])
    new = world.version(0)
    total = np.zeros(NUMBERS, np.uint32)
    refused(RefusalKind.ORDER, "was not released", state.publish, 1, digest_of(new), total, new)
    refused(RefusalKind.ORDER, "not the next one", state.publish, 2, digest_of(new), total, new)


def test_policy_cannot_change(world, state):
    other = world.policy.model_copy(update={"least_clients": 3})
    refused(RefusalKind.POLICY, "not the one that the run began with", state.begin, other.to_bytes(), {})


def test_nothing_is_answered_before_a_run_has_begun(world, tmp_path):
    with world.reopened(tmp_path / "helper") as state:
        for call in (
            lambda: state.admit([]), lambda: state.close(1, b""), lambda: state.abandon(1),
            lambda: state.publish(1, "", np.zeros(1, np.uint32), {}),
        ):  # fmt: skip
            refused(RefusalKind.ORDER, "no run has begun", call)
        assert (state.key, state.receipt, state.places(), state.policy_signature) == (None, None, [], b"")
