"""The panels of a run: their numbers are those of its events."""

import json
import math
import random
import time
from collections import Counter

import pytest
from some_events import a_run

from tardigrad.core.events import ModelEvaluated, ModelMoved, RunStarted, TripGivenUp, UploadReceived
from tardigrad.core.plain_json import plain_json
from tardigrad.watch.panels import (
    PANELS,
    curves,
    facts,
    log,
    overview,
    privacy,
    refusals,
    steps,
)
from tardigrad.watch.trip_panels import trips, uploads
from tardigrad.watch.watched_run import POINTS, UPLOADS, WatchedRun


def watched(events, pieces=1):
    run = WatchedRun("a run")
    size = -(-len(events) // pieces)
    for at in range(0, len(events), size):
        run.take(events[at : at + size])
    return run


def of(events, kind):
    return [one for one in events if isinstance(one, kind)]


def test_facts_are_those_of_the_events():
    events = a_run(end=False)
    found = facts(watched(events))
    received = of(events, UploadReceived)
    assert found["trips"] == len(received)
    assert found["version"] == of(events, ModelMoved)[-1].version
    assert found["accepted"] == sum(one.accepted for one in received)
    assert found["time"] == max(one.time for one in received)
    last = of(events, ModelEvaluated)[-1]
    assert list(found["metrics"].items()) == [
        ("accuracy", [last.metrics["accuracy"], True]),
        ("loss", [last.metrics["loss"], False]),
    ]
    assert found["state"] == "running"


def test_the_buffer_holds_the_uploads_since_the_last_step():
    events = a_run(trips=200, end=False)
    run = WatchedRun("a run")
    for event in events:
        run.take([event])
        after = [one.version for one in of(events[: events.index(event) + 1], ModelMoved)]
        version = after[-1] if after else 0
        seen = of(events[: events.index(event) + 1], UploadReceived)
        assert run.fill == sum(one.step == version + 1 for one in seen)


def test_the_pieces_in_which_events_come_do_not_matter():
    events = a_run(trips=300)
    whole = watched(events)
    for pieces in (2, 7, 300):
        other = watched(events, pieces)
        for name, panel in PANELS.items():
            assert panel(whole) == panel(other), name


def test_curves_are_the_evaluations():
    events = a_run(trips=300)
    found = curves(watched(events))
    told = of(events, ModelEvaluated)
    assert found["over"]["trips"] == [one.trips for one in told]
    assert found["over"]["time"] == [one.time for one in told]
    assert found["over"]["bytes"] == [one.bytes / 1e6 for one in told]
    assert found["metrics"]["accuracy"] == [one.metrics["accuracy"] for one in told]
    assert found["metrics"]["loss"] == [one.metrics["loss"] for one in told]


def test_curves_of_a_long_run_are_short_and_end_with_the_last_evaluation():
    events = [RunStarted(1, 0)]
    events += [ModelEvaluated(n, n, n / 2, n, metrics={"accuracy": n / 1e6}) for n in range(20_000)]
    run = watched(events)
    for most in (40, POINTS):
        found = curves(run, most)
        assert 20 < len(found["over"]["trips"]) <= 2 * most
        assert found["over"]["trips"][-1] == 19_999


def test_histograms_count_the_last_thousand_uploads():
    events = a_run(trips=3000)
    found = uploads(watched(events))
    last = of(events, UploadReceived)[-UPLOADS:]
    counted = [one for one in last if one.accepted]
    assert found["count"] == UPLOADS
    assert found["counted"] == len(counted)
    stale = Counter(one.staleness for one in counted)
    assert found["staleness"]["at"] == sorted(stale)
    assert found["staleness"]["share"] == [stale[n] / len(counted) for n in sorted(stale)]
    assert sum(found["weights"]["share"]) == pytest.approx(1)
    wide = found["weights"]["wide"]
    for at, share in zip(found["weights"]["at"], found["weights"]["share"]):
        inside = [one for one in counted if at - wide / 2 <= one.weight < at + wide / 2]
        if at == found["weights"]["at"][-1]:
            inside = [one for one in counted if one.weight >= at - wide / 2]
        assert share == pytest.approx(len(inside) / len(counted))


def test_trips_are_the_last_ones_with_the_steps_meanwhile():
    events = a_run(trips=200)
    found = trips(watched(events))
    ended = of(events, UploadReceived | TripGivenUp)[-48:]
    assert {one["trip"] for one in found["trips"]} == {one.trip for one in ended}
    assert {one["fate"] for one in found["trips"]} == {"counted", "too stale", "given up"}
    begin = min(one.start_time for one in ended)
    assert found["steps"] == [[one.time, one.version] for one in of(events, ModelMoved) if one.time >= begin]


def test_refusals_are_counted_by_reason():
    events = a_run(trips=200)
    found = {(row["what"], row["reason"]): row["count"] for row in refusals(watched(events))["rows"]}
    assert found == {("upload", "too stale"): 20, ("trip", "given up"): 10, ("check-in", "no room"): 10}


def test_privacy_spent_is_that_of_the_last_step():
    run = watched(a_run(private=True))
    run.config = {"privacy": {"kind": "participation", "epsilon": 8.0, "delta": 1e-6}}
    assert privacy(run)["epsilon"] == of(a_run(private=True), ModelMoved)[-1].metrics["epsilon"]
    assert privacy(run)["settings"] == {"kind": "participation", "epsilon": 8.0, "delta": 1e-6}
    assert len(steps(run)["epsilon"]) == len(of(a_run(), ModelMoved))
    assert not privacy(watched(a_run()))["private"]


def test_time_left_follows_from_the_pace_and_the_rule_that_comes_first():
    run = WatchedRun("a run")
    run.config = {"stop": {"trips": 100, "steps": 1000}}
    events = a_run(trips=60, end=False)
    half = next(at for at, one in enumerate(events) if isinstance(one, UploadReceived) and one.trip == 29)
    run.take(events[: half + 1])
    now = time.monotonic()
    run.tick(now)
    run.take(events[half + 1 :])
    run.tick(now + 10)
    assert facts(run)["rate"] == pytest.approx(3.0)
    left = facts(run)["left"]
    assert (left["rule"], left["limit"], left["done"]) == ("trips", 100, 0.6)
    assert left["seconds"] == pytest.approx(40 / 3)


def test_a_run_that_is_over_says_why():
    run = watched(a_run())
    assert facts(run)["state"] == "over"
    assert facts(run)["reason"] == "trips"
    assert facts(run)["left"]["done"] == 1.0
    assert overview(run)["state"] == "over"
    assert log(run)[-1][2] == "the run is over (trips)"


def test_panels_of_any_events_are_valid_json():
    draws = random.Random(7)
    odd = [math.nan, math.inf, -math.inf, 1e308, 0.0, -1.0, 1e-320]
    for _ in range(200):
        run = WatchedRun("odd")
        run.config = {"stop": draws.choice([7, {}, {"trips": "x"}, {"virtual_time": 1e-300}]), "privacy": 3}
        for _ in range(draws.randrange(40)):
            number = draws.choice(odd)
            run.take(
                [
                    draws.choice(
                        [
                            UploadReceived(1, None, None, number, None, 0, None, number, False, "x", None),
                            UploadReceived(1, "a", number, number, 0, 0, 0, number, True, None, 1),
                            ModelMoved(3, 1, number, 5, number, metrics={"epsilon": number}),
                            ModelEvaluated(3, 1, number, metrics={"accuracy": number, "x": "words"}),
                            TripGivenUp(1, 7, number, number, 0),
                        ]
                    )
                ]
            )
            run.tick(time.monotonic())
        everything = {name: panel(run) for name, panel in PANELS.items()}
        everything |= {"overview": overview(run), "clients": run.clients.page("", "staleness", True, 0)}
        assert json.loads(plain_json(everything)).keys() == everything.keys()
