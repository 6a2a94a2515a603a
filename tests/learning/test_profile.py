"""All time is counted, each moment for the innermost part only."""

import time

from tardigrad.learning.profile import Profile


def test_time_of_an_inner_part_is_counted_once():
    profile = Profile()
    began = time.perf_counter()
    with profile.part("outer"):
        time.sleep(0.01)
        with profile.part("inner"):
            time.sleep(0.05)
    whole = time.perf_counter() - began
    assert profile.seconds["inner"] >= 0.05
    assert 0.01 <= profile.seconds["outer"] <= whole - profile.seconds["inner"]


def test_part_that_raises_is_closed():
    profile = Profile()
    with profile.part("outer"):
        try:
            with profile.part("inner"):
                raise ValueError
        except ValueError:
            time.sleep(0.02)
    assert profile.seconds["outer"] >= 0.02


def test_taken_seconds_are_added_to_another_profile():
    ours, theirs = Profile(), Profile()
    with theirs.part("training"):
        time.sleep(0.001)
    spent = theirs.seconds["training"]
    ours.add(theirs.take())
    ours.add({"training": 1.0})
    assert ours.seconds == {"training": spent + 1.0}
    assert not theirs.seconds
