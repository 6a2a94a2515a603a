"""What noise costs a step, on one core. Prints JSON and a Markdown table.

python benchmarks/noise.py --dimension 1000000 --steps 40
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

from tardigrad.privacy.blt import BLT
from tardigrad.privacy.independent import Independent
from tardigrad.privacy.noise import Noise, Normal
from tardigrad.privacy.normal import Cryptographic, Seeded
from tardigrad.privacy.tree import Tree

KINDS: list[Noise] = [Independent(), BLT(), Tree()]
PLANNED = 2048
"""Steps that the run is planned for: the tree's memory depends on it."""


def measure(noise: Noise, normal: Normal, dimension: int, steps: int) -> dict[str, float]:
    """Milliseconds of drawing the noise and adding it to a sum."""
    state = noise.start(dimension, PLANNED, 1, 1)
    total = torch.zeros(dimension)
    milliseconds = []
    for _ in range(steps):
        began = time.perf_counter()
        total.add_(noise.draw(state, normal), alpha=0.5)
        milliseconds.append(1000 * (time.perf_counter() - began))
    memory = sum(value.nbytes for value in state.values() if isinstance(value, torch.Tensor))
    return {
        "mean_ms": round(statistics.mean(milliseconds), 1),
        "median_ms": round(statistics.median(milliseconds), 1),
        "worst_ms": round(max(milliseconds), 1),
        "state_mb": round(memory / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dimension", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()
    torch.set_num_threads(1)
    sources: dict[str, Normal] = {"cryptographic": Cryptographic(), "seeded": Seeded(0)}
    results = [
        {"noise": noise.kind, "normals": name} | measure(noise, normal, given.dimension, given.steps)
        for noise in KINDS
        for name, normal in sources.items()
    ]
    print(json.dumps({"dimension": given.dimension, "steps": given.steps, "results": results}))
    print()
    print("| " + " | ".join(results[0]) + " |")
    print("|" + " --- |" * len(results[0]))
    for row in results:
        print("| " + " | ".join(map(str, row.values())) + " |")


if __name__ == "__main__":
    main()
