"""The planner with networks and windows, against a naive simulation with the same settings."""

import json
import random
from collections import Counter, deque
from math import inf

import numpy as np
import pytest
from naive_network import NaiveSimulation
from test_planner import crowd

from tardigrad.core.bookkeeping import Bookkeeping, Buffer
from tardigrad.core.draws import key
from tardigrad.core.outcomes import Accepted, GivenUp, Refusal, Rejected, Ticket
from tardigrad.core.pace import Arrivals, Asynchronous, Poisson, Queued, Synchronous
from tardigrad.errors import RunError
from tardigrad.simulation.availability import Always, DayNight, OnOff
from tardigrad.simulation.delay import Durations, ExponentialDelay
from tardigrad.simulation.network import Links, LogNormalBandwidth, Network, TripBytes
from tardigrad.simulation.planned import Joined
from tardigrad.simulation.planner import Planner
from tardigrad.simulation.presence import Recorded
from tardigrad.simulation.roster import make_presence

PACES = {
    "asynchronous": (Asynchronous(concurrency=6), Buffer(size=3)),
    "crowded": (Asynchronous(concurrency=28), Buffer(size=5)),
    "once per client": (Asynchronous(concurrency=9), Buffer(size=12, once_per_client=True)),
    "synchronous": (Synchronous(cohort=5, selected=8), Buffer(size=5)),
    "arrivals": (Arrivals(rate=4.0), Buffer(size=3)),
    "arrivals, limited": (Arrivals(rate=8.0, concurrency=4), Buffer(size=3)),
    "poisson": (Poisson(probability=0.2), Buffer()),
    "queued": (Queued(concurrency=10), Buffer(size=4)),
}
NETWORKS = {
    "none": None,
    "slow uploads": Network(upload=LogNormalBandwidth(median=100.0, spread=0.7)),
    "one uplink": Network(download=500.0, upload=80.0, server_uplink=300.0),
}
WINDOWS = {
    "always": Always(),
    "zones": DayNight(period=10.0, on=4.0, zones=5),
    "one zone": DayNight(period=7.0, on=3.0, zones=1),
    "on and off": OnOff(on=4.0, off=6.0),
    "rarely": OnOff(on=2.0, off=60.0),
    "trace": None,
}
POPULATION, SIZE, END = 30, TripBytes(60, 40), 600.0


def traced(seed):
    """Random windows, of two thirds of the clients."""
    numbers = random.Random(seed)
    found = {}
    for client in range(POPULATION):
        bounds = sorted(numbers.uniform(0, 200) for _ in range(2 * numbers.randrange(12)))
        found[client] = list(zip(bounds[::2], bounds[1::2]))
    return found


def presence_and_windows(name, seed):
    """The planner's presence, and the windows of each client from the definition of the law."""
    law = WINDOWS[name]
    if law is None:
        found = traced(seed)
        return Recorded(found, POPULATION), [found[client] for client in range(POPULATION)]
    presence = make_presence(law, POPULATION, seed)
    if isinstance(law, DayNight):
        zones = np.random.default_rng(key(seed, "time zone")).integers(
            0, law.zones, POPULATION, dtype=np.int32
        )
        days = range(-1, int(END / law.period))
        mornings = [
            [zone * law.period / law.zones + day * law.period for day in days] for zone in zones.tolist()
        ]
        return presence, [[(morning, morning + law.on) for morning in own] for own in mornings]
    if isinstance(law, OnOff):
        return presence, [drawn_windows(presence, client) for client in range(POPULATION)]
    return None, None


def drawn_windows(presence, client, until=END):
    """The windows that follow from all draws, one after the other."""
    draws = [d for cell in range(-60, int(until / presence._length)) for d in presence._draws(client, cell)]
    windows, opened = [], None
    for moment, outcome in draws:
        if outcome and opened is None:
            opened = moment
        elif not outcome and opened is not None:
            windows.append((opened, moment))
            opened = None
    return windows


def planner_for(pace, network, presence, seed):
    clients = crowd(POPULATION)
    links = None if network is None else Links(network, seed, SIZE)
    settings, buffer = PACES[pace]
    durations = Durations(ExponentialDelay(mean=0.8), clients, seed)
    return (
        Planner(Bookkeeping(settings, buffer), clients, durations, seed, None, links, presence),
        links,
        durations,
    )


def rows(planner, items):
    """What the planner plans, in the naive simulation's words."""
    found = []
    while len(found) < items:
        try:
            planned = planner.advance()
        except RunError:
            break
        for item in planned:
            if isinstance(item, Ticket):
                found.append(("start", item.time, item.trip, item.client, item.version))
            elif isinstance(item, Refusal):
                found.append(("refused", item.time, item.client))
            elif isinstance(item, Joined):
                found.append(("joined", item.time, item.closes))
            elif isinstance(item, Accepted | Rejected | GivenUp):
                version = planner.book.version
                found.append((type(item).__name__, item.time, item.ticket.trip, item.ticket.client, version))
    return found[:items]


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("pace", PACES)
def test_planner_agrees_with_a_naive_simulation(pace, network, windows):
    seed = len(pace) + len(network) + len(windows)  # several ones
    presence, known = presence_and_windows(windows, seed)
    planner, links, durations = planner_for(pace, NETWORKS[network], presence, seed)

    def seconds(trip, client):
        down, up = (0.0, 0.0) if links is None else links.seconds(client)
        return down, durations(trip, client), up

    settings, buffer = PACES[pace]
    uplink = 0.0 if links is None else links.server_seconds
    naive = NaiveSimulation(Bookkeeping(settings, buffer), POPULATION, seed, seconds, known, uplink)
    expected = naive.run(80)
    assert rows(planner, 80) == expected
    assert windows == "trace" or len(expected) == 80


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("pace", PACES)
def test_planner_with_network_and_windows_goes_on_from_json(pace, windows):
    network = NETWORKS["one uplink"]
    whole, _, _ = planner_for(pace, network, presence_and_windows(windows, 3)[0], 3)
    going, _, _ = planner_for(pace, network, presence_and_windows(windows, 3)[0], 3)
    for advance in range(60):
        try:
            expected = whole.advance()
        except RunError:
            with pytest.raises(RunError):
                going.advance()
            return
        assert going.advance() == expected
        if advance % 8 == 7:
            state = json.loads(json.dumps(going.state()))
            going, _, _ = planner_for(pace, network, presence_and_windows(windows, 3)[0], 3)
            going.restore(state)


@pytest.mark.parametrize("pace", PACES)
def test_windows_that_are_all_over_end_the_plan_with_one_sentence(pace):
    presence = Recorded({3: [(1.0, 2.0)]}, POPULATION)
    planner, _, _ = planner_for(pace, None, presence, 0)
    with pytest.raises(RunError, match="will ever be there again"):
        deque(iter(planner.advance, None), maxlen=0)


def test_trips_that_never_fit_into_a_window_are_an_error_after_many(monkeypatch):
    monkeypatch.setattr("tardigrad.simulation.planner.MOST_CUT_OFF", 50)
    presence = make_presence(OnOff(on=1.0, off=1.0), POPULATION, 0)
    planner, _, _ = planner_for("asynchronous", Network(upload=0.01), presence, 0)
    with pytest.raises(RunError, match="last 50 trips were all cut off"):
        deque(iter(planner.advance, None), maxlen=0)


def test_a_run_in_which_one_trip_of_two_hundred_succeeds_goes_on(monkeypatch):
    monkeypatch.setattr("tardigrad.simulation.planner.MOST_CUT_OFF", 3000)
    presence = make_presence(OnOff(on=1.0, off=1.0), POPULATION, 0)
    planner, _, _ = planner_for("asynchronous", Network(upload=1e9, latency=2.6), presence, 0)
    ended = Counter()
    while ended[Accepted] + ended[Rejected] < 20:
        ended.update(type(item) for item in planner.advance())
    assert 100 < ended[GivenUp] / 20 < 500


def test_one_million_clients_take_no_list_while_enough_are_there():
    population = 1_000_000
    from tardigrad.data.sets.synthetic import SyntheticClients

    clients = SyntheticClients(population, examples=5, features=2, classes=2, seed=0)
    book = Bookkeeping(Asynchronous(concurrency=200), Buffer(size=10))
    presence = make_presence(OnOff(on=8.0, off=16.0), population, 0)
    planner = Planner(book, clients, Durations(ExponentialDelay(), clients, 0), 0, None, None, presence)
    for _ in range(1500):
        planner.advance()
    assert planner._starts.roster._idle is None
    assert planner.book.version > 40
    assert inf > planner._now > 2
