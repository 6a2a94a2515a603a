"""A helper's decisions, and what a lying server or client gets from it."""

import json
import shutil

import numpy as np
import pytest
import secure_world
import torch
from blake3 import blake3
from secure_world import LR, NUMBERS, World

import tardigrad as td
from tardigrad.core.outcomes import Reason
from tardigrad.core.participation import Limits
from tardigrad.errors import ConfigError, RunError
from tardigrad.privacy.releases import digest_of
from tardigrad.secure.helper_refusals import RESEAL, HelperRefusal, RefusalKind
from tardigrad.secure.integer_noise import IntegerNoise
from tardigrad.secure.policy import HelperNoise
from tardigrad.service.access.enrolment import public_key

SEALED_WRONGLY = "the envelope was not sealed for this upload"
NOISE = HelperNoise(
    mechanism=td.Independent(), deviation=500.0, steps=4, allowed=3, noise_multiplier=1.0, epsilon=1.0,
    delta=1e-5, seed=3,
)  # fmt: skip


@pytest.fixture
def world():
    return World()


@pytest.fixture
def state(world, tmp_path):
    with world.open(tmp_path / "helper") as found:
        yield found


def refused(kind, match, call, *arguments):
    with pytest.raises(HelperRefusal, match=match) as caught:
        call(*arguments)
    assert caught.value.kind == kind


def refusals(records):
    return [record.refusal for record in records]


def closing(world, batch, trips):
    return batch, blake3(world.masked_sum(batch, trips).tobytes()).digest()


# -- what is right -----------------------------------------------------------------------------------


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


def test_a_refused_upload_stays_refused_after_the_batch_has_changed(world, state):
    twice = [world.offer([state], "ann"), world.offer([state], "ann")]
    assert refusals(state.admit(twice)) == ["", "already in this buffer"]
    state.admit([world.offer([state], name) for name in ("bob", "eve")])  # batch 2 is open now
    assert refusals(state.admit(twice)) == ["", "already in this buffer"]


def test_checking_admits_nothing(world, state):
    good, bad = world.offer([state], "ann"), world.offer([state], "bob", purpose={"client": "eve"})
    assert refusals(state.admit([good, bad], check_only=True)) == ["", SEALED_WRONGLY]
    assert state.places() == []
    assert refusals(state.admit([good])) == [""]


# -- attacks of a server -----------------------------------------------------------------------------


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


def test_same_client_is_in_a_batch_once(world, state):
    offers = [world.offer([state], "ann"), world.offer([state], "ann")]
    assert refusals(state.admit(offers)) == ["", Reason.CONTRIBUTED.value]


def test_trip_is_in_one_batch(world, state):
    first = world.offer([state], "ann")
    state.admit([first])
    state.admit([world.offer([state], name) for name in ("bob", "eve")])
    again = world.offer([state], "ann", trip=first.trip)
    assert refusals(state.admit([again])) == ["delivered before with other bytes"]
    assert state.admit([first])[0].batch == 1
    assert [one.batch for one, _ in state.places()] == [1, 1, 1]


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


# -- attacks on envelopes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        {"trip": 99}, {"version": 1}, {"client": "bob"}, {"policy": bytes(32)}, {"digest": bytes(32)},
        {"helper": "another"}, {"key": bytes(16)},
    ],
    ids=str,
)  # fmt: skip
def test_envelope_opens_for_its_own_upload_only(world, state, other):
    assert refusals(state.admit([world.offer([state], "ann", purpose=other)])) == [SEALED_WRONGLY]


def test_envelope_to_another_helper_does_not_open(tmp_path):
    world = World(helpers=2)
    states = [world.open(tmp_path / str(number), number) for number in range(2)]
    offer = world.offer(states, "ann")
    swapped = offer._replace(envelopes=offer.envelopes[::-1])
    assert refusals(states[0].admit([swapped])) == [RESEAL]  # a key that it does not have
    own = (offer.envelopes[0][0], offer.envelopes[1][1])
    forged = offer._replace(envelopes=(own, own))
    assert refusals(states[0].admit([forged])) == [SEALED_WRONGLY]
    for state in states:
        state.__exit__()


def test_upload_whose_masked_bytes_were_changed_is_refused(world, state):
    offer = world.offer([state], "ann")
    assert refusals(state.admit([offer._replace(digest=bytes(32))])) == [SEALED_WRONGLY]


def test_upload_of_another_run_or_without_all_envelopes_is_refused(world, state):
    offers = [world.offer([state], name) for name in ("ann", "bob", "eve", "dan")]
    offers[0] = offers[0]._replace(run="run-2")
    offers[1] = offers[1]._replace(envelopes=())
    offers[2] = offers[2]._replace(envelopes=offers[2].envelopes * 2)
    offers[3] = offers[3]._replace(fault="the client is not on the helper's own list")
    assert refusals(state.admit(offers)) == [
        "the upload is of another run",
        "the upload must have one envelope for each helper",
        "the upload must have one envelope for each helper",
        "the client is not on the helper's own list",
    ]


def test_upload_from_a_version_without_a_receipt_is_refused(world, state):
    """A client that claims to have started later than it did would weigh more."""
    world.filled([state])
    assert state.open_batch == 2
    assert refusals(state.admit([world.offer([state], "ann", 1)])) == [Reason.UNKNOWN.value]


@pytest.mark.parametrize("field", ["trip", "version"])
def test_numbers_beyond_those_of_a_database_are_refused(world, state, field):
    offer = world.offer([state], "ann")._replace(**{field: 2**64 - 1})
    assert refusals(state.admit([offer])) == [Reason.UNKNOWN.value]
    assert refusals(state.admit([world.offer([state], "bob")])) == [""]


def test_limits_of_participation_are_kept_over_restarts_and_abandoned_batches(tmp_path):
    world = World(limits=Limits(2, 2), staleness=td.Exponential(a=5.0))
    with world.open(tmp_path / "helper") as state:
        world.round([state], 0)
        offers = [world.offer([state], "ann", 1)]
        assert refusals(state.admit(offers)) == [Reason.RESTING.value]
        world.filled([state], 1, clients=("dan", "fay", "gus"), starts=[0, 0, 1])
        state.abandon(2)
    with world.reopened(tmp_path / "helper") as state:
        assert refusals(state.admit([world.offer([state], "dan", 1)])) == [Reason.RESTING.value]
        world.models[2] = world.models[1]
        world.round([state], 2)
    with world.reopened(tmp_path / "helper") as state:
        assert refusals(state.admit([world.offer([state], "ann", 3)])) == [Reason.FINISHED.value]


# -- keys --------------------------------------------------------------------------------------------


def test_old_keys_are_erased_and_clients_are_told_to_seal_again(world, state, tmp_path):
    old = world.offer([state], "dan")
    older = world.offer([state], "fay")
    world.round([state], 0)
    assert refusals(state.admit([old])) == [""]  # the key before can still be opened
    trips = [old.trip]
    more = [world.offer([state], name, 1) for name in ("ann", "bob")]
    state.admit(more)
    trips += [one.trip for one in more]
    total = world.masked_sum(2, trips) - state.close(*closing(world, 2, trips))
    new = world.stepped(1, total, 3)
    state.publish(2, digest_of(new), total, new)
    assert refusals(state.admit([older])) == [RESEAL]
    assert refusals(state.admit([older], check_only=True)) == [RESEAL]
    version, codes, _ = world.uploads[older.trip]
    again = world.offer([state], "fay", version, trip=older.trip, codes=codes)
    assert refusals(state.admit([again])) == [""]


def test_key_is_kept_as_long_as_it_may_be(world, tmp_path):
    now = 1000.0
    with world.open(tmp_path / "helper", key_seconds=60.0, now=lambda: now) as state:
        first = state.key.key_id
        world.round([state], 0)
        assert state.key.key_id == first
        now += 60.0
        world.round([state], 1)
        assert state.key.key_id != first


def test_seeds_keys_noise_and_releases_are_erased_from_the_disk(tmp_path):
    """They are looked for in all bytes of the folder."""
    world = World(noise=NOISE.model_copy(update={"mechanism": td.Tree()}))
    with world.open(tmp_path / "helper") as state:
        trips = world.filled([state])
        secrets = list(state._database.seeds(1).values())
        secrets += [one.private for one in state._database.sealing_keys()]
        release = state.close(*closing(world, 1, trips))
        secrets += [state._run.noise.state["nodes"].numpy().tobytes(), release.tobytes()]

        def on_disk():
            files = [file.read_bytes() for file in (tmp_path / "helper").rglob("*") if file.is_file()]
            return [any(secret in content for content in files) for secret in secrets]

        assert on_disk() == [True] * 6
        total = world.masked_sum(1, trips) - release
        new = world.stepped(0, total, 3)
        state.publish(1, digest_of(new), total, new)
        assert on_disk() == [False] * 3 + [True, True, False]  # what is needed for the next batch
        world.round([state], 1)
        assert on_disk() == [False] * 6


def test_release_depends_on_the_seeds_and_on_nothing_else_of_the_uploads(tmp_path, monkeypatch):
    """What a helper gives away, and what it keeps but for digests, is the same whatever clients upload."""
    releases, kept = [], []
    for seed in range(2):
        world = World(seed=seed)
        seeds = iter([bytes([number]) * 32 for number in range(3)])
        monkeypatch.setattr(secure_world, "new_seeds", lambda count, seeds=seeds: (next(seeds),))
        with world.open(tmp_path / str(seed)) as state:
            trips = world.filled([state])
            releases.append(state.close(*closing(world, 1, trips)).tolist())
            kept.append(([one for one, _ in state.places()], state._database.seeds(1)))
    assert releases[0] == releases[1]
    assert kept[0] == kept[1]
    assert world.code_sum(1, trips).any()


# -- noise -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", [td.Independent(), td.Tree()], ids=lambda one: one.kind)
def test_noise_is_that_of_the_policy_over_restarts(mechanism, tmp_path):
    noise = NOISE.model_copy(update={"mechanism": mechanism})
    world = World(helpers=2, noise=noise)
    expected = [IntegerNoise(noise, NUMBERS, helper) for helper in range(2)]
    for version in range(3):
        opened = world.reopened if version else world.open
        states = [opened(tmp_path / str(number), number) for number in range(2)]
        trips, total, _ = world.round(states, version)
        drawn = sum(one.draw(version) for one in expected)
        assert total.tolist() == (world.code_sum(version + 1, trips) + drawn).tolist()
        for state in states:
            state.__exit__()


def test_steps_beyond_the_budget_are_refused(tmp_path):
    world = World(noise=NOISE)
    with world.open(tmp_path / "helper") as state:
        for version in range(3):
            world.round([state], version)
        request = closing(world, 4, world.filled([state], 3))
        refused(RefusalKind.BUDGET, "allows 3 steps", state.close, *request)


def test_noise_of_an_abandoned_batch_is_dropped(tmp_path):
    """Otherwise the steps of one client would be closer together in the noise than the limits say."""
    world = World(noise=NOISE, staleness=td.Exponential(a=5.0))
    with world.open(tmp_path / "helper") as state:
        world.round([state], 0)
        world.filled([state], 1, starts=[0, 0, 1])
        state.abandon(2)
        world.models[2] = world.models[1]
        trips, total, _ = world.round([state], 2)
    drawn = IntegerNoise(NOISE, NUMBERS).draw(2)
    assert total.tolist() == (world.code_sum(3, trips) + drawn).tolist()


def test_noise_of_the_system_is_drawn_once(tmp_path):
    world = World(
        noise=NOISE.model_copy(update={"seed": None, "epsilon": 1e9}), norm=5.0, limits=Limits(9, 1)
    )
    with world.open(tmp_path / "helper") as state:
        request = closing(world, 1, trips := world.filled([state]))
        release = state.close(*request)
    with world.reopened(tmp_path / "helper") as state:
        assert np.array_equal(state.close(*request), release)
    noise = (world.masked_sum(1, trips) - release).view(np.int32) - world.code_sum(1, trips)
    assert np.abs(noise).max() > 0


# -- backups -----------------------------------------------------------------------------------------


def test_greeting_notices_a_side_that_was_put_back(world, state):
    receipts = [state.receipt.receipt]
    for version in range(3):
        receipts.append(world.round([state], version)[2][0].receipt)
    hashes = [bytes.fromhex(one.hash) for one in receipts]
    state.greet("run-1", hashes[3], 3)
    state.greet("run-1", hashes[2], 2)  # the server was killed before it stored the last
    for receipt, version, who in (
        (hashes[1], 1, "server"), (b"", 0, "server"), (hashes[2], 3, "server"), (hashes[3], 4, "helper"),
        (bytes(32), 3, "server"),
    ):  # fmt: skip
        refused(RefusalKind.HISTORY, f"the {who} was put back", state.greet, "run-1", receipt, version)
    refused(RefusalKind.HISTORY, "not in run-2", state.greet, "run-2", b"", 0)


def test_helper_without_its_folder_is_noticed(world, tmp_path):
    with world.reopened(tmp_path / "helper") as state:
        refused(RefusalKind.HISTORY, "knows of no run", state.greet, "run-1", bytes(32), 5)


def test_folder_that_was_copied_or_put_back_is_refused(world, tmp_path):
    with world.open(tmp_path / "helper") as state:
        world.round([state], 0)
    shutil.copytree(tmp_path / "helper", tmp_path / "copy")
    with pytest.raises(ConfigError, match="copied or put back from a backup"):
        world.reopened(tmp_path / "copy")
    with world.reopened(tmp_path / "copy", moved=True) as state:  # the operator knows better
        assert state.receipt.receipt.version == 1


@pytest.mark.parametrize("part", ["helper.db", "releases.log"])
def test_part_of_a_folder_that_was_put_back_is_noticed(world, tmp_path, part):
    with world.open(tmp_path / "helper") as state:
        world.round([state], 0)
    file = tmp_path / "helper" / part
    before = file.read_bytes()
    with world.reopened(tmp_path / "helper") as state:
        world.round([state], 1)
        state.close(*closing(world, 3, world.filled([state], 2)))
    file.write_bytes(before)  # in place: the file stays the same one
    with pytest.raises(ConfigError, match="part of the folder was put back"):
        world.reopened(tmp_path / "helper")


def test_folder_is_opened_once(world, state, tmp_path):
    with pytest.raises(ConfigError, match="somebody else is running it"):
        world.reopened(tmp_path / "helper")


def test_folder_of_another_server_or_helper_is_refused(world, tmp_path):
    with world.open(tmp_path / "helper"):
        pass
    other = World()
    with pytest.raises(ConfigError, match="give the same --keys and --server"):
        other.reopened(tmp_path / "helper")


def test_damaged_database_is_refused(world, tmp_path):
    (tmp_path / "helper").mkdir()
    (tmp_path / "helper" / "helper.db").write_bytes(b"no database" * 1000)
    with pytest.raises(RunError, match=r"helper\.db is damaged"):
        world.reopened(tmp_path / "helper")


def test_after_a_failed_transaction_no_call_is_answered(world, state):
    offers = [world.offer([state], "ann")]
    state._database._connection.execute("PRAGMA query_only=ON")
    with pytest.raises(RunError, match="cannot be written"):
        state.admit(offers)
    state._database._connection.execute("PRAGMA query_only=OFF")
    with pytest.raises(RunError, match="start it again"):
        state.admit(offers)


def test_receipts_are_json_that_names_the_policy(world, state):
    fields = json.loads(state.receipt.receipt.to_bytes().partition(b"\n")[2])
    assert fields == ["run-1", 0, world.policy.start, world.policy.digest.hex(), ""]
