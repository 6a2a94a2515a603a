"""The page of a served run: why it is where it is, trips under way, and clients without events."""

import time
from dataclasses import replace

import pytest
from page_server import append, served
from some_events import a_run
from test_live_page import NAMES, READY, SHIFTS

from browser import CHROMIUM, Browser
from tardigrad.service.monitor.explain import Explanation
from tardigrad.service.monitor.status import Status, write_status
from tardigrad.watch.panels import facts
from tardigrad.watch.run_readers import FolderReader
from tardigrad.watch.trip_panels import FLYING, trips

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
EVIL = "<img src=x onerror=window.hacked=1>"
WHY = "document.getElementById('why').innerText"


def told(**changes):
    """What a server has written just now."""
    return replace(
        Status(
            version=13, trips=60, time=20.0, in_flight=2, waiting=1, staleness=1.5, given_up=1,
            uploads_refused={}, metrics={}, over="", written=time.time(),
            last_seen={"client-1": 3.0, "newcomer": 1.0, EVIL: 2.0},
            at_work={"client-1": 12, EVIL: 13}, started={"client-1": 14.0, EVIL: 15.5},
            explanations=[Explanation("info", "Nothing is wrong: 2 trips are under way.")],
        ),
        **changes,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "a-run"
    append(folder, a_run(end=False))
    write_status(folder, told())
    return folder


def read(folder):
    reader = FolderReader(folder)
    while reader.read():
        pass
    return reader.run


def test_trips_under_way_are_drawn_up_to_now(run):
    found = trips(read(run))["trips"]
    flying = [one for one in found if one["fate"] == "under way"]
    assert [(one["client"], one["start"], one["end"], one["from"], one["staleness"]) for one in flying] == [
        ("client-1", 14.0, 20.0, 12, 1),
        (EVIL, 15.5, 20.0, 13, 0),
    ]
    assert [one["end"] for one in found] == sorted(one["end"] for one in found)
    append(run, a_run()[-1:])
    assert not any(one["fate"] == "under way" for one in trips(read(run))["trips"])


def test_only_the_last_of_many_trips_under_way_are_drawn(run):
    names = [f"site-{n}" for n in range(500)]
    write_status(
        run, told(at_work=dict.fromkeys(names, 3), started={n: float(i) for i, n in enumerate(names)})
    )
    flying = [one for one in trips(read(run))["trips"] if one["fate"] == "under way"]
    assert [one["client"] for one in flying] == names[-FLYING:]


def test_clients_that_had_no_event_yet_are_listed(run):
    status = read(run)
    rows = {row["client"]: row for row in status.clients.page("", "client", False, 0, status.status)["rows"]}
    assert (rows["newcomer"]["trips"], rows["newcomer"]["ago"], rows["newcomer"]["at_work"]) == (0, 1.0, None)
    assert rows[EVIL]["at_work"] == 13
    assert rows["client-1"]["trips"] > 0
    assert len(rows) == 7 + 2


def test_a_server_that_is_silent_is_explained_whatever_it_wrote_last(run):
    write_status(run, told(written=time.time() - 100))
    (found,) = facts(read(run))["explanations"]
    assert found["severity"] == "error"
    assert "The server is not running" in found["sentence"]
    assert found["since"] >= 100


def test_a_simulation_has_no_explanations(tmp_path):
    append(tmp_path, a_run(end=False))
    assert facts(read(tmp_path))["explanations"] == []


@needs_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_says_why_and_does_not_jump(run, tmp_path, width):
    with Browser(tmp_path / "profile") as browser, served([run]) as address:
        page = browser.open(address, width, before=SHIFTS)
        page.until(READY)
        page.until(f"{WHY}.includes('Nothing is wrong: 2 trips are under way.')")
        assert page.value("window.shifts") < 0.1
        page.value("window.shifts = 0")
        remedy = "Enroll it. " + EVIL
        stuck = Explanation("error", f"All requests are refused: not enrolled (of {EVIL}).", remedy, 70.0)
        also = [Explanation("warning", f"And {n}.", "Do something. " * 9, 1.0) for n in range(3)]
        write_status(run, told(explanations=[stuck, *also]))
        page.until(f"{WHY}.includes('All requests are refused')")
        assert "for 1 min 1" in page.value(WHY)
        assert EVIL in page.value("document.querySelector('#why div').textContent")
        assert page.value("document.querySelectorAll('#why li').length") == 4
        assert page.value("document.querySelector('#why li').dataset.severity") == "error"
        page.until(f"({NAMES}).includes('newcomer') && ({NAMES}).includes({EVIL!r})")
        assert page.value("document.querySelectorAll('#why img, #clients img').length") == 0
        assert page.value("window.hacked === undefined")
        assert page.value("window.shifts") < 0.01
        wide = page.value("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0
        assert page.trouble() == []
