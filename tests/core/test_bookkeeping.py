"""Bookkeeping: random events against a slow ledger that keeps everything, and every decision by example."""

import itertools
import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pydantic import ValidationError

from tardigrad.core.bookkeeping import Bookkeeping, Buffer
from tardigrad.core.outcomes import Accepted, GivenUp, Reason, Refusal, Rejected, Ticket, UnknownTrip
from tardigrad.core.pace import (
    Arrivals,
    Asynchronous,
    Poisson,
    Queued,
    SampledStaleness,
    Scripted,
    Synchronous,
)
from tardigrad.core.participation import Limits
from tardigrad.core.staleness import Constant, Polynomial

CLIENTS = [0, 1, 2, 3, 4, "ann", "bob"]

PACES = {
    "asynchronous": st.builds(Asynchronous, concurrency=st.integers(1, 6)),
    "arrivals": st.builds(Arrivals, concurrency=st.none() | st.integers(1, 4)),
    "synchronous": st.integers(1, 3).flatmap(
        lambda cohort: st.builds(
            Synchronous, cohort=st.just(cohort), selected=st.none() | st.integers(cohort, 6)
        )
    ),
    "poisson": st.builds(Poisson),
    "queued": st.builds(Queued, concurrency=st.integers(1, 5)),
    "scripted": st.just(Scripted(trips=((0.0, 1.0, 0),))),
    "sampled staleness": st.just(SampledStaleness(maximum=3)),
}


def state_of(book):
    """Without the order of what is a set."""
    state = book.state()
    return state | {"contributed": sorted(state["contributed"], key=str)}


class Books(RuleBasedStateMachine):
    """Two books get the same events: one all along, one that is now and then rebuilt from the other's JSON.
    The ledger beside them works out by itself what they should say."""

    paces = st.nothing()

    @initialize(
        data=st.data(),
        size=st.integers(1, 4),
        sized=st.booleans(),
        bound=st.none() | st.integers(0, 3),
        once=st.booleans(),
        most=st.none() | st.integers(1, 3),
        weights=st.sampled_from(["equal", "examples"]),
        opening=st.sampled_from([0, 0, 0, 1, 3]),
        limits=st.none() | st.builds(Limits, st.integers(1, 3), st.integers(1, 4)),
    )
    def begin(self, data, size, sized, bound, once, most, weights, opening, limits):
        pace = data.draw(self.paces)
        if isinstance(pace, Synchronous):
            size = pace.cohort
        elif isinstance(pace, Poisson) and not sized:
            size = None
        self.pace, self.size, self.bound, self.opening = pace, size, bound, opening
        self.limits = limits
        self.buffer = Buffer(
            size=size, staleness_bound=bound, once_per_client=once, most_per_client=most, weights=weights
        )
        self.books = [self.new_book(), self.new_book()]
        self.time = 0.0
        self.version = 0
        self.tickets = {}  # every ticket ever given, by trip
        self.under_way = {}
        self.endings = {}  # trip: accepted, refused or given up
        self.steps = []  # the buffers that made a step
        self.filling = []  # the buffer now
        self.joined = False

    def new_book(self):
        return Bookkeeping(self.pace, self.buffer, Polynomial(a=0.5), self.opening, self.limits)

    def both(self, event):
        """What both books say, which must be the same."""
        first, second = (event(book) for book in self.books)
        assert first == second
        return first

    # -- what the ledger expects ------------------------------------------------------------------

    @property
    def in_opening(self):
        return self.version == 0 and self.opening > 0

    def has_its_share(self, client):
        """Whether the buffer has as many uploads of this client as it may have."""
        if self.buffer.once_per_client or self.in_opening:
            most = 1
        else:
            most = self.buffer.most_per_client or 10**9
        return sum(ticket.client == client for ticket in self.filling) >= most

    def beyond_limits(self, client):
        """Why the client may not take part in the step that is being filled."""
        if self.limits is None:
            return None
        taken = [version + 1 for version, buffer in self.steps for t in buffer if t.client == client]
        taken += [self.version + 1 for t in self.filling if t.client == client]
        if len(taken) >= self.limits.participations:
            return Reason.FINISHED
        near = taken and self.version + 1 - max(taken) < self.limits.separation
        return Reason.RESTING if near else None

    def from_this_version(self):
        alive = [t for t in self.under_way.values() if t.version == self.version]
        return len(alive) + sum(t.version == self.version for t in self.filling)

    def capacity(self):
        if self.in_opening:
            return self.opening - self.from_this_version()
        match self.pace:
            case Asynchronous(concurrency=most):
                return most - len(self.under_way)
            case Arrivals(concurrency=most) if most is not None:
                return most - len(self.under_way)
            case Synchronous(cohort=cohort, selected=selected):
                return (selected or cohort) - self.from_this_version()
            case Queued(concurrency=most):
                return most - len(self.under_way) - len(self.filling)
        return 10**9

    def moves(self):
        """Whether the model moves now; if so, the ledger turns the page."""
        size = self.opening if self.in_opening else self.size
        if size is None:
            alive = any(t.version == self.version for t in self.under_way.values())
            full = self.joined and not alive
        else:
            full = len(self.filling) == size
        if full:
            self.steps.append((self.version, self.filling))
            self.version, self.filling, self.joined = self.version + 1, [], False
        return full

    # -- events -----------------------------------------------------------------------------------

    @rule(client=st.sampled_from(CLIENTS), wait=st.sampled_from([0.0, 0.5]))
    def check_in(self, client, wait):
        self.time += wait
        working = {t.client for t in self.under_way.values()}
        expected = None
        if client in working and not isinstance(self.pace, Queued):
            expected = Reason.TRAINING
        elif self.has_its_share(client):
            expected = Reason.CONTRIBUTED
        elif self.beyond_limits(client):
            expected = self.beyond_limits(client)
        elif self.capacity() <= 0:
            expected = Reason.FULL
        answer = self.both(lambda book: book.check_in(client, self.time))
        if expected is not None:
            assert answer == Refusal(client, expected, self.time)
            return
        assert answer == Ticket(len(self.tickets), client, self.version, self.time)
        self.tickets[answer.trip] = self.under_way[answer.trip] = answer

    @precondition(lambda self: self.under_way)
    @rule(
        data=st.data(),
        examples=st.integers(1, 9),
        wait=st.sampled_from([0.0, 0.5]),
        refused=st.sampled_from([None, None, None, Reason.NORM, Reason.OUTLIER]),
    )
    def deliver(self, data, examples, wait, refused):
        self.time += wait
        trip = data.draw(st.sampled_from(sorted(self.under_way)))
        ticket = self.under_way.pop(trip)
        before = self.version
        staleness = before - ticket.version
        reason = refused
        if refused is not None:
            pass
        elif isinstance(self.pace, Synchronous) and staleness > 0:
            reason = Reason.LATE
        elif self.bound is not None and staleness > self.bound:
            reason = Reason.STALE
        elif self.has_its_share(ticket.client):
            reason = Reason.CONTRIBUTED
        else:
            reason = self.beyond_limits(ticket.client)
        answer = self.both(lambda book: book.deliver(trip, self.time, examples, refused))
        assert answer.staleness == staleness >= 0
        assert (answer.trip, answer.client, answer.ticket) == (trip, ticket.client, ticket)
        assert (answer.time, answer.version) == (self.time, before)
        assert trip not in self.endings
        if reason is None:
            assert isinstance(answer, Accepted)
            mass = examples if self.buffer.weights == "examples" else 1
            assert answer.mass == mass
            assert answer.weight == pytest.approx(mass / (1 + staleness) ** 0.5)
            assert answer.step == before + 1
            self.endings[trip] = "accepted"
            self.filling.append(ticket)
        else:
            assert isinstance(answer, Rejected)
            assert answer.reason is reason
            self.endings[trip] = "refused"
        assert answer.closes == self.moves()

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def give_up(self, data):
        trip = data.draw(st.sampled_from(sorted(self.under_way)))
        ticket = self.under_way.pop(trip)
        answer = self.both(lambda book: book.give_up(trip, self.time))
        assert trip not in self.endings
        self.endings[trip] = "given up"
        assert isinstance(answer, GivenUp)
        assert answer == (ticket, self.time, self.moves())

    @rule(data=st.data(), beyond=st.integers(-3, 3))
    def deliver_again_or_an_unknown_trip(self, data, beyond):
        if self.endings and data.draw(st.booleans()):
            self.nothing_changes(data.draw(st.sampled_from(sorted(self.endings))), Reason.DUPLICATE)
        else:
            self.nothing_changes(beyond if beyond < 0 else len(self.tickets) + beyond, Reason.UNKNOWN)

    def nothing_changes(self, trip, reason):
        before = self.both(state_of)
        expected = UnknownTrip(trip, self.time, self.version, reason)
        for answer in (
            self.both(lambda book: book.deliver(trip, self.time)),
            self.both(lambda book: book.give_up(trip, self.time)),
        ):
            assert isinstance(answer, UnknownTrip)
            assert answer == expected
        assert self.both(state_of) == before

    @precondition(lambda self: isinstance(self.pace, Poisson))
    @rule()
    def all_joined(self):
        self.joined = True
        assert self.both(lambda book: book.all_joined()) == self.moves()

    @rule()
    def rebuild(self):
        restored = self.new_book()
        restored.restore(json.loads(json.dumps(self.books[0].state())))
        self.books[1] = restored

    # -- what always holds ------------------------------------------------------------------------

    @invariant()
    def books_agree_with_the_ledger(self):
        for book in self.books:
            assert book.version == self.version == len(self.steps)
            assert book.in_flight == self.under_way
            assert book.accepted == len(self.filling)
            assert min(book.capacity(), 10**9) == self.capacity()

    @invariant()
    def nothing_is_lost_and_nothing_counts_twice(self):
        assert set(self.tickets) == set(self.under_way) | set(self.endings)
        assert not set(self.under_way) & set(self.endings)
        counted = [t.trip for _, buffer in self.steps for t in buffer] + [t.trip for t in self.filling]
        assert len(counted) == len(set(counted))
        assert set(counted) == {trip for trip, how in self.endings.items() if how == "accepted"}

    @invariant()
    def buffers_are_full_and_limits_hold(self):
        for version, buffer in self.steps:
            size = self.opening if version == 0 and self.opening else self.size
            assert size is None or len(buffer) == size
            if self.buffer.once_per_client or (version == 0 and self.opening):
                assert len({t.client for t in buffer}) == len(buffer)
            elif self.buffer.most_per_client is not None:
                clients = [t.client for t in buffer]
                assert all(clients.count(client) <= self.buffer.most_per_client for client in clients)
        taken = {}
        for step, buffer in [*self.steps, (self.version, self.filling)]:
            for ticket in buffer:
                taken.setdefault(ticket.client, []).append(step)
        if self.limits is not None:
            for steps in taken.values():
                assert len(steps) <= self.limits.participations
                assert all(b - a >= self.limits.separation for a, b in itertools.pairwise(steps))
        working = [t.client for t in self.under_way.values()]
        if not isinstance(self.pace, Queued):
            assert len(working) == len(set(working))
        most = getattr(self.pace, "concurrency", None)
        if most is not None and self.version > 0:
            assert len(working) <= max(most, self.opening)


@pytest.mark.parametrize("name", PACES)
def test_random_events(name):
    run_state_machine_as_test(
        type("Books", (Books,), {"paces": PACES[name]}),
        settings=settings(
            max_examples=25, stateful_step_count=50, deadline=None, derandomize=True, database=None
        ),
    )


# -- every refusal, by example -----------------------------------------------------------------------


def test_a_full_house_turns_away():
    book = Bookkeeping(Asynchronous(concurrency=1), Buffer(size=1))
    book.check_in("ann", 0.0)
    assert book.check_in("bob", 0.0) == Refusal("bob", Reason.FULL, 0.0)


def test_a_client_at_work_may_not_start_again():
    book = Bookkeeping(Asynchronous(concurrency=5), Buffer(size=1))
    ticket = book.check_in("ann", 0.0)
    assert book.check_in("ann", 1.0) == Refusal("ann", Reason.TRAINING, 1.0)
    book.deliver(ticket.trip, 2.0)
    assert isinstance(book.check_in("ann", 3.0), Ticket)


def test_already_training_is_said_before_full():
    book = Bookkeeping(Asynchronous(concurrency=1), Buffer(size=1))
    book.check_in("ann", 0.0)
    assert book.check_in("ann", 0.0) == Refusal("ann", Reason.TRAINING, 0.0)


def test_a_client_that_contributed_waits_for_the_step():
    book = Bookkeeping(Asynchronous(concurrency=5), Buffer(size=2, once_per_client=True))
    ann, bob = book.check_in("ann", 0.0), book.check_in("bob", 0.0)
    assert not book.deliver(ann.trip, 1.0).closes
    assert book.check_in("ann", 1.0) == Refusal("ann", Reason.CONTRIBUTED, 1.0)
    assert book.deliver(bob.trip, 2.0).closes
    assert isinstance(book.check_in("ann", 2.0), Ticket)


def test_a_client_with_its_share_of_the_buffer_waits_for_the_step():
    book = Bookkeeping(Asynchronous(concurrency=5), Buffer(size=4, most_per_client=2))
    for time in (0.0, 1.0):
        assert isinstance(book.deliver(book.check_in("liar", time).trip, time), Accepted)
    assert book.check_in("liar", 2.0) == Refusal("liar", Reason.CONTRIBUTED, 2.0)
    assert not book.deliver(book.check_in("ann", 2.0).trip, 3.0).closes
    assert book.deliver(book.check_in("ann", 3.0).trip, 4.0).closes
    assert isinstance(book.check_in("liar", 4.0), Ticket)


def test_an_upload_beyond_its_clients_share_is_refused_on_delivery():
    book = Bookkeeping(Queued(concurrency=5), Buffer(size=5, most_per_client=2))
    trips = [book.check_in("liar", 0.0).trip for _ in range(3)]
    *accepted, refused = [book.deliver(trip, 1.0) for trip in trips]
    assert [type(outcome) for outcome in accepted] == [Accepted, Accepted]
    assert refused.reason is Reason.CONTRIBUTED
    assert book.accepted == 2


def test_an_upload_that_the_caller_refuses_ends_its_trip_and_does_not_count():
    book = Bookkeeping(Asynchronous(concurrency=1), Buffer(size=1))
    ticket = book.check_in("liar", 0.0)
    refused = book.deliver(ticket.trip, 1.0, refused=Reason.NORM)
    assert isinstance(refused, Rejected)
    assert refused == Rejected(ticket, time=1.0, version=0, reason=Reason.NORM, closes=False)
    assert (book.accepted, book.version, book.capacity()) == (0, 0, 1)
    assert isinstance(book.check_in("liar", 2.0), Ticket)


def test_a_client_that_gave_up_did_not_contribute():
    book = Bookkeeping(Asynchronous(concurrency=5), Buffer(size=2, once_per_client=True))
    ann = book.check_in("ann", 0.0)
    assert book.give_up(ann.trip, 0.5) == GivenUp(ann, 0.5, closes=False)
    assert isinstance(book.check_in("ann", 1.0), Ticket)


def test_a_queued_upload_of_a_contributor_is_refused():
    book = Bookkeeping(Queued(concurrency=3), Buffer(size=3, once_per_client=True))
    first, second = book.check_in(0, 0.0), book.check_in(0, 0.0)
    assert isinstance(book.deliver(first.trip, 1.0), Accepted)
    refused = book.deliver(second.trip, 2.0)
    assert isinstance(refused, Rejected)
    assert refused.reason is Reason.CONTRIBUTED
    assert book.capacity() == 2  # of three, one has counted; the place of the refused one is free


def test_an_upload_counts_once():
    book = Bookkeeping(Asynchronous(concurrency=2), Buffer(size=5))
    ticket = book.check_in(0, 0.0)
    assert isinstance(book.deliver(ticket.trip, 1.0), Accepted)
    again = book.deliver(ticket.trip, 1.5)
    assert isinstance(again, UnknownTrip)
    assert again == UnknownTrip(ticket.trip, time=1.5, version=0, reason=Reason.DUPLICATE)
    assert book.accepted == 1


def test_an_upload_after_giving_up_is_a_duplicate():
    book = Bookkeeping(Asynchronous(concurrency=2), Buffer(size=5))
    ticket = book.check_in(0, 0.0)
    book.give_up(ticket.trip, 1.0)
    assert book.deliver(ticket.trip, 1.5).reason == Reason.DUPLICATE


@pytest.mark.parametrize("trip", [-1, 1, 99])
def test_a_trip_that_nobody_was_given_is_unknown(trip):
    book = Bookkeeping(Asynchronous(concurrency=2), Buffer(size=5))
    book.check_in(0, 0.0)
    assert book.deliver(trip, 1.0).reason == Reason.UNKNOWN
    assert book.give_up(trip, 1.0) == UnknownTrip(trip, 1.0, version=0, reason=Reason.UNKNOWN)


def test_too_stale_is_one_more_than_the_bound():
    book = Bookkeeping(Asynchronous(concurrency=9), Buffer(size=1, staleness_bound=2))
    slow, slower = book.check_in("slow", 0.0), book.check_in("slower", 0.0)
    for n in range(2):
        book.deliver(book.check_in(n, 0.0).trip, 1.0)
    on_the_bound = book.deliver(slow.trip, 2.0)
    assert isinstance(on_the_bound, Accepted)
    assert on_the_bound.staleness == 2
    beyond = book.deliver(slower.trip, 2.0)
    assert isinstance(beyond, Rejected)
    assert (beyond.reason, beyond.staleness) == (Reason.STALE, 3)


def test_a_bound_of_zero_takes_only_fresh_uploads():
    book = Bookkeeping(Asynchronous(concurrency=2), Buffer(size=1, staleness_bound=0))
    a, b = book.check_in(0, 0.0), book.check_in(1, 0.0)
    assert isinstance(book.deliver(a.trip, 1.0), Accepted)
    assert book.deliver(b.trip, 1.0).reason == Reason.STALE


# -- rounds ------------------------------------------------------------------------------------------


def test_over_selection_takes_the_first_of_the_selected():
    book = Bookkeeping(Synchronous(cohort=3, selected=5), Buffer(size=3))
    tickets = [book.check_in(client, 0.0) for client in range(5)]
    assert book.check_in(5, 0.0) == Refusal(5, Reason.FULL, 0.0)
    first = [book.deliver(tickets[n].trip, 1.0 + n) for n in (4, 2, 0)]
    assert [type(d) for d in first] == [Accepted, Accepted, Accepted]
    assert [d.closes for d in first] == [False, False, True]
    late = [book.deliver(tickets[n].trip, 9.0) for n in (1, 3)]
    assert [d.reason for d in late] == [Reason.LATE, Reason.LATE]
    assert [d.staleness for d in late] == [1, 1]
    assert [d.closes for d in late] == [False, False]
    assert book.version == 1


def test_a_new_round_starts_while_stragglers_are_under_way():
    book = Bookkeeping(Synchronous(cohort=1, selected=2), Buffer(size=1))
    a, _ = book.check_in(0, 0.0), book.check_in(1, 0.0)
    book.deliver(a.trip, 1.0)
    assert book.capacity() == 2
    assert book.check_in(1, 1.0) == Refusal(1, Reason.TRAINING, 1.0)
    assert book.check_in(2, 1.0).version == 1


def test_somebody_takes_the_place_of_who_gave_up_in_a_round():
    book = Bookkeeping(Synchronous(cohort=2), Buffer(size=2))
    a, _ = book.check_in(0, 0.0), book.check_in(1, 0.0)
    assert book.capacity() == 0
    book.give_up(a.trip, 1.0)
    assert book.capacity() == 1


def test_queued_tasks_are_replaced_at_the_step_and_not_before():
    book = Bookkeeping(Queued(concurrency=3), Buffer(size=2))
    tickets = [book.check_in(0, 0.0) for _ in range(3)]
    assert book.capacity() == 0
    book.deliver(tickets[0].trip, 1.0)
    assert book.capacity() == 0
    assert book.deliver(tickets[1].trip, 2.0).closes
    assert book.capacity() == 2


def test_a_queued_task_that_came_to_nothing_is_replaced_at_once():
    book = Bookkeeping(Queued(concurrency=3), Buffer(size=2))
    tickets = [book.check_in(0, 0.0) for _ in range(3)]
    book.give_up(tickets[0].trip, 1.0)
    assert book.capacity() == 1


# -- the opening -------------------------------------------------------------------------------------


def test_the_opening_asks_everybody_once_whatever_the_pace():
    book = Bookkeeping(Asynchronous(concurrency=1), Buffer(size=1), opening=3)
    tickets = [book.check_in(client, 0.0) for client in range(3)]
    assert book.capacity() == 0
    assert not book.deliver(tickets[0].trip, 1.0).closes  # a buffer of 1 would close here
    assert book.capacity() == 0
    assert book.check_in(0, 1.0) == Refusal(0, Reason.CONTRIBUTED, 1.0)
    assert not book.deliver(tickets[1].trip, 1.0).closes
    assert book.deliver(tickets[2].trip, 1.0).closes
    assert book.version == 1
    assert book.capacity() == 1  # from here on the pace's own
    assert book.deliver(book.check_in(0, 2.0).trip, 3.0).closes


def test_who_gives_up_in_the_opening_is_asked_again():
    book = Bookkeeping(Asynchronous(concurrency=1), Buffer(size=1), opening=2)
    a, b = book.check_in(0, 0.0), book.check_in(1, 0.0)
    assert isinstance(book.deliver(b.trip, 1.0), Accepted)
    assert book.give_up(a.trip, 1.5) == GivenUp(a, 1.5, closes=False)
    assert book.capacity() == 1
    assert book.deliver(book.check_in(0, 2.0).trip, 3.0).closes


# -- Poisson joining without a size: the step waits for all who joined ---------------------------------


def test_a_step_of_all_who_joined():
    book = Bookkeeping(Poisson(probability=0.5), Buffer())
    tickets = [book.check_in(client, 0.0) for client in range(3)]
    assert book.all_joined() is False
    assert [book.deliver(t.trip, 1.0).closes for t in tickets] == [False, False, True]
    assert book.version == 1


def test_nobody_joined_is_an_empty_step():
    book = Bookkeeping(Poisson(probability=0.5), Buffer())
    assert book.all_joined() is True
    assert (book.version, book.accepted) == (1, 0)


def test_the_step_does_not_come_before_all_have_joined():
    book = Bookkeeping(Poisson(probability=0.5), Buffer())
    ticket = book.check_in(0, 0.0)
    assert not book.deliver(ticket.trip, 0.0).closes
    assert book.all_joined() is True


def test_the_last_who_gives_up_makes_the_step():
    book = Bookkeeping(Poisson(probability=0.5), Buffer())
    a, b = book.check_in(0, 0.0), book.check_in(1, 0.0)
    book.all_joined()
    assert not book.deliver(a.trip, 1.0).closes
    assert book.give_up(b.trip, 1.5) == GivenUp(b, 1.5, closes=True)
    assert book.version == 1


def test_all_may_give_up():
    book = Bookkeeping(Poisson(probability=0.5), Buffer())
    a = book.check_in(0, 0.0)
    book.all_joined()
    assert book.give_up(a.trip, 1.5) == GivenUp(a, 1.5, closes=True)
    assert (book.version, book.accepted) == (1, 0)


# -- weights -----------------------------------------------------------------------------------------


def stale_delivery(buffer, law, examples):
    """An upload of staleness 3."""
    book = Bookkeeping(Asynchronous(concurrency=9), buffer, law)
    slow = book.check_in("slow", 0.0)
    for n in range(3):
        book.deliver(book.check_in(n, 0.0).trip, 1.0)
    return book.deliver(slow.trip, 2.0, examples)


def test_the_discount_is_in_the_weight_and_not_in_the_mass():
    delivery = stale_delivery(Buffer(size=1), Polynomial(a=0.5), examples=40)
    assert (delivery.staleness, delivery.weight, delivery.mass) == (3, 0.5, 1.0)


def test_weights_by_examples():
    delivery = stale_delivery(Buffer(size=1, weights="examples"), Polynomial(a=0.5), examples=40)
    assert (delivery.staleness, delivery.weight, delivery.mass) == (3, 20.0, 40.0)


def test_without_a_law_late_uploads_count_in_full():
    delivery = stale_delivery(Buffer(size=1), None, examples=40)
    assert (delivery.weight, delivery.mass) == (1.0, 1.0)
    assert delivery == stale_delivery(Buffer(size=1), Constant(), examples=40)


# -- state -------------------------------------------------------------------------------------------


def test_the_state_is_plain_json_and_restores_into_a_used_book():
    book = Bookkeeping(Asynchronous(concurrency=3), Buffer(size=2, once_per_client=True))
    a, _ = book.check_in("ann", 0.25), book.check_in(7, 0.5)
    book.deliver(a.trip, 1.0)
    state = json.loads(json.dumps(book.state()))
    used = Bookkeeping(Asynchronous(concurrency=3), Buffer(size=2, once_per_client=True))
    for client in range(3):
        used.check_in(client, 0.0)
    used.restore(state)
    assert used.state() == book.state()
    assert used.in_flight == {1: Ticket(1, 7, 0, 0.5)}
    assert used.objection("ann") == Reason.CONTRIBUTED
    assert used.objection(7) == Reason.TRAINING
    assert used.objection(0) is None


# -- bad settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Buffer(size=0), "size"),
        (lambda: Buffer(staleness_bound=-1), "staleness_bound"),
        (lambda: Buffer(weights="loss"), "weights"),
        (lambda: Buffer(most_per_client=0), "most_per_client"),
        (lambda: Buffer(sise=3), "sise"),
        (lambda: Asynchronous(concurrency=0), "concurrency"),
        (lambda: Arrivals(rate=0.0), "rate"),
        (lambda: Arrivals(rate=float("inf")), "rate"),
        (lambda: Arrivals(process="random"), "process"),
        (lambda: Synchronous(cohort=3, selected=2), "selected must be at least cohort"),
        (lambda: Poisson(probability=0.0), "probability"),
        (lambda: Poisson(probability=1.5), "probability"),
        (lambda: Queued(concurrency=0), "concurrency"),
        (lambda: SampledStaleness(maximum=-1), "maximum"),
        (lambda: Scripted(), "either trips"),
        (lambda: Scripted(trips=((0.0, 1.0, 0),), file="trace.csv"), "either trips"),
        (lambda: Scripted(trips=((0.0, -1.0, 0),)), "duration"),
        (lambda: Scripted(trips=((-1.0, 1.0, 0),)), "start"),
        (lambda: Scripted(trips=((0.0, 1.0, -2),)), "client"),
    ],
)
def test_bad_settings_name_the_key(make, names):
    with pytest.raises(ValidationError, match=names):
        make()
