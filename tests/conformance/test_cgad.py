"""CGAD (Shah, Sun): Adam, whose uploads are scaled by exp(-a tau) times a cosine gate of their age."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from problem import assert_same, naive_models, run_package, schedule

import tardigrad as td


def gated(tau, a, cutoff):
    return math.exp(-a * tau) * math.cos(math.pi * min(tau, cutoff) / (2 * cutoff)) ** 2


def naive(lr, beta1, beta2, epsilon, a, cutoff, size):
    seen = []

    def average(values, beta):
        """Adam's moment, and its correction of the bias."""
        t = len(values)
        return sum((1 - beta) * beta ** (t - 1 - k) * v for k, v in enumerate(values)) / (1 - beta**t)

    def move(x, buffer):
        seen.append(sum(gated(arrival.staleness, a, cutoff) * delta for arrival, _, delta in buffer) / size)
        root = np.sqrt(average([g * g for g in seen], beta2))
        return x - lr * average(seen, beta1) / (root + epsilon)

    return naive_models(move, size, bound=None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 3])
def test_cgad_is_adam_on_gated_uploads(size, dtype):
    law = td.CosineGate(a=0.05, cutoff=9)
    algorithm = td.CGAD(lr=0.02, beta1=0.8, beta2=0.95, adaptivity=1e-3, staleness=law)
    models, _ = run_package(algorithm, dtype, size=size, bound=None)
    assert_same(models, naive(0.02, 0.8, 0.95, 1e-3, 0.05, 9, size), dtype)
    stale = [arrival.staleness for arrival in schedule(size, None)]
    assert size > 1 or max(stale) > 9, "some uploads are past the cutoff"


def test_default_settings():
    models, _ = run_package(td.CGAD(), torch.float64, size=1, bound=None)
    assert_same(models, naive(0.01, 0.9, 0.99, 1e-8, 0.1, 16, 1), torch.float64)


def test_fresh_uploads_make_it_adam():
    """Against torch's own Adam, in rounds without staleness."""
    rounds = {"pace": td.Synchronous(cohort=7), "delay": td.ConstantDelay(), "stop": td.Stop(steps=12)}
    ours, _ = run_package(td.CGAD(lr=0.03), torch.float64, size=None, bound=None, **rounds)
    x = torch.nn.Parameter(torch.tensor(ours[0]))
    adam = torch.optim.Adam([x], lr=0.03, betas=(0.9, 0.99), eps=1e-8)
    plain, _ = run_package(
        td.FedAvg(), torch.float64, size=None, bound=None, **rounds | {"stop": td.Stop(steps=1)}
    )
    x.grad = torch.tensor(plain[0] - plain[1])
    adam.step()
    np.testing.assert_allclose(ours[1], x.detach(), rtol=1e-9)


@pytest.mark.parametrize(("tau", "weight"), [(0, 1.0), (8, 0.0), (9, 0.0)])
def test_the_gate_is_1_for_fresh_uploads_and_0_from_the_cutoff_on(tau, weight):
    assert td.CosineGate(a=0.3, cutoff=8)(tau) == weight


def test_the_gate_falls():
    law = td.CosineGate(a=0.0, cutoff=8)
    weights = [law(tau) for tau in range(10)]
    assert all(later < earlier for earlier, later in pairwise(weights[:9]))


def test_the_gate_may_be_given_by_its_name():
    config = td.Config(algorithm={"kind": "cgad", "staleness": "cosine_gate"})
    assert config.algorithm == td.CGAD()
    with pytest.raises(td.ConfigError, match=r"algorithm\.staleness"):
        td.Config(algorithm={"kind": "cgad", "staleness": "polynomial"})
