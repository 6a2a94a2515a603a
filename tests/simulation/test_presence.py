"""Who is there: every law for one client and for all at once, against plain definitions."""

from math import inf

import numpy as np
import pytest

from tardigrad.simulation.availability import Always, DayNight, OnOff
from tardigrad.simulation.presence import Recorded
from tardigrad.simulation.roster import make_presence

LAWS = {
    "zones": lambda population: make_presence(DayNight(period=10.0, on=3.7, zones=7), population, 1),
    "thirds": lambda population: make_presence(DayNight(period=0.3, on=0.1, zones=3), population, 1),
    "on and off": lambda population: make_presence(OnOff(on=2.0, off=3.0), population, 1),
    "hardly ever": lambda population: make_presence(OnOff(on=0.1, off=30.0), population, 1),
    "nearly always": lambda population: make_presence(OnOff(on=50.0, off=0.5), population, 1),
    "recorded": lambda population: Recorded(
        {client: [(client / 7, client / 7 + 2.0), (30.0, 31.0)] for client in range(0, population, 2)},
        population,
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_one_client_and_all_clients_get_the_same_answer(name):
    one, many = LAWS[name](300), LAWS[name](300)
    times = [*np.random.default_rng(0).uniform(0, 40, 20).tolist(), 0.0, 10.0, 0.1, 30.0]
    for time in sorted(times):
        flags = many.which(np.arange(300), time)
        assert [one.there(client, time) for client in range(300)] == flags.tolist()
        assert many.everybody(time).tolist() == np.flatnonzero(flags).tolist()


@pytest.mark.parametrize("name", [name for name in LAWS if name != "recorded"])
def test_nobody_comes_or_goes_before_the_end_of_the_outlook(name):
    presence, clients = LAWS[name](300), np.arange(300)
    for time in (0.0, 0.1, 1.7, 10.0, 33.3):
        there, until = presence.outlook(clients, time)
        assert there.tolist() == presence.which(clients, time).tolist()
        assert np.all(until > time)
        for client in range(300):
            moments = np.linspace(time, until[client], 7)
            for later in moments[moments < until[client]]:
                assert presence.there(client, float(later)) == there[client]


@pytest.mark.parametrize("name", LAWS)
def test_a_client_leaves_when_it_is_no_longer_there(name):
    presence = LAWS[name](200)
    for client in range(200):
        if not presence.there(client, 1.5):
            continue
        leaves = presence.leaves(client, 1.5, 1e6)
        if leaves is not None:
            assert presence.there(client, np.nextafter(leaves, -inf))
            assert not presence.there(client, leaves)
            assert presence.leaves(client, 1.5, leaves) is None, "a trip may end with the window"
            assert presence.leaves(client, 1.5, np.nextafter(leaves, inf)) == leaves


@pytest.mark.parametrize("name", LAWS)
def test_whoever_comes_is_among_the_openings(name):
    presence = LAWS[name](100)
    time, known = 0.0, set(presence.everybody(0.0).tolist())
    while time < 35.0:
        until, times, clients = presence.openings(time)
        assert np.all(np.diff(times) >= 0)
        assert np.all(times > time)
        assert np.all(times <= until)
        for opens, client in zip(times.tolist(), clients.tolist()):
            if opens > 35.0:
                break
            assert presence.there(client, opens)
            known |= set(clients[times <= opens].tolist())
            assert set(presence.everybody(opens).tolist()) <= known, "nobody is there who has not come"
        time = until


def test_clients_that_are_never_there_are_counted():
    presence = Recorded({0: [(0.0, 1.0)], 3: [(5.0, 6.0)]}, 4)
    assert [presence.never_there(until) for until in (1.0, 4.9, 5.0)] == [3, 3, 2]
    assert make_presence(DayNight(period=24.0, on=8.0, zones=24), 2000, 0).never_there(16.0) == 0
    assert make_presence(OnOff(on=1.0, off=1.0), 2000, 0).never_there(0.0) == pytest.approx(1000, abs=120)


def test_day_and_night_by_hand():
    presence = make_presence(DayNight(period=24.0, on=8.0, zones=2), 50, 0)
    early = [client for client in range(50) if presence.there(client, 0.0)]
    late = [client for client in range(50) if presence.there(client, 12.0)]
    assert sorted(early + late) == list(range(50)), "one zone opens at 0, the other at 12"
    assert not any(presence.there(client, time) for client in range(50) for time in (8.0, 11.9, 20.0, 23.9))
    assert all(presence.there(client, 24.0 * 1000 + 7.9) for client in early)


def test_who_is_always_there_needs_no_presence():
    assert make_presence(Always(), 10, 0) is None
    assert make_presence(DayNight(period=5.0, on=5.0), 10, 0) is None


def test_another_seed_gives_other_clients_the_same_windows():
    one, other = (make_presence(OnOff(), 500, seed).everybody(0.0).tolist() for seed in (0, 1))
    assert one != other
