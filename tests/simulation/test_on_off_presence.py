"""Exponential times there and away: their distributions, and their independence."""

import numpy as np
import pytest
from scipy import stats

from tardigrad.simulation.availability import OnOff
from tardigrad.simulation.on_off_presence import ComingAndGoing


@pytest.mark.parametrize(("on", "off"), [(8.0, 16.0), (1.0, 0.3), (0.7, 9.0)])
def test_times_there_and_away_are_exponential_with_their_means(on, off):
    presence = ComingAndGoing(OnOff(on=on, off=off), 400, seed=5)
    there, away = [], []
    for client in range(400):
        draws = [
            draw
            for cell in range(int(60 * (on + off) / presence._length))
            for draw in presence._draws(client, cell)
        ]
        changes = [time for n, (time, outcome) in enumerate(draws) if n and outcome != draws[n - 1][1]]
        opens = [outcome for n, (_, outcome) in enumerate(draws) if n and outcome != draws[n - 1][1]]
        for begin, end, outcome in list(zip(changes, changes[1:], opens))[:20]:  # as many of each
            (there if outcome else away).append(end - begin)
    assert stats.kstest(there, "expon", args=(0, on)).pvalue > 1e-3
    assert stats.kstest(away, "expon", args=(0, off)).pvalue > 1e-3


def test_the_share_that_is_there_is_right_from_the_beginning():
    presence = ComingAndGoing(OnOff(on=3.0, off=1.0), 40_000, seed=0)
    for time in (0.0, 1.3, 500.0):
        assert len(presence.everybody(time)) / 40_000 == pytest.approx(0.75, abs=4 * np.sqrt(0.1875 / 40_000))


def test_clients_and_later_times_are_independent():
    presence = ComingAndGoing(OnOff(on=1.0, off=1.0), 40_000, seed=0)
    first, later = (presence.which(np.arange(40_000), time) for time in (3.0, 23.0))
    for one, other in ((first[:-1], first[1:]), (first, later), (first[:-1], later[1:])):
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(40_000)


def test_memory_of_the_state_decays_at_the_rate_of_both_changes():
    presence = ComingAndGoing(OnOff(on=2.0, off=3.0), 60_000, seed=1)
    now, later = (presence.which(np.arange(60_000), time) for time in (7.0, 7.9))
    expected = np.exp(-(1 / 2.0 + 1 / 3.0) * 0.9)
    assert np.corrcoef(now, later)[0, 1] == pytest.approx(expected, abs=0.02)


def test_a_client_leaves_at_the_first_draw_that_says_so():
    presence = ComingAndGoing(OnOff(on=2.0, off=3.0), 5000, seed=2)
    for time in (0.3, 0.9, 4.0, 4.1):
        for client in np.flatnonzero(presence.which(np.arange(0, 5000, 7), time)) * 7:
            draws = [draw for cell in range(6) for draw in presence._draws(int(client), cell)]
            leaves = [at for at, there in draws if not there and time < at < time + 0.5]
            assert presence.leaves(int(client), time, time + 0.5) == (leaves[0] if leaves else None)
