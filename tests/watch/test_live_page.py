"""The live page in a real browser: what it shows is what the events say, as they come."""

import pytest
from page_server import append, get, served, stream
from some_events import a_run

from browser import CHROMIUM, Browser
from tardigrad.core.events import ModelEvaluated, ModelMoved, UploadReceived
from tardigrad.watch import web_app

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")

SHIFTS = """
window.shifts = 0;
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) if (!one.hadRecentInput) window.shifts += one.value;
}).observe({ type: "layout-shift", buffered: true });
"""
PAINTED = """
[...document.querySelectorAll("figure canvas")].map((canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height), seen = new Set();
  for (let at = 0; at < data.length; at += 4) {
    const [r, g, b, a] = data.slice(at, at + 4);
    if (a > 200 && Math.max(r, g, b) - Math.min(r, g, b) > 40) seen.add(r << 16 | g << 8 | b);
  }
  return [canvas.closest("figure").id, seen.size];
})
"""
TILES = """Object.fromEntries([...document.querySelectorAll("#tiles > div")].map((tile) =>
  [tile.querySelector("dt").textContent, tile.querySelector("dd").textContent]))"""
READY = "!!document.querySelector('html[data-updates] #clients tbody tr')"
NAMES = "[...document.querySelectorAll('#clients tbody td:first-child')].map((cell) => cell.textContent)"
SAVE = """
window.saved = null;
URL.createObjectURL = (blob) => { blob.text().then((text) => { saved = text; }); return '#'; };
"""
"""Catches what would be downloaded."""
SHOWN = ("version", "trips", "accuracy", "buffer", "staleness", "clients")
FIGURES = {"metric", "loss", "fill", "staleness", "weights", "trips", "epsilon"}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def run(tmp_path):
    """A run that goes on, with half of its events."""
    folder = tmp_path / "a-run"
    append(folder, a_run(trips=300, end=False, private=True)[:200])
    (folder / "config.toml").write_text(
        "[stop]\ntrips = 300\n[buffer]\nsize = 4\n[algorithm]\nkind = 'fedbuff'\n"
        "[privacy]\nkind = 'participation'\ndelta = 1e-6\n"
    )
    return folder


def rest_of(run):
    return a_run(trips=300, end=False, private=True)[200:]


def expected(events):
    """The tiles, computed from events."""
    uploads = [one for one in events if isinstance(one, UploadReceived)]
    version = [one for one in events if isinstance(one, ModelMoved)][-1].version
    last = [one for one in events if isinstance(one, ModelEvaluated)][-1]
    counted = [one for one in uploads if one.accepted]
    return {
        "version": f"{version:,}",
        "trips": f"{len(uploads):,}",
        "accuracy": f"{100 * last.metrics['accuracy']:.1f} %",
        "buffer": f"{sum(one.step == version + 1 for one in counted)} / 4",
        "staleness": f"{sum(one.staleness for one in counted) / len(counted):.2f}",
        "clients": f"{len({one.client for one in uploads})}",
    }


def shown(page):
    tiles = page.value(TILES)
    return {
        name: tiles.get(name) for name in ("version", "trips", "accuracy", "buffer", "staleness", "clients")
    }


def test_numbers_follow_the_events_as_they_come(browser, run):
    with served([run]) as address:
        page = browser.open(address, before=SHIFTS)
        page.until(READY)
        events = a_run(trips=300, end=False, private=True)[:200]
        assert shown(page) == expected(events)
        page.value("window.shifts = 0")
        for at in range(0, len(rest_of(run)), 37):
            piece = rest_of(run)[at : at + 37]
            append(run, piece)
            events += piece
            trips = sum(isinstance(one, UploadReceived) for one in events)
            page.until(f"({TILES}).trips === '{trips:,}'")
            assert shown(page) == expected(events)
        append(run, a_run(trips=300)[-1:])
        page.until("document.getElementById('state').textContent === 'over: trips'")
        assert page.value("window.shifts") < 0.01
        assert page.trouble() == []


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_every_panel_shows_something(browser, run, width, dark):
    append(run, rest_of(run))
    with served([run]) as address:
        page = browser.open(address, width, dark=dark, before=SHIFTS)
        page.until(READY)
        painted = dict(page.value(PAINTED))
        assert set(painted) == FIGURES
        assert all(painted.values()), painted
        paper = page.value("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")
        for part in ("#refusals tbody tr", "#privacy dd", "#network dd", "#log li", "#clients tbody tr"):
            assert page.value(f"document.querySelector('{part}').textContent.trim().length > 0"), part
        wide = page.value("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0
        assert page.value("window.shifts") < 0.1
        assert page.trouble() == []
        host = address.split("/")[2]
        assert {one.split("/")[2] for one in page.requested() if not one.startswith("data:")} == {host}


def test_all_runs_of_a_comparison_are_shown_and_can_be_chosen(browser, tmp_path):
    for entry in ("FedBuff", "FedAvg"):
        append(tmp_path / f"{entry}-seed0-01234567", a_run(trips=100, seed=0))
    with served([tmp_path]) as address:
        page = browser.open(address)
        page.until(READY)
        page.until("document.querySelectorAll('#runs tbody tr').length === 2")
        append(tmp_path / "FedAvg-seed1-01234567", a_run(trips=50, end=False, seed=1))
        page.until("document.querySelectorAll('#runs tbody tr').length === 3")
        assert dict(page.value(PAINTED))["all-runs"] > 0
        rows = page.value("[...document.querySelectorAll('#runs tbody tr')].map((row) => row.innerText)")
        assert [row.split("\t")[:4] for row in rows] == [
            ["FedAvg", "0", "over", "100"],
            ["FedAvg", "1", "running", "50"],
            ["FedBuff", "0", "over", "100"],
        ]
        colours = page.value(
            "[...document.querySelectorAll('#runs .mark')].map((m) => getComputedStyle(m).backgroundColor)"
        )
        assert colours == ["rgb(0, 114, 178)", "rgb(0, 114, 178)", "rgb(200, 85, 0)"]  # as in the chart
        page.value("document.querySelectorAll('#runs tbody tr')[1].click()")
        page.until("document.getElementById('title').textContent === 'FedAvg, seed 1'")
        assert page.until(f"({TILES}).trips === '50'")
        assert page.trouble() == []


def test_clients_are_searched_sorted_and_paged(browser, run):
    append(run, a_run(trips=400, clients=60, end=False)[1:])
    with served([run]) as address:
        page = browser.open(address)
        page.until(READY)
        assert page.value(f"({NAMES}).length") == 25
        page.value("document.querySelector('#clients th button').click()")
        page.until(f"({NAMES})[0] === 'client-0' && ({NAMES})[1] === 'client-1'")
        page.value("document.getElementById('after').click()")
        page.until(f"({NAMES})[0] === 'client-31'")
        page.value("search.value = 'client-5'; search.dispatchEvent(new Event('input'))")
        page.until(f"({NAMES}).length === 11")
        assert page.value("document.getElementById('page').textContent") == "1 of 1"
        assert page.trouble() == []


def test_a_chart_can_be_read_zoomed_and_saved_by_keyboard(browser, run):
    with served([run]) as address:
        page = browser.open(address)
        page.until(READY)
        page.value("document.querySelector('#metric .plot').focus()")
        page.value(SAVE)

        def press(key):
            for kind in ("keyDown", "keyUp"):
                page.call(
                    "Input.dispatchKeyEvent", {"type": kind, "key": key, "text": key if len(key) == 1 else ""}
                )

        told = [
            one for one in a_run(trips=300, end=False, private=True)[:200] if isinstance(one, ModelEvaluated)
        ]
        legend = "document.querySelector('#metric .u-legend').textContent"
        assert f"{100 * told[-1].metrics['accuracy']:.1f} %" in page.value(legend)
        press("Home")
        page.until(f"{legend}.includes('{100 * told[0].metrics['accuracy']:.1f} %')")
        hidden = "document.querySelector('#metric .reset').classList.contains('off')"
        assert page.value(hidden)
        press("+")
        page.until(f"!{hidden}")
        press("Escape")
        page.until(hidden)
        page.value("document.querySelector('#metric .csv').click()")
        lines = page.until("saved").splitlines()
        assert lines[0] == "client trips,accuracy"
        assert [[float(cell) for cell in line.split(",")] for line in lines[1:]] == [
            [one.trips, one.metrics["accuracy"]] for one in told
        ]


def test_a_client_s_name_is_never_html_and_never_a_formula(browser, tmp_path):
    evil = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
    events = a_run(trips=40, clients=1, end=False)
    for name, field in ((evil, "client"), ("=cmd()", "client")):
        renamed = [
            UploadReceived(*(name if f == field else getattr(one, f) for f in one.__slots__))
            for one in events
            if isinstance(one, UploadReceived)
        ]
        append(tmp_path / "run", [*events[:2], *renamed])
    with served([tmp_path / "run"]) as address:
        page = browser.open(address)
        page.until(READY)
        page.until("document.querySelectorAll('#clients tbody tr').length === 2")
        assert sorted(page.value(NAMES)) == sorted([evil, "=cmd()"])
        assert page.value("document.querySelectorAll('img, body script:not([src])').length") == 0
        assert page.value("window.hacked === undefined")
        page.value(SAVE)
        page.value("document.querySelector('#trips .csv').click()")
        assert ",'=cmd()," in page.until("saved")
        assert page.trouble() == []


def test_the_colours_can_be_chosen(browser, run):
    with served([run]) as address:
        page = browser.open(address)
        page.until(READY)
        paper = "getComputedStyle(document.body).backgroundColor"
        assert page.value(paper) == "rgb(255, 255, 255)"
        page.value("document.getElementById('theme').click()")
        assert page.value(paper) == "rgb(20, 23, 28)"
        page.value("document.getElementById('theme').click()")
        assert page.value(paper) == "rgb(255, 255, 255)"


def test_the_stream_sends_only_what_has_changed(run):
    with served([run]) as address, stream(address) as following:
        assert {"facts", "curves", "uploads", "trips", "log", "refusals"} <= set(following())
        append(run, [ModelEvaluated(50, 200, 60.0, metrics={"accuracy": 0.99})])
        while "curves" not in (news := following()):
            assert not {"uploads", "trips", "refusals"} & set(news)
        assert news["curves"]["metrics"]["accuracy"][-1] == 0.99
        assert "uploads" not in news


def test_only_so_many_pages_are_served_at_once(run, monkeypatch):
    monkeypatch.setattr(web_app, "MOST_VIEWERS", 2)
    with served([run]) as address:
        with stream(address) as first, stream(address) as second:
            first(), second()
            assert get(address, "/events?run=0")[0] == 503
        with stream(address) as third:  # fails with 503 until the others are noticed to be gone
            third()
