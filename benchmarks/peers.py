"""Other simulators on the same job, each in its own virtual environment, beside the bare loop and ours.

    python benchmarks/peers.py --rounds 3 --venvs .bench-venvs

The first time, the environments are made (a gigabyte each, most of it torch). A peer that cannot be installed
or does not run is reported as such. Bare loop, ours and peers take turns; a peer runs in a fresh process each
time, and its start and first trips are not counted. Results: benchmarks/peers.json, docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from job import JOBS
from report import HERE, Machine, disturbance, rounded, sentence, table, write
from speed import SECONDS, WORKERS, measure_job, summary

TORCH = "torch==2.13.0"
LIMIT = 600
"""Seconds that a peer may take for one measurement."""


class NotRun(Exception):
    """Why a peer is not in the table."""


@dataclass(frozen=True)
class Peer:
    """A simulator, and how it is installed and asked."""

    script: str
    install: list[list[str]]
    """What pip is told, one call after the other, once torch is there."""
    trips: dict[str, int]
    """Measured at a time, by job; a trial takes the least that is possible."""
    processes: int = 1


def _trips(*each: int) -> dict[str, int]:
    return dict(zip(JOBS, each))


APPFL_NEEDS = ["omegaconf", "colorama", "wandb", "matplotlib", "seaborn", "scikit-learn", "opacus"]
"""What its simulator imports; all that it names would be Globus, Ray and torchvision as well."""
FLSIM_NEEDS = ["hydra-core", "omegaconf", "pandas", "tqdm", "scipy", "scikit-learn", "opt_einsum"]
PEERS = {
    "pfl": Peer("with_pfl.py", [["pfl[pytorch]==0.6.0"]], _trips(1500, 500, 100)),
    "FLSim": Peer(
        "with_flsim.py",
        [FLSIM_NEEDS, ["--no-deps", "flsim==0.1.0", "opacus"]],
        _trips(200, 100, 30),
    ),
    "APPFL": Peer(
        "with_appfl.py",
        [APPFL_NEEDS, ["--no-deps", "appfl==1.12.0"]],
        _trips(300, 150, 30),
    ),
    # 1.42.0 needs a version of certifi that is not on PyPI (November 2026)
    "Flower": Peer("with_flower.py", [["flwr[simulation]==1.41.0"]], _trips(200, 200, 50), processes=2),
}
NEWER_PYTHON = {"BlazeFL 3.0.0": (3, 14)}
"""Simulators that are not measured, and the Python that they need."""
TRIAL = 50


def installed(name: str, folder: Path) -> Path:
    """The Python of a peer's virtual environment, which is made if it is not there."""
    peer, python = PEERS[name], folder / "bin" / "python"
    steps = [[TORCH], *([TORCH, *step] for step in peer.install)]
    done = folder / "installed.json"
    if done.exists() and json.loads(done.read_text()) == steps:
        return python
    print(f"{name}: installing into {folder}", file=sys.stderr)
    venv.create(folder, with_pip=True, clear=True)
    for step in steps:
        pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
        if "nvidia" in _output([*pip, "--dry-run", *step], f"pip cannot find {' '.join(step)}"):
            raise NotRun("the GPU builds would be installed; put a CPU build of torch in pip's reach")
        _output([*pip, *step], f"pip cannot install {' '.join(step)}")
    done.write_text(json.dumps(steps))
    return python


def not_measured(python: tuple[int, int]) -> Iterator[tuple[str, str]]:
    """Those that have no script here, and why not, with this Python."""
    for name, needed in NEWER_PYTHON.items():
        if python < needed:
            yield name, "it needs Python {}.{}, and this is {}.{}".format(*needed, *python)
        else:
            yield name, f"there is no benchmarks/peers/with_{name.split()[0].lower()}.py"


def trips_per_second(peer: Peer, python: Path, job: str, trips: int) -> tuple[float, str]:
    """One measurement in a fresh process, and the peer's version."""
    script = HERE / "peers" / peer.script
    output = _output([str(python), str(script), job, str(trips)], f"{script.name} failed")
    found = json.loads(output.splitlines()[-1])
    return found["trips_per_second"], found["version"]


def _output(command: list[str], trouble: str) -> str:
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE / "peers")]),
    }
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise NotRun(f"{trouble}: it takes more than {LIMIT} seconds") from None
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise NotRun(f"{trouble}: {last.replace(str(HERE.parent) + os.sep, '')}")
    return done.stdout


def turns(
    pythons: dict[str, Path], job: str, missing: dict[str, str], versions: dict[str, str]
) -> dict[str, Callable[[], float]]:
    """For each peer that gets through a trial, what measures it once."""
    found: dict[str, Callable[[], float]] = {}
    for name, python in pythons.items():
        try:
            print(f"{job}: trial of {name}", file=sys.stderr)
            _, versions[name] = trips_per_second(PEERS[name], python, job, TRIAL)
        except NotRun as reason:
            missing[f"{name}, {job}"] = str(reason)
            continue

        def measure(name: str = name, python: Path = python) -> float:
            try:
                return trips_per_second(PEERS[name], python, job, PEERS[name].trips[job])[0]
            except NotRun as reason:  # it counts as a round without a trip
                missing[f"{name}, {job}"] = str(reason)
                return 0.0

        found[name] = measure
    return found


def shown(results: dict[str, Any], versions: dict[str, str], missing: dict[str, str]) -> str:
    """The results as a Markdown table of ratios, trips per second behind them."""
    columns = {variant: f"ours, {variant}" for variant in WORKERS}
    for name, number in versions.items():
        processes = PEERS[name].processes
        columns[name] = f"{name} {number}" + (f", {processes} processes" if processes > 1 else "")
    rows = [["ratio to the bare loop (trips/s)", "bare loop", *columns.values()]]
    for job, variants in results.items():
        cells = [f"1 ({rounded(variants['bare']['best'])})"]
        for variant in columns:
            one = variants.get(variant)
            cells.append(f"{one['ratio']:.2f} ({rounded(one['best'])})" if one and one["best"] else "not run")
        rows.append([job, *cells])
    reasons = "".join(f"\n\nNot run: {name}: {reason}." for name, reason in missing.items())
    return table(rows) + reasons


def part(results: dict[str, Any]) -> str:
    """Return the results as a part of docs/performance.md."""
    tables = shown(results["jobs"], results["versions"], results["not_run"])
    return f"{tables}\n\n*Rounds: {results['rounds']}. {sentence(results['machine'], checked=True)}*"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the bare loop and ours in a round")
    parser.add_argument("--venvs", type=Path, default=HERE.parent / ".bench-venvs", help="their folder")
    parser.add_argument("--peer", action="append", choices=list(PEERS), help="only this one (may repeat)")
    parser.add_argument("--job", action="append", choices=list(JOBS), help="only this one (may repeat)")
    given = parser.parse_args()
    machine = Machine()
    missing = {} if given.peer else dict(not_measured(sys.version_info[:2]))
    versions: dict[str, str] = {}
    pythons: dict[str, Path] = {}
    for name in given.peer or PEERS:
        try:
            pythons[name] = installed(name, given.venvs.absolute() / name.lower())
        except NotRun as reason:
            missing[name] = str(reason)
    results = {}
    for job in given.job or JOBS:
        others = turns(pythons, job, missing, versions)
        results[job] = summary(measure_job(job, JOBS[job], given.rounds, given.seconds, others))
    everything = {
        "machine": machine.description(), "rounds": given.rounds, "versions": versions, "not_run": missing,
        "jobs": results,
    }  # fmt: skip
    print(part(everything))
    if reason := disturbance(results):
        print(f"{reason} docs/performance.md and peers.json stay as they were.", file=sys.stderr)
        return
    write("peers", everything)


if __name__ == "__main__":
    main()
