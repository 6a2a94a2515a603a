"""The planner alone: a million clients, ten thousand at work. Prints trips per second and memory.

python benchmarks/planner.py --population 1000000 --concurrency 10000 --trips 500000
python benchmarks/planner.py --network --availability day_night
python benchmarks/planner.py --interleaved       (all of them in turn, by processor time, against the plain
case)
"""

from __future__ import annotations

import argparse
import json
import resource
import time

from tardigrad.core.bookkeeping import Bookkeeping, Buffer
from tardigrad.core.outcomes import Accepted, GivenUp
from tardigrad.core.pace import Asynchronous
from tardigrad.core.staleness import Polynomial
from tardigrad.data.sets.synthetic import SyntheticClients
from tardigrad.simulation.availability import Always, DayNight, OnOff
from tardigrad.simulation.delay import Durations, HalfNormal
from tardigrad.simulation.network import Links, LogNormalBandwidth, Network, TripBytes
from tardigrad.simulation.planner import Planner
from tardigrad.simulation.roster import make_presence

Law = Always | DayNight | OnOff
LAWS: dict[str, Law] = {
    "always": Always(),
    "day_night": DayNight(period=24.0, on=8.0),
    "on_off": OnOff(on=8.0, off=16.0),
}
CASES = [(False, "always"), (True, "always"), (True, "day_night"), (True, "on_off")]
CHUNK = 20_000
"""Trips that one case plans before it is another's turn."""


class Case:
    """A planner, and the processor time that it has taken."""

    def __init__(self, given: argparse.Namespace, network: bool, availability: str) -> None:
        self.name = ("network, " if network else "") + availability
        clients = SyntheticClients(given.population, examples=50, features=20, classes=10, seed=0)
        pace, buffer = Asynchronous(concurrency=given.concurrency), Buffer(size=given.buffer)
        links = None
        if network:
            law = LogNormalBandwidth(median=1e6)
            links = Links(Network(download=law, upload=law), 0, TripBytes(100_000, 100_000))
        self.planner = Planner(
            Bookkeeping(pace, buffer, Polynomial()), clients,
            Durations(HalfNormal(device_spread=0.5), clients, 0), 0, None, links,
            make_presence(LAWS[availability], given.population, 0),
        )  # fmt: skip
        self.trips = self.staleness = self.given_up = 0
        self.seconds = 0.0

    def plan(self, trips: int) -> None:
        began, until = time.process_time(), self.trips + trips
        while self.trips < until:
            for item in self.planner.advance():
                if isinstance(item, Accepted):
                    self.trips += 1
                    self.staleness += item.staleness
                elif isinstance(item, GivenUp):
                    self.given_up += 1
        self.seconds += time.process_time() - began

    @property
    def rate(self) -> float:
        """Trips that ended, with an upload or without, per second of processor time."""
        return (self.trips + self.given_up) / self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--population", type=int, default=1_000_000)
    parser.add_argument("--concurrency", type=int, default=10_000)
    parser.add_argument("--buffer", type=int, default=10)
    parser.add_argument("--trips", type=int, default=500_000)
    parser.add_argument("--network", action="store_true", help="log-normal bandwidths")
    parser.add_argument("--availability", choices=list(LAWS), default="always")
    parser.add_argument("--interleaved", action="store_true")
    given = parser.parse_args()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cases = CASES if given.interleaved else [(given.network, given.availability)]
    planned = [Case(given, *case) for case in cases]
    for _ in range(-(-given.trips // CHUNK)):
        for case in planned:
            case.plan(min(CHUNK, given.trips))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    results = [
        {
            "case": case.name,
            "population": given.population,
            "concurrency": given.concurrency,
            "trips": case.trips,
            "given_up": case.given_up,
            "trips_per_second": round(case.rate),
            "of_plain": round(case.rate / planned[0].rate, 2),
            "mean_staleness": round(case.staleness / case.trips, 1),
            "peak_mb": round(peak / 1024),
            "of_which_imports_mb": round(before / 1024),
        }
        for case in planned
    ]
    print(json.dumps({"cases": results} if given.interleaved else results[0]))


if __name__ == "__main__":
    main()
