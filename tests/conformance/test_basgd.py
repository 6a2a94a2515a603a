"""BASGD (Yang, Li): a robust mean of the means of buckets, when no bucket is empty."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from problem import CLIENTS, assert_same, naive_models, run_package, schedule

import tardigrad as td
from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Member, Received, Upload


def naive(lr, buckets, robust):
    """Lists of everything that came since the last move, by bucket."""
    came = [[] for _ in range(buckets)]
    known = []

    def move(x, buffer):
        ((arrival, _, delta),) = buffer
        if arrival.client not in known:
            known.append(arrival.client)
        came[known.index(arrival.client) % buckets].append(delta)
        if not all(came):
            return x
        means = np.array([sum(deltas) / len(deltas) for deltas in came])
        for deltas in came:
            deltas.clear()
        return x - lr * robust(means)

    return naive_models(move, size=1, bound=None)


def trimmed(means):
    """Without the smallest and the largest of every coordinate."""
    return np.sort(means, axis=0)[1:-1].mean(axis=0)


CASES = {
    "median of 3": (td.BASGD(lr=0.8, buckets=3), 3, lambda means: np.median(means, axis=0)),
    "median of 4": (td.BASGD(lr=0.8, buckets=4), 4, lambda means: np.median(means, axis=0)),
    "trimmed mean of 5": (td.BASGD(lr=0.8, buckets=5, mean=td.TrimmedMean(fraction=0.2)), 5, trimmed),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_basgd_follows_the_paper(case, dtype):
    algorithm, buckets, robust = CASES[case]
    models, _ = run_package(algorithm, dtype, size=1, bound=None)
    assert_same(models, naive(0.8, buckets, robust), dtype)
    moves = sum(bool((a != b).any()) for a, b in pairwise(models))
    assert 2 < moves < len(schedule(1, None)) / 2


def arrives(aggregator, client, value=1.0):
    upload = Upload({"delta": torch.full((2,), value)}, 1, 1, 0.0)
    received = Received(upload, Member(0, 0, 1.0, 1.0), torch.zeros(2), client)
    aggregator.algorithm.step(aggregator.state, [received], 0)


def aggregator_of_three():
    return Aggregator(td.BASGD(buckets=3, lr=1.0), torch.zeros(2), Situation(population=3))


def test_one_malicious_client_spoils_one_bucket_however_often_it_comes():
    aggregator = aggregator_of_three()
    state = aggregator.state
    for _ in range(50):
        arrives(aggregator, "0", -1e6)
    arrives(aggregator, "1", 1.0)
    assert torch.equal(state["model"], torch.zeros(2))
    arrives(aggregator, "2", float("nan"))  # does not count
    arrives(aggregator, "2", 3.0)
    assert torch.equal(state["model"], torch.tensor([-1.0, -1.0]))
    assert not state["buckets"].any()
    assert not state["counts"].any()


@pytest.mark.parametrize("names", [["3", "6", "9"], ["ann", "bob", "eve"], ["site-a", "site-b", "site-c"]])
def test_no_bucket_stays_empty_whatever_the_names_of_the_clients(names):
    aggregator, resumed = aggregator_of_three(), aggregator_of_three()
    for name in [names[0], names[1], names[0]]:
        arrives(aggregator, name)
    tensors, document = aggregator.snapshot()
    resumed.restore(dict(tensors), document)
    for name in [names[1], names[2]]:
        assert not resumed.state["model"].any()
        arrives(resumed, name)
    assert torch.equal(resumed.state["model"], torch.tensor([-1.0, -1.0]))


def test_more_buckets_than_clients_are_refused():
    with pytest.raises(td.ConfigError, match=f"algorithm.buckets: {CLIENTS} clients cannot fill 10 buckets"):
        run_package(td.BASGD(), torch.float32, size=1)
