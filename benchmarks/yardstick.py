"""A job whose time others have published: logistic regression on 1,000 clients, 1,000 trips in 100 rounds.

    python benchmarks/yardstick.py --rounds 3

FLUTE's README (https://github.com/microsoft/msrflute) has the job, and how long FLUTE, Flower and FedML took
for it, on hardware that it does not name. So the seconds do not compare programs; they say what is usual. The
clients have as many examples as in FedProx's division of MNIST among 1,000 clients, but the pixels are noise:
the time does not depend on them, and accuracy is not compared.

Ours is the time of a whole process: start, data, 100 rounds and 5 evaluations. Results:
benchmarks/yardstick.json, docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch
from report import Machine, Quiet, run, sentence, table
from speed import WORKERS
from torch import Tensor, nn

import tardigrad as td

CLIENTS, EXAMPLES = 1000, 69_035
DEVIATION_OF_LOG = 1.1
"""Of the clients' sizes: with it, 69 examples on average have a standard deviation of 106, as published."""
PUBLISHED = {
    "FLUTE, GPUs (4)": 86,
    "FLUTE, processor": 200,
    "FedML 0.7.303 (MPI), GPUs": 189,
    "Flower 1.0.0, processor": 1814,
    "Flower 1.0.0, GPUs (4)": 3405,
}
"""Seconds, from FLUTE's README."""


def examples(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pixels of noise, and labels."""
    return torch.rand(count, 784, generator=random), torch.randint(10, (count,), generator=random)


def train(workers: int) -> int:
    """Do the job. Return the trips that were made."""
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(0)
    sizes = torch.exp(DEVIATION_OF_LOG * torch.randn(CLIENTS, generator=random))
    sizes = (sizes * (EXAMPLES / sizes.sum())).round().clamp(min=1).int()
    result = td.run(
        model=nn.Sequential(nn.Linear(784, 10), nn.Sigmoid()),
        clients={number: examples(size, random) for number, size in enumerate(sizes.tolist())},
        test=examples(EXAMPLES // 10, random),
        algorithm=td.FedAvg(),
        pace=td.Synchronous(cohort=10),
        local=td.Local(epochs=1, batch_size=10, lr=0.03),
        stop=td.Stop(trips=1000),
        evaluation=td.Evaluation(every_steps=20),
        workers=workers,
    )
    return result.client_trips


def seconds(workers: int) -> float:
    """Do the job in a process of its own, and return how long it took from start to end."""
    began = time.perf_counter()
    trips = run("yardstick.py", "--once", str(workers))["trips"]
    if trips != 1000:
        raise SystemExit(f"yardstick.py: the job has 1,000 trips, and {trips} were made")
    return time.perf_counter() - began


def part(results: dict[str, Any]) -> str:
    """Return the results as a part of docs/performance.md."""
    rows = [["1,000 trips of logistic regression", "seconds"]]
    rows += [[f"ours, {variant}, here", f"{each:.1f}"] for variant, each in results["seconds"].items()]
    rows += [[f"{name}, published", str(each)] for name, each in results["published"].items()]
    said = sentence(results["machine"], checked=True)
    return f"{table(rows)}\n\n*Rounds: {results['rounds']}, the median. {said}*"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--once", type=int, metavar="WORKERS", help="do the job in this process, and no more")
    given = parser.parse_args()
    if given.once is not None:
        print(json.dumps({"trips": train(given.once)}))
        return
    machine, quiet = Machine(), Quiet()
    found: dict[str, list[float]] = {variant: [] for variant in WORKERS}
    for _ in range(given.rounds):
        for variant, workers in WORKERS.items():
            found[variant].append(seconds(workers))
    ours = {variant: round(statistics.median(each), 1) for variant, each in found.items()}
    results = {
        "machine": machine.description(), "rounds": given.rounds, "seconds": ours, "published": PUBLISHED,
    }  # fmt: skip
    print(part(results))
    quiet.write("yardstick", results)


if __name__ == "__main__":
    main()
