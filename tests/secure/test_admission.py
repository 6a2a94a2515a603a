"""Which uploads a helper admits, and what a lying client or server gets from it."""

import pytest
from secure_world import World, refusals

import tardigrad as td
from tardigrad.core.outcomes import Reason
from tardigrad.core.participation import Limits
from tardigrad.secure.helper_refusals import NOT_LISTED, RESEAL

SEALED_WRONGLY = "the envelope was not sealed for this upload"


def test_checking_admits_nothing(world, state):
    good, bad = world.offer([state], "ann"), world.offer([state], "bob", purpose={"client": "eve"})
    assert refusals(state.admit([good, bad], check_only=True)) == ["", SEALED_WRONGLY]
    assert state.places() == []
    assert refusals(state.admit([good])) == [""]


def test_upload_that_was_found_good_is_admitted_although_its_client_has_left_the_list(world, tmp_path):
    """Other helpers may have admitted it meanwhile. What was found good is exactly this upload."""
    with world.open(tmp_path / "helper") as state:
        good, other = world.offer([state], "ann"), world.offer([state], "bob")
        assert refusals(state.admit([good, other], check_only=True)) == ["", ""]
    with world.reopened(tmp_path / "helper") as state:
        gone = good._replace(fault=NOT_LISTED)
        assert refusals(state.admit([gone], check_only=True)) == [""]
        assert refusals(state.admit([gone, other._replace(fault=NOT_LISTED, digest=bytes(32))])) == [
            "", NOT_LISTED,
        ]  # fmt: skip


def test_check_holds_until_the_next_receipt_and_its_seed_is_erased_then(world, tmp_path):
    with world.open(tmp_path / "helper") as state:
        checked = world.offer([state], "dan")
        state.admit([checked], check_only=True)
        seed = state._database.checked_seed(checked.trip, "dan", 0, checked.digest)

        def on_disk():
            return any(
                seed in file.read_bytes() for file in (tmp_path / "helper").iterdir() if file.is_file()
            )

        assert on_disk()
        world.round([state], 0)
        assert not on_disk()
        assert refusals(state.admit([checked._replace(fault=NOT_LISTED)])) == [NOT_LISTED]


def test_a_refused_upload_stays_refused_after_the_batch_has_changed(world, state):
    twice = [world.offer([state], "ann"), world.offer([state], "ann")]
    assert refusals(state.admit(twice)) == ["", "already in this buffer"]
    state.admit([world.offer([state], name) for name in ("bob", "eve")])  # batch 2 is open now
    assert refusals(state.admit(twice)) == ["", "already in this buffer"]


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
    offers[3] = offers[3]._replace(fault=NOT_LISTED)
    assert refusals(state.admit(offers)) == [
        "the upload is of another run",
        "the upload must have one envelope for each helper",
        "the upload must have one envelope for each helper",
        NOT_LISTED,
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
