"""Ringmaster ASGD, Algorithm 4 (staleness below R), and Rennala SGD (fresh uploads alone)."""

import pytest
import torch
from problem import BUFFER, assert_same, naive_models, run_package, schedule

import tardigrad as td


def naive(lr, size, bound):
    return naive_models(lambda x, buffer: x - lr * sum(d for *_, d in buffer) / size, size, bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ringmaster_refuses_what_is_as_old_as_the_threshold(dtype):
    models, simulation = run_package(td.Ringmaster(lr=0.3), dtype, size=None, bound=4)
    assert_same(models, naive(0.3, 1, 4), dtype)
    assert simulation.engine.refused["too stale"] == sum(not one.accepted for one in schedule(1, 4)) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rennala_takes_only_fresh_uploads(dtype):
    models, simulation = run_package(td.Rennala(lr=0.8), dtype, size=BUFFER, bound=None)
    assert_same(models, naive(0.8, BUFFER, 0), dtype)
    assert simulation.engine.refused["too stale"] == sum(not one.accepted for one in schedule(BUFFER, 0)) > 0


def test_bounds_of_a_config_that_has_none():
    bounds = {kind: td.Config(algorithm=kind).resolved(50).buffer for kind in ("ringmaster", "rennala")}
    assert (bounds["ringmaster"].size, bounds["ringmaster"].staleness_bound) == (1, 19)
    assert (bounds["rennala"].size, bounds["rennala"].staleness_bound) == (10, 0)


def test_rennala_refuses_late_uploads_whatever_the_config_says():
    for bound in (0, None):
        td.Config(algorithm="rennala", buffer=td.Buffer(staleness_bound=bound)).resolved(50)
    with pytest.raises(td.ConfigError, match=r"buffer\.staleness_bound: rennala .* not 7; leave it out"):
        td.Config(algorithm="rennala", buffer=td.Buffer(staleness_bound=7)).resolved(50)
