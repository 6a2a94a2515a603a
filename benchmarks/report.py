"""What a benchmark leaves behind: a description of the machine, and tables in docs/performance.md.

    python benchmarks/report.py    # write the tables anew from the JSON files; nothing is measured

Each benchmark has a function `part` that makes its part of the page from its JSON file alone, so that a test
can compare the two.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
TWICE = "2 bare loops"
"""The name of the variant of `speed.py` that says what two cores can do."""
QUIET = 1.8
"""On a quiet machine with two cores, two bare loops make at least so many times the trips of one."""

LOOP = """
import time
end, rounds = time.monotonic() + 1.0, 0
while time.monotonic() < end:
    sum(range(10_000))
    rounds += 1
print(rounds)
"""


class Machine:
    """The machine that a benchmark runs on, and how busy it is with other things."""

    def __init__(self) -> None:
        self._date = datetime.datetime.now(datetime.UTC).date().isoformat()
        self._start = os.getloadavg()[0]

    def description(self) -> dict[str, Any]:
        """As of now: ask at the end."""
        return {
            "date": self._date,
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
            "python": platform.python_version(),
            "torch": version("torch"),
            "tardigrad": version("tardigrad"),
            "commit": _commit(),
            "load_at_start": round(self._start, 2),
            "load_at_end": round(os.getloadavg()[0], 2),
        }


def sentence(machine: dict[str, Any], checked: bool = False) -> str:
    """Return in words what was measured, when and where. `checked`: two bare loops made nearly twice the
    trips of one meanwhile, whatever the load average, which counts the benchmark itself."""
    commit = machine["commit"]
    if commit.endswith("-dirty"):
        commit = f"{commit.removesuffix('-dirty')} with uncommitted changes"
    busy = " The machine was busy with other work, so the speeds mean little." * (
        not checked and machine["load_at_start"] > 1
    )
    return (
        f"Measured on {machine['date']}, version {machine['tardigrad']}, commit {commit}: "
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB; "
        f"Python {machine['python']}, torch {machine['torch']}; "
        f"load average {machine['load_at_start']} at the start and {machine['load_at_end']} at the end.{busy}"
    )


class Quiet:
    """Whether the machine was quiet, before and after: two bare loops at once do nearly twice as much as one.
    A load average does not tell this: it counts the benchmark itself, and not other guests of the host."""

    def __init__(self) -> None:
        self._before = _two_over_one()

    def write(self, name: str, results: dict[str, Any]) -> None:
        """Keep the results as `write` does, unless the machine was busy: then say so, and keep nothing."""
        speedup = results["two_loops_over_one"] = min(self._before, _two_over_one())
        if speedup < QUIET:
            print(
                f"The machine was not quiet: two bare loops did {speedup:.2f} times as much as one, and "
                f"should do {QUIET}. benchmarks/{name}.json and {PAGE.name} are left as they were."
            )
        else:
            write(name, results)


def _two_over_one() -> float:
    """How much more two processes do in the same time than one; the best of three."""
    return max(_loops(2) / _loops(1) for _ in range(3))


def _loops(processes: int) -> float:
    command = [sys.executable, "-c", LOOP]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    return sum(int(one.communicate()[0]) for one in running)


def disturbance(speeds: dict[str, Any]) -> str | None:
    """Return in words why the speeds of a run of `speed.py` mean little, or None if the machine was quiet.

    `speeds`: by job and variant. The first job tells, because its loop works within the caches. The larger
    ones ask the system for memory all the time, so that two of them disturb each other on any machine.
    """
    job, least = next((job, of[TWICE]["ratio"]) for job, of in speeds.items())
    if least >= QUIET:
        return None
    return (
        f"The machine was not quiet: two bare loops made {least:.2f} times the trips of one ({job}), and "
        f"{QUIET} are expected of two free cores."
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    command = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def table(rows: list[list[str]]) -> str:
    """Rows as a Markdown table; the first is the head, and numbers stand to the right."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "| --- |" + " ---: |" * (len(rows[0]) - 1))
    return "\n".join(lines)


def rounded(rate: float) -> str:
    """A rate with as many digits as mean something."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def part(name: str) -> str:
    """Return a benchmark's part of the page, made from its JSON file."""
    results = json.loads((HERE / f"{name}.json").read_text())
    text: str = importlib.import_module("all" if name == "results" else name).part(results)
    return text


def write(name: str, results: dict[str, Any]) -> None:
    """Keep results as JSON beside the benchmarks, and write their part of the page."""
    (HERE / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    write_part(name)


def write_part(name: str) -> None:
    """Write a benchmark's part of the page between its two markers."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    page = PAGE.read_text()
    if page.count(begin) != 1 or page.count(end) != 1:
        raise SystemExit(f"{PAGE}: it must have one line {begin!r} and one {end!r}")
    before, rest = page.split(begin)
    PAGE.write_text(f"{before}{begin}\n\n{part(name)}\n\n{end}{rest.split(end)[1]}")


def run(script: str, *options: str) -> Any:
    """Run one benchmark in its own process; what the one line of JSON that it prints says."""
    print(f"-- {script} {' '.join(options)}", file=sys.stderr)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / script), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    found = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or len(found) != 1:
        raise SystemExit(f"{script} {' '.join(options)}: it ended with code {done.returncode}")
    return json.loads(found[0])


if __name__ == "__main__":
    for file in sorted(HERE.glob("*.json")):
        write_part(file.stem)
