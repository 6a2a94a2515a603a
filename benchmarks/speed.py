"""Our trips per second over a bare PyTorch loop: the same minibatch steps, no federation at all.

    python benchmarks/speed.py --rounds 5

One common job: 1,000 clients of 50 examples of 28 x 28, 47 classes, one local epoch, lr 0.1. Every variant is
measured in turn, several rounds, and the best of each is compared, so that a noisy machine is noisy for all.
"""

from __future__ import annotations

import argparse
import json
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
from torch import nn

import tardigrad as td
from tardigrad.experiments.run import build

CLIENTS, EXAMPLES, CLASSES = 1000, 50, 47


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, CLASSES))


def cnn() -> nn.Module:
    """0.88 million parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 768), nn.ReLU(), nn.Linear(768, CLASSES),
    )  # fmt: skip


JOBS = {  # model, batch size, trips measured at a time
    "MLP, batch 50": (mlp, 50, 1500),
    "MLP, batch 10": (mlp, 10, 600),
    "CNN, batch 50": (cnn, 50, 40),
}


def bare(make: type, batch: int, trips: int) -> float:
    """Trips per second of plain PyTorch: load a client, minibatch SGD, next client."""
    model, optimizer = make(), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    began = time.perf_counter()
    for trip in range(trips):
        x, y = DATA[trip % CLIENTS]
        order = torch.randperm(EXAMPLES)
        for part in order.split(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
    return trips / (time.perf_counter() - began)


class Ours:
    """A simulation that is warmed up and then driven for some trips at a time."""

    def __init__(self, make: type, batch: int, workers: int) -> None:
        config = td.Config(
            algorithm=td.FedBuff(lr=1.0),
            pace=td.Asynchronous(concurrency=1000),
            buffer=td.Buffer(size=10),
            local=td.Local(batch_size=batch, lr=0.01),
            stop=td.Stop(trips=10**9),
            evaluation=td.Evaluation(every_steps=10**9),
        )
        clients = dict(enumerate(DATA))
        self.simulation = build(config, model=make(), clients=clients, workers=workers)
        self._run = self.simulation.engine.run()

    def __call__(self, trips: int) -> float:
        began, done = time.perf_counter(), 0
        while done < trips:
            done += sum(event["event"] == "upload" for event in next(self._run))
        return trips / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    table = {}
    for job, (make, batch, trips) in JOBS.items():
        ours = {f"{w or 1} worker{'s' * (w > 1)}": Ours(make, batch, w) for w in (0, 2)}
        for run in ours.values():
            run(max(trips, 3000 if make is mlp else 10))  # past tracing
        best = dict.fromkeys(["bare", *ours], 0.0)
        for _ in range(given.rounds):
            best["bare"] = max(best["bare"], bare(make, batch, trips))
            for name, run in ours.items():
                best[name] = max(best[name], run(trips))
        for run in ours.values():
            run.simulation.executor.close()
        table[job] = {name: round(rate / best["bare"], 2) for name, rate in best.items()} | {
            "bare trips/s": round(best["bare"])
        }
        print(job, table[job], flush=True)
    print(json.dumps(table))


torch.manual_seed(0)
DATA = [(torch.randn(EXAMPLES, 1, 28, 28), torch.randint(CLASSES, (EXAMPLES,))) for _ in range(CLIENTS)]

if __name__ == "__main__":
    main()
