"""A helper's rules of batches are those of bookkeeping."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_world import World

import tardigrad as td
from tardigrad.core.bookkeeping import Bookkeeping, Buffer
from tardigrad.core.outcomes import Accepted, Reason, Rejected, Ticket
from tardigrad.core.participation import Limits
from tardigrad.core.staleness import RoundedLaw
from tardigrad.secure.batches import AdmittedUpload, BatchBook, effective_clients, too_few

CLIENTS = 7
LAWS = st.sampled_from([td.Constant(), td.Polynomial(), td.Exponential(a=1.5), td.Hinge(a=3.0, b=1.0)])
LIMITS = st.none() | st.builds(Limits, st.integers(1, 4), st.integers(1, 4))


@given(
    size=st.integers(1, 4), bound=st.none() | st.integers(0, 3), law=LAWS, limits=LIMITS,
    opening=st.sampled_from([0, 0, CLIENTS]), synchronous=st.booleans(),
    actions=st.lists(st.tuples(st.booleans(), st.integers(0, 99)), min_size=20, max_size=120),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_helper_decides_as_bookkeeping_does(size, bound, law, limits, opening, synchronous, actions):
    pace = td.Synchronous(cohort=size, selected=size + 2) if synchronous else td.Asynchronous(concurrency=6)
    buffer = Buffer(size=size, staleness_bound=bound, once_per_client=True)
    book = Bookkeeping(pace, buffer, RoundedLaw(law, 16), opening, limits)
    helper = BatchBook(
        World(
            batch=size, opening=opening, staleness=law, denominator=16, limits=limits,
            staleness_bound=0 if synchronous else bound,
        ).policy
    )  # fmt: skip
    tickets = []
    for arrives, number in actions:
        if arrives and tickets:
            ticket = tickets.pop(number % len(tickets))
            outcome = book.deliver(ticket.trip, 0.0)
            found = helper.admit(ticket.trip, str(ticket.client), ticket.version)
            if isinstance(outcome, Accepted):
                weight = round(outcome.weight * 16)
                assert isinstance(found, AdmittedUpload)
                assert (found.batch, found.staleness, found.weight) == (
                    outcome.step,
                    outcome.staleness,
                    weight,
                )
            else:
                assert isinstance(outcome, Rejected)
                assert found == (Reason.STALE if outcome.reason is Reason.LATE else outcome.reason)
            assert (helper.open.number, len(helper.open.members)) == (book.version + 1, book.accepted)
        else:
            ticket = book.check_in(number % CLIENTS, 0.0)
            if isinstance(ticket, Ticket):
                tickets.append(ticket)
    assert [len(batch.members) for batch in helper.full.values()] == [
        helper.policy.batch_size(number) for number in helper.full
    ]


def test_members_of_a_batch_have_places_in_order():
    book = BatchBook(World().policy)
    assert [book.admit(trip, client, 0).place for trip, client in enumerate("abc")] == [0, 1, 2]
    assert book.open.number == 2
    assert [one.client for one in book.remove(1).members] == ["a", "b", "c"]
    with pytest.raises(KeyError):
        book.remove(1)


@pytest.mark.parametrize(
    ("weights", "effective"), [([], 0.0), ([5], 1.0), ([5, 5, 5], 3.0), ([1] * 99 + [10**6], 1.0002)]
)
def test_effective_number_of_clients(weights, effective):
    assert effective_clients(weights) == pytest.approx(effective, abs=1e-4)


def test_late_uploads_do_not_hide_a_fresh_one():
    policy = World(least_clients=2).policy
    fresh = AdmittedUpload(0, "ann", 9, 10, 0, 256)
    late = [AdmittedUpload(trip, f"late-{trip}", 0, 10, trip, 1) for trip in range(1, 20)]
    assert too_few(policy, [fresh, *late])
    assert not too_few(policy, late)
    assert too_few(policy, late[:1])
