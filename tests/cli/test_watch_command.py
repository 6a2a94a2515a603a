"""The command watch: a simulation and a served run in a real browser, while they go on."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_service_commands import EXAMPLE, NAMES, command, listening, participant

from browser import CHROMIUM, PATIENCE, Browser
from tardigrad.core.event_log import read_events
from tardigrad.core.events import ModelEvaluated, RunEnded

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
TILES = """Object.fromEntries([...document.querySelectorAll("#tiles > div:has(dt)")].map((tile) => [
  tile.querySelector("dt").textContent, tile.querySelector("dd").textContent,
]))"""
WHY = "document.getElementById('why').innerText"
LISTED = "[...document.querySelectorAll('#clients tbody td:first-child')].map((cell) => cell.textContent)"
CONFIG = """
seed = 3
[algorithm]
kind = "fedbuff"
[data]
kind = "digits"
[data.partition]
kind = "dirichlet"
clients = 40
alpha = 0.3
[model]
kind = "mlp"
hidden = [64]
[local]
lr = 0.4
batch_size = 8
[pace]
kind = "asynchronous"
concurrency = 20
[buffer]
size = 8
[delay]
kind = "half_normal"
give_up = 0.03
[stop]
trips = 400
[evaluation]
every_trips = 20
"""


@contextmanager
def watching(commands, *words):
    """Start the command, and yield the address that it prints."""
    process = commands.start("watch", *words, "--port", 0)
    try:
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:"), line + process.stderr.read()
        yield line.strip()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()


def check_end(page, folder):
    """Wait for the end on the page, and compare its numbers with the events."""
    page.until("/^over/.test(document.getElementById('state').textContent)")
    events = list(read_events(folder / "events.jsonl"))
    (end,) = [one for one in events if isinstance(one, RunEnded)]
    last = [one for one in events if isinstance(one, ModelEvaluated)][-1]
    page.until(f"({TILES}).trips === '{end.trips:,}'")  # a server's status may come before its last events
    tiles = page.value(TILES)
    assert tiles["version"] == f"{end.version:,}"
    assert tiles["accuracy"] == f"{100 * last.metrics['accuracy']:.1f} %"
    assert page.trouble() == []


def until_same(one, other, expression):
    """Wait until an expression has the same value on two pages; each may still change."""
    deadline = time.monotonic() + PATIENCE
    while (here := one.value(expression)) != (there := other.value(expression)):
        assert time.monotonic() < deadline, f"{here} is not {there}"
        time.sleep(0.05)


def test_watching_ends_cleanly_at_the_signal_of_a_service_manager(commands, tmp_path):
    process = commands.start("watch", tmp_path, "--port", 0)
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert process.stderr.read() == ""


@needs_browser
def test_a_simulation_is_watched_while_it_runs(commands, tmp_path):
    (tmp_path / "run.toml").write_text(CONFIG)
    (tmp_path / "runs").mkdir()
    with Browser(tmp_path / "profile") as browser, watching(commands, tmp_path / "runs") as address:
        page = browser.open(address)
        page.until("/No run is there yet/.test(document.getElementById('note')?.textContent)")
        run = commands.start("run", tmp_path / "run.toml", "--out", tmp_path / "runs" / "first", "-q")
        page.until(f"Number(({TILES}).trips) > 0")
        state = page.value("document.getElementById('state').textContent")
        assert state in ("running", "reading", "over: trips")
        assert run.wait() == 0
        check_end(page, tmp_path / "runs" / "first")
        take_pictures(browser, address, tmp_path)


def take_pictures(browser, address, folder):
    """Take pictures; those that docs/watch.md shows go into the documents if TARDIGRAD_PICTURES is set."""
    shown = (PICTURES.parent / "watch.md").read_text() if os.environ.get("TARDIGRAD_PICTURES") else ""
    for width, dark in ((1280, False), (1280, True), (390, False), (390, True)):
        page = browser.open(address, width, dark=dark)
        page.until("!!document.querySelector('html[data-updates] #clients tbody tr')")
        page.until("document.querySelectorAll('canvas').length >= 6")
        name = f"watch-{width}-{'dark' if dark else 'light'}.png"
        file = (PICTURES if name in shown else folder) / name
        page.screenshot(file, whole=False)
        assert file.stat().st_size > 20_000
        assert page.trouble() == []


@needs_browser
def test_a_served_run_is_watched_by_its_folder_and_over_the_network(commands, tmp_path):
    command("enroll", *NAMES, "--keys", tmp_path / "keys")
    command("enroll", "--admin", "root", "--keys", tmp_path / "keys")
    server = commands.start(
        "serve", EXAMPLE / "run.toml", "--out", tmp_path / "live", "--keys", tmp_path / "keys",
        "--model", f"{EXAMPLE / 'my_client.py'}:model", "--port", 0,
        "--set", "stop.trips=30", "--set", "service.linger_seconds=300",
    )  # fmt: skip
    try:
        address = listening(server)
        with (
            Browser(tmp_path / "profile") as browser,
            watching(commands, tmp_path / "live", address, "--key", tmp_path / "keys" / "ann.key") as where,
            watching(commands, address, "--key", tmp_path / "keys" / "root.key") as everything,
        ):
            operator = browser.open(everything)
            network, folder = browser.open(f"{where}#0"), browser.open(f"{where}#1")
            for page in (network, folder, operator):
                page.until("document.getElementById('state')?.textContent === 'running'")
            operator.until(f"{WHY}.startsWith('No client has come since the server began.')")
            folder.until(f"{WHY}.startsWith('No client has come since the server began.')")
            network.until(f"{WHY}.startsWith('No trip is under way, and no client waits for one.')")
            clients = [participant(tmp_path, address, name, []) for name in NAMES]

            async def take_part():
                return await asyncio.gather(*(client.take_part() for client in clients))

            work = threading.Thread(target=lambda: asyncio.run(take_part()), daemon=True)
            work.start()
            for page in (folder, operator):
                check_end(page, tmp_path / "live")
            operator.call("Page.bringToFront")  # clients are not asked for by a page that nobody sees
            operator.until(f"({LISTED}).toSorted().join() === 'ann,bob,eve'")
            for part in ("tiles", "metric", "staleness", "weights", "fill", "refusals", "privacy", "log"):
                shown = f"document.getElementById('{part}').textContent"
                until_same(operator, folder, shown)
            folder.until(f"{WHY}.startsWith('The run is over (trips).')")
            folder.call("Page.bringToFront")
            folder.until(f"({LISTED}).toSorted().join() === 'ann,bob,eve'")
            network.until(f"({TILES}).trips === '30'")
            network.until("document.getElementById('state').textContent === 'over: trips'")
            assert network.value(TILES)["clients"] == "–"
            assert "an operator's key shows uploads" in network.value("note.textContent")
            seen = "[clients, weights, network, log].map((part) => part.offsetParent !== null)"
            assert network.value(seen) == [False, False, False, True]
            assert operator.value(seen) == [True] * 4
            assert network.trouble() == []
            work.join(300)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def test_the_page_of_folders_loads_neither_torch_nor_the_clients():
    """So that the watching process stays small."""
    code = "import sys, tardigrad.watch.web_server; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere: is neither a folder nor HOST:PORT"),
        (["host:99999"], "'99999' is not a port from 1 to 65535"),
        (["host:7433"], "--key: a server answers only enrolled clients"),
        ([".", "--host", "192.0.2.1"], "cannot listen there"),
    ],
)
def test_what_cannot_be_watched_is_one_sentence(cli, words, said):
    code, _, errors = cli("watch", *words)
    assert code == 2
    assert said in re.sub(r"\s+", " ", errors)
