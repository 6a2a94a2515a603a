"""All benchmarks, one after the other: a table of ratios, benchmarks/results.json and docs/performance.md.

    python benchmarks/all.py            # some ten minutes
    python benchmarks/all.py --quick    # under two

Each one runs in its own process; within each, what is compared takes turns. Progress is on stderr.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from report import Machine, disturbance, rounded, run, sentence, table, write

Row = list[str]
"""What is compared, the ratio, and the figures behind it, which hold for this machine alone."""

AIMS = {
    "MLP, batch 50": {"1 worker": 1.15, "2 workers": 1.9},
    "MLP, batch 10": {"1 worker": 1.7, "2 workers": 3.0},
    "CNN, batch 50": {"1 worker": 1.35, "2 workers": 2.4},
    "LSTM, batch 10": {"1 worker": 1.1, "2 workers": 2.0},
}
"""Of the ratios to the bare loop."""
AIM_OF_PROCESSOR_TIME = 1.1

SMALL = ["--population", "1000", "--concurrency", "100"]
LARGE = ["--population", "1000000", "--concurrency", "10000"]


def speed(quick: bool) -> Any:
    return run("speed.py", *(["--rounds", "2", "--seconds", "0.7"] if quick else ["--rounds", "7"]))


def speed_rows(found: Any) -> list[Row]:
    rows = []
    for job, variants in found.items():
        bare, alone, two = variants["bare"], variants["1 worker"], variants["2 workers"]
        rows += [
            [
                f"{job}: {variant} over the bare loop{_aim(AIMS[job].get(variant))}",
                f"{one['ratio']:.2f} ({one['median_ratio']:.2f})",
                f"{rounded(one['best'])} over {rounded(bare['best'])} trips/s; "
                f"{one['processor_ratio']:.2f} of its processor time for a trip",
            ]
            for variant, one in variants.items()
            if variant != "bare"
        ]
        rows.append(
            [
                f"{job}: processor time for a trip, 2 workers over 1 worker{_aim(AIM_OF_PROCESSOR_TIME)}",
                f"{two['processor_ms'] / alone['processor_ms']:.2f}",
                f"{two['processor_ms']:.2f} over {alone['processor_ms']:.2f} ms, all processes",
            ]
        )
    return rows


def _aim(aim: float | None) -> str:
    return "" if aim is None else f" (aim: {aim})"


def planner(quick: bool) -> Any:
    trips = ["--trips", "60000" if quick else "500000"]
    turns = [
        (run("planner.py", *SMALL, *trips), run("planner.py", *LARGE, *trips))
        for _ in range(1 if quick else 3)
    ]
    small, large = (max(turn, key=lambda found: found["trips_per_second"]) for turn in zip(*turns))
    found = run("planner.py", *LARGE, *trips, "--interleaved")["cases"]
    return {"small": small, "large": large, "interleaved": found}


def planner_rows(found: Any) -> list[Row]:
    small, large, (plain, *others) = found["small"], found["large"], found["interleaved"]
    row = [
        "planner: 10,000 of a million clients at work over 100 of 1,000",
        f"{large['trips_per_second'] / small['trips_per_second']:.2f}",
        f"{large['trips_per_second']:,} over {small['trips_per_second']:,} trips/s",
    ]
    rows = [
        [
            f"planner, a million clients: {one['case']} over neither",
            f"{one['of_plain']:.2f}",
            f"{one['trips_per_second']:,} over {plain['trips_per_second']:,} trips/s of processor time",
        ]
        for one in others
    ]
    return [row, *rows]


def memory(quick: bool) -> Any:
    return run("memory.py", *(["--quick", "--trips", "600"] if quick else ["--trips", "5000"]))


def memory_rows(found: Any) -> list[Row]:
    rows = []
    for workers, name in ((0, "1 worker"), (2, "2 workers")):
        few, *more = (row for row in found["concurrency"] if row["workers"] == workers)
        for many in more:
            growth = (many["mb"] - few["mb"]) / (many["versions"] - few["versions"])
            rows.append(
                [
                    f"memory, CNN, {name}: growth from {few['concurrency']} to {many['concurrency']:,} at "
                    "work, over the models of the live versions that came with it",
                    f"{growth / many['model_mb']:.2f}",
                    f"{many['mb']:,} MB with {many['versions']} versions, "
                    f"{few['mb']:,} with {few['versions']}",
                ]
            )
    for workers, name in ((0, "1 worker"), (2, "2 workers")):
        few, *_, many = (row for row in found["population"] if row["workers"] == workers)
        rows.append(
            [
                f"memory, small model, {name}: {many['population']:,} clients over {few['population']:,}",
                f"{many['mb'] / few['mb']:.2f}",
                f"{many['mb']:,} over {few['mb']:,} MB, of which {many['imports_mb']} are imports",
            ]
        )
    return rows


def momentum_approximation(quick: bool) -> Any:
    return run("momentum_approximation.py", "--steps", "160" if quick else "4000")


def momentum_approximation_rows(found: Any) -> list[Row]:
    rows = []
    for name, method in (("approximation", "momentum approximation"), ("light", "light approximation")):
        one = found[name]
        kept = f"{one['vectors']:.0f} vectors kept"
        rows += [
            [
                f"{method}: a step over one with EMA momentum, {found['size']:,} parameters",
                f"{one['late_times_ema']:.2f}",
                f"{one['late_ms']:.1f} over {found['ema']['late_ms']:.1f} ms, {kept}",
            ],
            [
                f"{method}: the last of {found['steps']:,} steps over the first, both over EMA's",
                f"{one['late_times_ema'] / one['early_times_ema']:.2f}",
                f"{one['late_ms']:.1f} and {one['early_ms']:.1f} ms",
            ],
        ]
    return rows


def noise(quick: bool) -> Any:
    return run("noise.py", "--steps", "8" if quick else "64")


def noise_rows(found: Any) -> list[Row]:
    results = found["results"]
    independent = {one["normals"]: one for one in results if one["noise"] == "independent"}
    return [
        [
            f"noise, {one['noise']} over independent, {one['normals']}, {found['dimension']:,} parameters",
            f"{one['mean_ms'] / independent[one['normals']]['mean_ms']:.2f}",
            f"{one['mean_ms']} over {independent[one['normals']]['mean_ms']} ms a step, "
            f"{one['state_mb']:.0f} MB kept",
        ]
        for one in results
        if one["noise"] != "independent"
    ]


PARTS = {
    speed: speed_rows,
    planner: planner_rows,
    memory: memory_rows,
    momentum_approximation: momentum_approximation_rows,
    noise: noise_rows,
}
"""What is measured, and the rows that it has in the table."""


def missed(speeds: Any) -> list[str]:
    """Return the jobs and variants that do not reach their aims."""
    found = []
    for job, variants in speeds.items():
        found += [
            f"{job}, {variant}" for variant, aim in AIMS[job].items() if variants[variant]["ratio"] < aim
        ]
        if (
            variants["2 workers"]["processor_ms"]
            > AIM_OF_PROCESSOR_TIME * variants["1 worker"]["processor_ms"]
        ):
            found.append(f"{job}, processor time")
    return found


def part(results: dict[str, Any]) -> str:
    """Return the results as a part of docs/performance.md."""
    rows = [["what over what", "ratio", "figures behind it (this machine only)"]]
    for measure, rows_of in PARTS.items():
        rows += rows_of(results[measure.__name__])
    version = "The quick version" if results["quick"] else "The full version"
    short = "; ".join(missed(results["speed"])) or "none"
    said = sentence(results["machine"], checked=True)
    return f"{table(rows)}\n\nAims that are missed: {short}.\n\n*{version}. {said}*"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter and less exact")
    given = parser.parse_args()
    machine = Machine()
    found = {measure.__name__: measure(given.quick) for measure in PARTS}
    results = {"machine": machine.description(), "quick": given.quick} | found
    print(part(results))
    if reason := disturbance(results["speed"]):
        print(f"{reason} docs/performance.md and results.json stay as they were.", file=sys.stderr)
        return
    write("results", results)


if __name__ == "__main__":
    main()
