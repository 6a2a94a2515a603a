"""A wall clock that is set by hours, forward or back, changes nothing for a server or a client."""

import asyncio
import contextlib

import pytest
from service_harness import PATIENCE, FakeClock, Memory, app_of, enrolled_key, fetched, serving

import tardigrad as td
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.access.enrolment import LIST, Enrolled
from tardigrad.service.access.signed_requests import REFRESH_SECONDS, WINDOW_MS, RequestVerifier, Signer
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.participant import Participant
from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.server.limits import Rates

HOUR = 3600.0
STEPS = (-5 * HOUR, 5 * HOUR)
LIMITS = {"requests_per_second": 10_000, "poll_seconds": 0.2, "ticket_seconds": 600.0}
CONFIG = td.Config(
    data=td.Digits(partition=td.IID(clients=2)), model=td.MLP(hidden=(4,)), local=td.Local(steps=1),
    pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=1), stop=td.Stop(trips=6), service=LIMITS,
)  # fmt: skip
SIMULATION = build(CONFIG)


def refusal(gate, signed, method):
    with pytest.raises(Refused) as caught:
        gate.admit(signed, method)
    return caught.value.why


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def gate(tmp_path, clock):
    enrolled_key(tmp_path, "ann")
    return RequestVerifier(Enrolled(tmp_path / LIST), clock)


@pytest.fixture
def signer(tmp_path, gate):
    """A client on another machine, with a clock of its own that nobody touches."""
    from tardigrad.service.access.enrolment import read_key

    signer = Signer("ann", read_key(tmp_path / "ann.key"), FakeClock())
    signer.session = gate.session
    return signer


@pytest.mark.parametrize("hours", STEPS)
def test_clients_are_let_in_after_the_servers_clock_was_set(hours, gate, signer, clock):
    clock.step(hours)
    assert gate.admit(signer.sign("Join"), "Join") == ("ann", b"")
    assert gate.admit(signer.sign("FetchTask"), "FetchTask") == ("ann", b"")


@pytest.mark.parametrize("hours", STEPS)
def test_a_replay_is_refused_after_the_servers_clock_was_set(hours, gate, signer, clock):
    signer.set_clock(gate.now_ms())
    signed = signer.sign("FetchTask", b"once")
    gate.admit(signed, "FetchTask")
    clock.step(hours)
    assert refusal(gate, signed, "FetchTask") is Cause.REPLAYED
    clock.advance(WINDOW_MS / 1000 + 1)
    assert refusal(gate, signed, "FetchTask") is Cause.TIME
    clock.step(-hours)
    assert refusal(gate, signed, "FetchTask") is Cause.TIME
    clock.advance(WINDOW_MS / 1000 + 1)
    signer.set_clock(gate.now_ms())
    gate.admit(signer.sign("FetchTask"), "FetchTask")
    assert len(gate._nonces) == 1  # those of long ago are forgotten


@pytest.mark.parametrize("hours", STEPS)
def test_removed_client_is_refused_after_the_refresh_interval(hours, gate, signer, clock, tmp_path):
    signer.set_clock(gate.now_ms())
    gate.admit(signer.sign("FetchTask"), "FetchTask")
    (tmp_path / LIST).write_text("")
    clock.step(hours)
    clock.advance(REFRESH_SECONDS)
    assert refusal(gate, signer.sign("FetchTask"), "FetchTask") is Cause.NOT_ENROLLED


@pytest.mark.parametrize("hours", STEPS)
def test_a_clients_own_clock_may_be_set_within_a_session(hours, tmp_path):
    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            clock = FakeClock()
            async with running.connect("ann", clock) as ann:
                clock.step(hours)
                finished = ClientTrainer("ann", app_of(SIMULATION, 0)).train(await fetched(ann), {})
                clock.step(-2 * hours)
                assert (await ann.deliver(finished)).accepted
            return running.refusals

    assert asyncio.run(scene()) == {}


@pytest.mark.parametrize("hours", STEPS)
def test_a_client_whose_clock_was_always_wrong_goes_by_the_servers(hours, tmp_path):
    async def scene():
        clock = FakeClock()
        clock.step(hours)
        async with serving(CONFIG, tmp_path) as running:
            signer = running.signer("ann", clock)
            trainee = ClientTrainer("ann", app_of(SIMULATION, 0))
            client = Participant(running.address, signer, None, trainee, tmp_path / "state", PATIENCE)
            assert await asyncio.wait_for(client.take_part(), PATIENCE) == "trips"
            return running.refusals

    assert asyncio.run(scene()) == {Cause.TIME: 1}


def test_a_client_that_was_asleep_goes_by_the_servers_clock(clock, tmp_path):
    """The monotonic clock of a machine that sleeps stands still."""

    async def scene():
        async with serving(CONFIG, tmp_path, clock=clock) as running:
            seen = []

            def asleep_after_two_trips(line):
                seen.append(line)
                if len(seen) == 2:
                    clock.advance(5 * HOUR)

            signer, trainee = running.signer("ann", FakeClock()), ClientTrainer("ann", app_of(SIMULATION, 0))
            client = Participant(
                running.address, signer, None, trainee, tmp_path / "state", PATIENCE, asleep_after_two_trips
            )
            assert await asyncio.wait_for(client.take_part(), PATIENCE) == "trips"
            return running.refusals

    assert asyncio.run(scene())[Cause.TIME] == 1


@pytest.mark.parametrize("hours", STEPS)
def test_requests_per_second_do_not_follow_the_wall_clock(hours, clock):
    rates = Rates(1.0, clock)
    rates.take("ann")
    rates.take("ann")
    clock.step(hours)
    with pytest.raises(Refused, match=r"wait 1\.00 s"):
        rates.take("ann")
    clock.advance(1.0)
    rates.take("ann")


@contextlib.asynccontextmanager
async def one_ticket(folder, clock, config=CONFIG):
    async with serving(config, folder, clock=clock) as running:
        clock.advance(100.0)
        ticket = await running.coordinator.check_in("ann", frozenset(), PATIENCE)
        yield running.coordinator, ticket


@pytest.mark.parametrize("hours", STEPS)
def test_tickets_expire_by_the_monotonic_clock(hours, clock, tmp_path):
    async def scene():
        async with one_ticket(tmp_path, clock) as (coordinator, ticket):
            clock.step(hours)
            clock.advance(599.0)
            await coordinator._sweep()
            assert ticket.trip in coordinator.run_state.book.in_flight
            clock.advance(1.0)
            await coordinator._sweep()
            assert ticket.trip not in coordinator.run_state.book.in_flight
            assert coordinator.run_state.time == 700.0

    asyncio.run(scene())


@pytest.mark.parametrize("hours", STEPS)
def test_run_stops_by_the_monotonic_clock(hours, clock, tmp_path):
    config = td.Config(**(dict(CONFIG) | {"stop": td.Stop(virtual_time=2 * HOUR)}))

    async def scene():
        async with one_ticket(tmp_path, clock, config) as (coordinator, _):
            clock.step(hours)
            clock.advance(2 * HOUR - 100.0)
            await coordinator._sweep()
            assert coordinator.run_state.over is None
            clock.advance(1.0)
            await coordinator._sweep()
            assert coordinator.run_state.over == "virtual_time"

    asyncio.run(scene())


@pytest.mark.parametrize("ended", ["stopped", "killed"])
@pytest.mark.parametrize("hours", [*STEPS, 24 * 365 * 10 * HOUR])
def test_time_while_no_server_runs_does_not_count(hours, ended, clock, tmp_path):
    config = td.Config(**(dict(CONFIG) | {"stop": td.Stop(virtual_time=2 * HOUR)}))
    record = Memory()

    async def first():
        async with serving(config, tmp_path, record, clock=clock) as running:
            clock.advance(300.0)
            await running.coordinator.check_in("ann", frozenset(), PATIENCE)
            clock.advance(40.0)
            if ended == "killed":
                running.coordinator.ended.set_result("killed")  # no snapshot is written
                record.snapshots.clear()

    async def second():
        snapshot = record.snapshots[-1] if record.snapshots else None
        async with serving(config, tmp_path, record, snapshot, clock=clock) as running:
            coordinator = running.coordinator
            assert coordinator.now == (340.0 if ended == "stopped" else 300.0)
            await coordinator._sweep()
            assert coordinator.run_state.over is None
            assert list(coordinator.run_state.book.in_flight) == [0]
            clock.advance(600.0)
            await coordinator._sweep()  # a ticket has its whole time again after a restart, but no more
            assert list(coordinator.run_state.book.in_flight) == []

    asyncio.run(first())
    clock.step(hours)
    clock._monotonic = 3.0  # the machine was started again, too
    asyncio.run(second())


@pytest.mark.parametrize("hours", STEPS)
def test_a_client_comes_back_to_a_server_that_restarted_after_its_clock_was_set(hours, clock, tmp_path):
    """The client goes on by the time that it began with, and is told the server's at its first request."""
    simulation = build(CONFIG)
    signers = {}

    async def scene():
        record, seen = Memory(), []
        async with serving(CONFIG, tmp_path, record, signers=signers, clock=clock) as running:
            trainee = ClientTrainer("ann", app_of(simulation, 0))
            client = Participant(
                running.address,
                running.signer("ann"),
                None,
                trainee,
                tmp_path / "state",
                PATIENCE,
                seen.append,
            )
            work = asyncio.ensure_future(client.take_part())
            while len(seen) < 2:
                await asyncio.sleep(0.01)
        clock.step(hours)
        async with serving(CONFIG, tmp_path, record, record.snapshots[-1], signers, clock=clock) as again:
            client._address = again.address
            assert await asyncio.wait_for(work, PATIENCE) == "trips"
            return again.refusals

    assert asyncio.run(scene())[Cause.TIME] >= 1
