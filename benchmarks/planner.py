"""The planner alone: a million clients, ten thousand at work. Prints trips per second and memory.

python benchmarks/planner.py --population 1000000 --concurrency 10000 --trips 500000
"""

from __future__ import annotations

import argparse
import json
import resource
import time

from tardigrad.core.bookkeeping import Bookkeeping, Buffer
from tardigrad.core.outcomes import Accepted
from tardigrad.core.pace import Asynchronous
from tardigrad.core.staleness import Polynomial
from tardigrad.data.sets.synthetic import SyntheticClients
from tardigrad.simulation.delay import Durations, HalfNormal
from tardigrad.simulation.planner import Planner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--population", type=int, default=1_000_000)
    parser.add_argument("--concurrency", type=int, default=10_000)
    parser.add_argument("--buffer", type=int, default=10)
    parser.add_argument("--trips", type=int, default=500_000)
    given = parser.parse_args()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clients = SyntheticClients(given.population, examples=50, features=20, classes=10, seed=0)
    book = Bookkeeping(Asynchronous(concurrency=given.concurrency), Buffer(size=given.buffer), Polynomial())
    planner = Planner(book, clients, Durations(HalfNormal(device_spread=0.5), clients, 0), 0)
    began, trips, staleness = time.perf_counter(), 0, 0
    while trips < given.trips:
        for item in planner.advance():
            if isinstance(item, Accepted):
                trips += 1
                staleness += item.staleness
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = {
        "population": given.population,
        "concurrency": given.concurrency,
        "trips": trips,
        "trips_per_second": round(trips / seconds),
        "mean_staleness": round(staleness / trips, 1),
        "peak_mb": round(peak / 1024),
        "of_which_imports_mb": round(before / 1024),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
