"""Momentum approximation next to EMA momentum in FedBuff: time per step, early and late, and vectors kept.

python benchmarks/momentum_approximation.py --size 1000000 --bound 20 --steps 5000

A step is K = 10 uploads added up and the model moved. The methods take turns, step by step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import torch

from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.algorithms.fedbuff import FedBuff
from tardigrad.core.outcomes import Accepted, Ticket
from tardigrad.core.momentum import EMA
from tardigrad.core.momentum_approximation import Approximation, LightApproximation
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Upload

BUFFER = 10
WARM = 40  # steps that are not counted: the window fills, memory is touched for the first time


def deliveries(step: int, bound: int, random: np.random.Generator) -> list[Accepted]:
    """A buffer of half-normal staleness, a third of the bound on average."""
    drawn = np.abs(random.normal(scale=0.4 * bound, size=BUFFER)).astype(int)
    return [
        Accepted(
            Ticket(trip=BUFFER * step + n, client=n, version=step - staleness, time=0.0), time=0.0,
            version=step, weight=(1 + staleness) ** -0.5, mass=1.0, closes=n == BUFFER - 1,
        )
        for n, staleness in enumerate(np.minimum(drawn, min(step, bound)).tolist())
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", type=int, default=1_000_000, help="parameters of the model")
    parser.add_argument("--bound", type=int, default=20, help="staleness bound")
    parser.add_argument("--steps", type=int, default=5000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    random = np.random.default_rng(0)
    model = torch.zeros(given.size)
    uploads = [
        Upload({"delta": 1e-3 * torch.randn(given.size, generator=generator)}, examples=1, steps=1, loss=0.0)
        for _ in range(BUFFER)
    ]
    situation = Situation(population=1000, buffer=BUFFER, staleness_bound=given.bound)
    momenta = {"ema": EMA(), "approximation": Approximation(), "light": LightApproximation()}
    methods = {name: Aggregator(FedBuff(momentum=m), model, situation) for name, m in momenta.items()}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for step in range(given.steps):
        buffer = deliveries(step, given.bound, random)
        for name, aggregator in methods.items():
            began = time.perf_counter()
            for delivery, upload in zip(buffer, uploads):
                aggregator.add(delivery, upload, model)
            aggregator.step()
            seconds[name].append(time.perf_counter() - began)

    part = max(1, (given.steps - WARM) // 10)
    first, last = slice(WARM, WARM + part), slice(-part, None)
    result: dict[str, object] = {"size": given.size, "bound": given.bound, "steps": given.steps}
    print(f"{'':15}{'ms a step':^20}{'times ema':^20}{'vectors':>10}")
    print(f"{'method':15}{'early':>10}{'late':>10}{'early':>10}{'late':>10}{'kept':>10}")
    for name, aggregator in methods.items():
        times = {
            f"{word}_ms": 1e3 * statistics.median(seconds[name][when])
            for word, when in (("early", first), ("late", last))
        }
        ratios = {  # of neighbours in time, so that a busy machine does not matter
            f"{word}_times_ema": statistics.median(
                one / other for one, other in zip(seconds[name][when], seconds["ema"][when])
            )
            for word, when in (("early", first), ("late", last))
        }
        numbers = sum(v.numel() for v in aggregator.state.values() if isinstance(v, torch.Tensor))
        row = times | ratios | {"vectors": numbers / given.size}  # the model is one of them
        print(f"{name:15}" + "".join(f"{value:10.2f}" for value in row.values()))
        result[name] = {word: round(value, 3) for word, value in row.items()}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
