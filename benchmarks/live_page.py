"""What `tardigrad watch` costs: how soon numbers are shown, a long run, memory, and the run that is watched.

    python benchmarks/live_page.py            # about 20 minutes
    python benchmarks/live_page.py --quick    # about 2 minutes, only to see that it works: nothing is written

A file of a million events of 1,000 clients is watched by the real command and shown by headless Chromium
(about 2 minutes). Events are then appended for ten minutes, 200 a second. Then a simulation runs with and
without a page that watches it, in turn (about 8 minutes). Results: benchmarks/live_page.json,
docs/performance.md.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from report import HERE, Machine, sentence, table, write

sys.path.insert(0, str(HERE.parent / "tests"))
from browser import Browser, Page
from tardigrad.core.event_log import write_events
from tardigrad.core.events import Event, ModelEvaluated, ModelMoved, RunStarted, UploadReceived

CLIENTS, BUFFER, RATE = 1000, 10, 200
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
TICK = os.sysconf("SC_CLK_TCK")
TRIPS = "document.querySelector('#tiles > div:nth-child(2) dd')?.textContent"
READY = "!!document.querySelector('html[data-updates] #clients tbody tr')"
SIMULATION = """
[algorithm]
kind = "fedbuff"
[data]
kind = "digits"
[data.partition]
kind = "dirichlet"
clients = 100
[model]
kind = "mlp"
[pace]
kind = "asynchronous"
concurrency = 50
[stop]
trips = {trips}
[evaluation]
every_trips = 50
"""


def events(count: int, first: int = 0) -> Iterator[Event]:
    """Yield the events of uploads from number `first` on, about `count` of them."""
    made, trip = 0, first
    while made < count:
        version, time_now = trip // BUFFER, trip / 100
        stale = trip * 7 % 5 if version > 5 else 0
        yield UploadReceived(
            trip, f"client-{trip * 37 % CLIENTS:04}", time_now - 0.3, time_now, version - stale, version,
            stale, (1 + stale) ** -0.5, True, None, version + 1,
        )  # fmt: skip
        trip, made = trip + 1, made + 1
        if trip % BUFFER == 0:
            yield ModelMoved(trip // BUFFER, trip, time_now, 1000 * trip, 2.0)
            made += 1
        if trip % (10 * BUFFER) == 0:
            metrics = {"loss": 2.0 / (1 + trip / 1e5), "accuracy": 1 - 0.9 / (1 + trip / 1e5)}
            yield ModelEvaluated(trip // BUFFER, trip, time_now, 1000 * trip, metrics=metrics)
            made += 1


def append(file: Path, some: list[Event]) -> int:
    """Append events, and return the number of the next trip."""
    with file.open("ab") as out:
        write_events(out, some)
    return max(one.trip for one in some if isinstance(one, UploadReceived)) + 1


@contextmanager
def watched(folder: Path) -> Iterator[tuple[str, int]]:
    """Start the command; yield the page's address and the number of the process."""
    command = [sys.executable, "-m", "tardigrad", "watch", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.kill()
        process.wait()


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def heap_mb(page: Page) -> float:
    page.call("HeapProfiler.collectGarbage")
    return page.call("Runtime.getHeapUsage")["usedSize"] / 1e6


def wait(page: Page, expression: str) -> float:
    """Wait for an expression, and return the seconds that it took."""
    began = time.monotonic()
    page.until(expression)
    return time.monotonic() - began


def measure_page(folder: Path, count: int, minutes: float) -> dict[str, Any]:
    """Measure the page of a long run."""
    file = folder / "events.jsonl"
    with file.open("wb") as out:
        write_events(out, [RunStarted(1, 0)])
        write_events(out, events(count))
    trip = sum(1 for line in file.open("rb") if b'"upload"' in line)
    found: dict[str, Any] = {"events": count, "megabytes": round(file.stat().st_size / 1e6)}
    with watched(folder) as (address, pid), Browser(folder / "profile") as browser:
        browser.call("Browser.getVersion")  # it has started
        began = time.monotonic()
        page = browser.open(address)
        page.until(READY)
        found["opens_seconds"] = time.monotonic() - began
        page.until(f"{TRIPS} === '{trip:,}'")
        found["all_read_seconds"] = time.monotonic() - began
        page.call("Page.reload")
        found["opens_again_seconds"] = wait(page, f"{READY} && {TRIPS} === '{trip:,}'")
        delays = []
        for _ in range(20):
            trip = append(file, list(events(5, trip)))
            delays.append(wait(page, f"{TRIPS} === '{trip:,}'"))
        found["delay_seconds"] = {"median": statistics.median(delays), "most": max(delays)}
        heaps, spent, start = [heap_mb(page)], processor_seconds(pid), time.monotonic()
        while time.monotonic() - start < 60 * minutes:
            trip = append(file, list(events(RATE // 2, trip)))
            time.sleep(0.5)
            if time.monotonic() - start > 15 * len(heaps):
                heaps.append(heap_mb(page))
        passed = time.monotonic() - start
        found["minutes"] = minutes
        found["processor_share"] = (processor_seconds(pid) - spent) / passed
        found["memory_mb"] = memory_mb(pid)
        found["heap_mb"] = [round(one, 2) for one in heaps]
        assert page.trouble() == [], page.trouble()
    return found


def simulated(folder: Path, trips: int, watching: bool) -> tuple[float, float]:
    """Run a simulation; return its seconds and its processor time."""
    (folder / "run.toml").write_text(SIMULATION.format(trips=trips))
    out = Path(tempfile.mkdtemp(dir=folder))
    command = [
        sys.executable, "-m", "tardigrad", "run", str(folder / "run.toml"), "--out", str(out / "run"), "-q",
    ]  # fmt: skip

    def run() -> tuple[float, float]:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | ONE_THREAD)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return time.monotonic() - began, spent

    if not watching:
        return run()
    with watched(out) as (address, _), Browser(out / "profile") as browser:
        page = browser.open(address)
        page.until("document.readyState === 'complete'")
        found = run()
        page.until(f"{TRIPS} === '{trips:,}'")  # it was watched to its end
        return found


def run_cost(folder: Path, pairs: int, trips: int) -> dict[str, Any]:
    """Run simulations alone and watched, in turn, and return the ratios of their times."""
    ratios: dict[str, list[float]] = {"seconds": [], "processor_seconds": []}
    for number in range(pairs):
        order = (False, True) if number % 2 else (True, False)  # who is first takes turns
        times = {watching: simulated(folder, trips, watching) for watching in order}
        for at, name in enumerate(ratios):
            ratios[name].append(times[True][at] / times[False][at])
    return {
        name: {"median": statistics.median(found), "least": min(found), "most": max(found), "all": found}
        for name, found in ratios.items()
    } | {"pairs": pairs, "trips": trips}


def quarters(values: list[float]) -> list[float]:
    """Return the means of the four quarters of a series; of shorter ones, the values."""
    parts = min(4, len(values))
    ends = [len(values) * part // parts for part in range(parts + 1)]
    return [statistics.mean(values[begin:end]) for begin, end in itertools.pairwise(ends)]


def rows_of(found: dict[str, Any]) -> list[list[str]]:
    """Return the results as the rows of a table."""
    heaps, cost = found["heap_mb"], found["run_cost"]
    spent = cost["processor_seconds"]
    rows = [
        ["what", "measured", "wanted"],
        ["the page opens, events are still being read", f"{found['opens_seconds']:.1f} s", "3 s"],
        ["all events are read and shown", f"{found['all_read_seconds']:.0f} s", ""],
        ["the page opens again, with all events", f"{found['opens_again_seconds']:.1f} s", "3 s"],
        ["an event is on the page after, median", f"{found['delay_seconds']['median']:.2f} s", "2 s"],
        ["an event is on the page after, at most", f"{found['delay_seconds']['most']:.2f} s", "2 s"],
        [f"the browser's heap before and after {found['minutes']:g} minutes",
         f"{heaps[0]:.1f} and {heaps[-1]:.1f} MB, at most {max(heaps):.1f}", "flat"],
        ["its mean in each quarter of this time", ", ".join(f"{one:.2f}" for one in quarters(heaps)) + " MB",
         "flat"],
        ["processor of the watching process", f"{found['processor_share']:.1%} of a core", "15 %"],
        ["its memory at most", f"{found['memory_mb']:.0f} MB", "200 MB"],
        ["a run that is watched takes longer by, median", f"{cost['seconds']['median'] - 1:+.1%}", ""],
        ["and more processor time by, median", f"{spent['median'] - 1:+.1%}", "1 %"],
    ]  # fmt: skip
    if "all" in spent:  # the ratios of single pairs were not kept at first
        least, most = spent["least"] - 1, spent["most"] - 1
        rows.append(
            [f"the same in {cost['pairs']} pairs of runs, least to most", f"{least:+.1%} to {most:+.1%}", ""]
        )
    return rows


def part(results: dict[str, Any]) -> str:
    """Return the results as a part of docs/performance.md."""
    size = f"{results['events']:,} events ({results['megabytes']} MB) of {CLIENTS:,} clients"
    return f"{size}, then {RATE} a second. {sentence(results['machine'])}\n\n{table(rows_of(results))}"


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--trips", type=int, default=3000)
    parser.add_argument("--quick", action="store_true", help="small numbers, and nothing is written")
    options = parser.parse_args()
    if options.quick:
        options.events, options.minutes, options.pairs, options.trips = 30_000, 0.3, 2, 300
    machine = Machine()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place)
        (folder / "long").mkdir()
        say(f"the page of {options.events:,} events, then {options.minutes:g} minutes of new ones")
        found = measure_page(folder / "long", options.events, options.minutes)
        say(f"what watching costs a run: {options.pairs} pairs of runs")
        found["run_cost"] = run_cost(folder, options.pairs, options.trips)
        say("done")
    results = {"machine": machine.description(), **found}
    if not options.quick:
        write("live_page", results)
    print(part(results))


if __name__ == "__main__":
    main()
