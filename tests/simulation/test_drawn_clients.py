"""Clients that are drawn for trips: looked up for many trips at once, against single questions."""

import numpy as np
import pytest

from tardigrad.core.draws import Draws, uniform
from tardigrad.simulation.availability import DayNight, OnOff
from tardigrad.simulation.drawn_clients import DrawnClients
from tardigrad.simulation.presence import Recorded
from tardigrad.simulation.roster import make_presence

POPULATION = 700
LAWS = {
    "on and off": make_presence(OnOff(on=6.0, off=12.0), POPULATION, 3),
    "hardly ever": make_presence(OnOff(on=1.0, off=30.0), POPULATION, 3),
    "zones": make_presence(DayNight(period=9.0, on=3.0, zones=5), POPULATION, 3),
    "recorded": Recorded({client: [(1.0, 40.0)] for client in range(0, POPULATION, 3)}, POPULATION),
}
CHOICES = [Draws(3, f"client/{attempt}", uniform) for attempt in range(16)]


@pytest.mark.parametrize("trips_a_time", [1000, 20])
@pytest.mark.parametrize("name", LAWS)
def test_the_first_that_is_there_is_found(name, trips_a_time):
    """Over two blocks of trips, some of which are left out, as a roster does while it lists."""
    presence, known = LAWS[name], 0
    drawn = DrawnClients(presence)
    for trip in np.flatnonzero(np.random.default_rng(0).random(6000) < 0.9).tolist():
        time = trip / trips_a_time
        attempt, client, stays = drawn.first_there(trip, time, CHOICES)
        tried = [int(draws[trip] * POPULATION) for draws in CHOICES]
        assert [drawn.client(number, trip) for number in range(16)] == tried
        if client >= 0:
            assert tried[attempt - 1] == client
            assert presence.there(client, time)
            assert presence.leaves(client, time, stays) is None
            known += 1
        before = attempt - 1 if client >= 0 else attempt
        assert not any(presence.there(other, time) for other in tried[:before])
    assert (known > 0) == (name != "recorded")
