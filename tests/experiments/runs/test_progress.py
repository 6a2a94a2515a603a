"""Progress: the counts of a run's events, and what is shown of them."""

import io

import pytest
from rich.console import Console

import tardigrad as td
from observers import InterruptAfter
from tardigrad.core.event_log import read_events
from tardigrad.core.events import ModelEvaluated, ModelMoved, TripGivenUp, UploadReceived
from tardigrad.experiments.runs import progress, run_tables
from tardigrad.experiments.runs.progress import Bar, Lines, ProgressCounts, ProgressText
from tardigrad.experiments.runs.run_tables import show_run

CONFIG = td.Config(
    pace=td.Asynchronous(concurrency=30), buffer=td.Buffer(size=5, staleness_bound=3),
    delay=td.HalfNormal(give_up=0.1), local=td.Local(batch_size=8), stop=td.Stop(trips=200),
    evaluation=td.Evaluation(every_steps=7),
)  # fmt: skip


def test_counts_of_the_events_are_those_of_the_result(tmp_path):
    result = td.run(CONFIG, out=tmp_path / "run")
    counts = ProgressCounts()
    events = list(read_events(tmp_path / "run/events.jsonl"))
    counts.see(events)
    assert (counts.trips, counts.steps, counts.time) == (
        result.client_trips,
        result.steps,
        result.virtual_time,
    )
    assert (counts.refused, counts.given_up) == (result.refused, result.given_up)
    assert counts.value == result.accuracy
    stale = [e.staleness for e in events if isinstance(e, UploadReceived) and e.accepted]
    assert counts.mean_staleness == pytest.approx(sum(stale) / len(stale))
    assert counts.refused.total() > 0 and counts.given_up > 0, "or this test shows little"  # noqa: PT018
    assert counts.share(CONFIG.stop) == 1.0


def test_share_is_that_of_the_nearest_limit():
    counts = ProgressCounts(trips=10, steps=3, time=2.0)
    assert counts.share(td.Stop(trips=100)) == 0.1
    assert counts.share(td.Stop(trips=100, steps=6)) == 0.5
    assert counts.share(td.Stop(trips=100, virtual_time=1.0)) == 1.0
    assert counts.share(td.Stop(accuracy=0.5, trips=10**9)) < 0.001


def test_resumed_run_goes_on_from_its_last_evaluation():
    history = [
        ModelEvaluated(version=2, trips=10, time=1.0, bytes=0, metrics={"accuracy": 0.5}),
        ModelEvaluated(version=4, trips=20, time=2.0, bytes=0, metrics={"accuracy": 0.6}),
    ]
    text = ProgressText(CONFIG, history)
    assert text.share == 0.1
    text.counts.see([ModelMoved(version=5, trips=25, time=2.5)])
    shown = text.fields()
    assert (shown["trips"], shown["steps"], shown["metric"]) == ("20 trips", "5 steps", "accuracy 60.0%")
    assert shown["rate"] == "0 trips/s", "trips of earlier sessions do not count"
    assert shown["epsilon"] == ""


def test_older_evaluation_by_clients_does_not_take_steps_back():
    counts = ProgressCounts()
    counts.see([ModelMoved(version=5, trips=25, time=2.5)])
    counts.see([ModelEvaluated(version=3, trips=25, time=2.5, bytes=0, metrics={"loss": 1.0})])
    assert counts.steps == 5


@pytest.mark.parametrize("display", [Bar, Lines])
def test_displays_show_the_counts(display, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    shown = display(console)
    shown.begin(CONFIG, [])
    shown.see([UploadReceived(trip, trip, 0.0, 1.0, 0, 0, 0, 1.0, True, None, 1) for trip in range(50)])
    shown.see([TripGivenUp(50, 50, 0.0, 1.0, 0)])
    shown.end()
    text = console.file.getvalue()
    assert "50 trips" in text
    assert "25%" in text


def test_show_of_an_unfinished_run_counts_its_uploads(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        td.run(CONFIG, out=tmp_path / "run", observers=(InterruptAfter(100),))
    uploads = [e for e in read_events(tmp_path / "run/events.jsonl") if isinstance(e, UploadReceived)]
    console = Console(file=io.StringIO(), width=200)
    show_run(tmp_path / "run", console)
    assert f"not finished; {len(uploads)} trips so far" in console.file.getvalue()


def test_only_zero_is_blank_in_a_line_of_blocks():
    assert run_tables._spark([0.2, 0.3, 1.0]) == "▁▁█"
    assert run_tables._spark([100.0, 0.0, 1.0], floor=0.0) == "█ ▁"
