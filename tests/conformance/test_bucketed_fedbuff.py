"""Bucketed FedBuff: a robust mean of the means of the last B buffers."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from problem import BUFFER, assert_same, naive_models, run_package, schedule

import tardigrad as td
from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.core.situation import Situation
from tardigrad.core.upload import WeightedSum


def naive(lr, buckets, robust, s):
    means = []

    def move(x, buffer):
        means.append(sum(s(arrival.staleness) * delta for arrival, _, delta in buffer) / len(buffer))
        if len(means) % buckets:
            return x
        return x - lr * robust(np.array(means[-buckets:]))

    return naive_models(move)


@pytest.mark.parametrize(("kind", "size"), [("basgd", 1), ("bucketed_fedbuff", 2)])
def test_buckets_that_a_run_never_fills_are_refused(kind, size):
    config = td.Config(
        data=td.Digits(partition=td.IID(clients=20)),
        algorithm={"kind": kind, "buckets": 9},
        buffer=td.Buffer(size=size),
        stop=td.Stop(trips=8 * size),
    )
    with pytest.raises(td.ConfigError, match=r"9 buckets .* 8 versions at most: it would never move"):
        td.run(config, progress=False)


def trimmed(means):
    """Without the smallest and the largest of every coordinate."""
    return np.sort(means, axis=0)[1:-1].mean(axis=0)


def middle(means):
    return np.median(means, axis=0)


def plainly(staleness):
    return 1.0


LATE = td.Polynomial(a=0.5)
CASES = {
    "median of 2": (td.BucketedFedBuff(lr=0.8, buckets=2), 2, middle, plainly),
    "median of 3": (
        td.BucketedFedBuff(lr=0.8, buckets=3, staleness=LATE), 3, middle, lambda late: (1 + late) ** -0.5,
    ),
    "trimmed mean of 4": (
        td.BucketedFedBuff(lr=0.8, buckets=4, mean=td.TrimmedMean(fraction=0.25)), 4, trimmed, plainly,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_the_model_moves_by_the_robust_mean_of_the_last_buffers(case, dtype):
    algorithm, buckets, robust, s = CASES[case]
    models, _ = run_package(algorithm, dtype)
    assert_same(models, naive(0.8, buckets, robust, s), dtype)
    accepted = sum(arrival.accepted for arrival in schedule())
    moves = sum(bool((a != b).any()) for a, b in pairwise(models))
    assert moves == accepted // BUFFER // buckets > 2


def test_a_malicious_upload_spoils_one_buffer_and_one_that_is_not_finite_does_not_count():
    aggregator = Aggregator(td.BucketedFedBuff(buckets=3), torch.zeros(2), Situation(population=9))
    moved = []
    for total in (2.0, float("nan"), -1e6, 6.0, 8.0):
        buffer = WeightedSum({"delta": torch.full((2,), total)}, (), 0, divisor=2.0)
        moved.append(aggregator.algorithm.step(aggregator.state, buffer)["moved"])
    assert moved == [0.0, 0.0, 0.0, 1.0, 0.0]
    assert torch.equal(aggregator.state["model"], torch.tensor([-1.0, -1.0]))
    assert aggregator.state["filled"] == 1
