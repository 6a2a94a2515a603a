"""Runs in which all clients have taken part as often as they may: they end, and never wait for ever."""

import signal

import numpy as np
import pytest
import torch

import tardigrad as td
from tardigrad.core.bookkeeping import Bookkeeping, Buffer
from tardigrad.core.events import RunEnded
from tardigrad.core.pace import Arrivals, Asynchronous, Poisson, SampledStaleness
from tardigrad.core.participation import Limits
from tardigrad.data.dataset import Holders
from tardigrad.errors import RunError
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.simulation.availability import DayNight
from tardigrad.simulation.delay import ConstantDelay, Durations
from tardigrad.simulation.executors.inline import Inline
from tardigrad.simulation.planner import Planner
from tardigrad.simulation.roster import make_presence

CLIENTS = 8
DAYS = DayNight(period=10.0, on=6.0, zones=3)
PACES = {
    "arrivals": Arrivals(rate=4.0),
    "poisson arrivals": Arrivals(rate=4.0, process="poisson"),
    "asynchronous": Asynchronous(concurrency=4),
    "poisson": Poisson(probability=0.5),
}


@pytest.fixture(autouse=True)
def bounded():
    """A run that waits for ever fails."""
    signal.alarm(120)
    yield
    signal.alarm(0)


def to_the_end(planner):
    while True:
        planner.advance()


def planner(pace, limits, size, availability=None):
    clients = Holders(torch.zeros(CLIENTS), torch.zeros(CLIENTS), np.split(np.arange(CLIENTS), CLIENTS))
    book = Bookkeeping(pace, Buffer(size=size), limits=limits)
    presence = None if availability is None else make_presence(availability, CLIENTS, 0)
    return Planner(book, clients, Durations(ConstantDelay(duration=1.0), clients, 0), 0, presence=presence)


@pytest.mark.parametrize("availability", [None, DAYS], ids=["always there", "there by day"])
@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("limits", [Limits(2, 1), Limits(2, 3)], ids=str)
def test_the_planner_says_that_nobody_is_left(pace, limits, availability):
    plan = planner(PACES[pace], limits, 2, availability)
    with pytest.raises(RunError, match=r"nobody is left .* as often or as recently as privacy allows"):
        to_the_end(plan)
    assert plan.book.version >= 4
    assert not plan.book.in_flight


def test_with_empty_steps_clients_that_rest_come_again_and_those_that_are_finished_do_not():
    plan = planner(PACES["poisson"], Limits(2, 5), None)
    with pytest.raises(RunError, match="0 uploads are in the buffer"):
        to_the_end(plan)
    assert [count for count, _ in plan.book.ledger.entries.values()] == [2] * CLIENTS


def test_sampled_staleness_says_that_privacy_is_the_reason():
    plan = planner(SampledStaleness(maximum=1), Limits(2, 1), 1)
    with pytest.raises(RunError, match="as often or as recently as privacy or the buffer allows"):
        to_the_end(plan)


def settings(pace, availability, stop):
    return {
        "data": {"kind": "digits", "partition": {"kind": "iid", "clients": CLIENTS}},
        "pace": PACES[pace], "buffer": {"size": 2}, "stop": stop, "availability": availability or "always",
        "privacy": {
            "kind": "participation", "noise_multiplier": 1.0, "participations": 2, "separation": 1,
            "noise_from": "seed",
        },
    }  # fmt: skip


@pytest.mark.parametrize("availability", [None, DAYS], ids=["always there", "there by day"])
@pytest.mark.parametrize("pace", ["arrivals", "asynchronous", "poisson"])
def test_all_contributions_may_be_used_up_with_any_number_of_workers(pace, availability):
    """The planner runs ahead of training, and nobody is left after the last step."""
    given = settings(pace, availability, {"steps": 8})
    alone, many = (td.run(**given, workers=workers) for workers in (0, 2))
    assert (alone.steps, alone.stopped_by) == (many.steps, many.stopped_by) == (8, "steps")
    assert all(torch.equal(alone.model[name], many.model[name]) for name in alone.model)


@pytest.mark.parametrize("stop", [{"steps": 3}, {"trips": 6}, {"virtual_time": 2.5}], ids=str)
def test_nothing_is_planned_beyond_the_end_of_a_run(stop, monkeypatch):
    monkeypatch.setattr(Inline, "ahead", 10_000)
    simulation = build(td.Config(**settings("arrivals", None, stop) | {"privacy": None}))
    events = [event for some in simulation.engine.run() for event in some]
    assert isinstance(events[-1], RunEnded)
    assert simulation.engine._planner.book.next_trip < 30


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_in_which_nobody_is_left_does_not_go_on_when_it_is_resumed(tmp_path, workers):
    """With workers the planner meets the error before the run does, and a snapshot is made in between."""
    given = settings("asynchronous", None, {"steps": 30}) | {
        "data": {"kind": "digits", "partition": {"kind": "iid", "clients": 30}},
        "pace": SampledStaleness(maximum=2), "buffer": {"size": 3}, "out": tmp_path / "run",
        "workers": workers, "snapshot_seconds": 0.0,
    }  # fmt: skip
    given["privacy"] |= {"participations": 3, "separation": 10}
    with pytest.raises(RunError, match="nobody is left") as first:
        td.run(**given)
    events = (tmp_path / "run/events.jsonl").read_bytes()
    for _ in range(2):
        with pytest.raises(RunError, match="nobody is left") as again:
            td.run(**given, resume=True)
        assert str(again.value) == str(first.value)
        assert (tmp_path / "run/events.jsonl").read_bytes() == events
