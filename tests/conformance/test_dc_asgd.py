"""DC-ASGD (Zheng et al.): delta + lambda delta * delta * (x - x_start), lambda constant or adaptive."""

import numpy as np
import pytest
import torch
from problem import SIZE, assert_same, naive_models, run_package

import tardigrad as td


def naive(lr, strength, decay, size, s=lambda tau: 1.0):
    seen = []

    def move(x, buffer):
        total = np.zeros(SIZE)
        for arrival, start, delta in buffer:
            seen.append(delta)
            factor = strength
            if decay is not None:
                past = [(1 - decay) * decay ** (len(seen) - 1 - k) * g**2 for k, g in enumerate(seen)]
                factor = strength / np.sqrt(sum(past) + 1e-7)
            total += s(arrival.staleness) * (delta + factor * delta**2 * (x - start))
        return x - lr * total / size

    return naive_models(move, size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("decay", [None, 0.0, 0.9])
def test_dc_asgd_follows_the_paper(decay, size, dtype):
    settings = {"adaptive": False} if decay is None else {"decay": decay}
    algorithm = td.DCASGD(lr=0.2, compensation=0.7, **settings)
    models, _ = run_package(algorithm, dtype, size=size)
    assert_same(models, naive(0.2, 0.7, decay, size), dtype)


def test_a_staleness_law():
    algorithm = td.DCASGD(lr=0.2, compensation=0.7, adaptive=False, staleness="polynomial")
    models, _ = run_package(algorithm, torch.float64, size=2)
    assert_same(models, naive(0.2, 0.7, None, 2, s=lambda tau: (1 + tau) ** -0.5), torch.float64)


def test_without_compensation_it_is_fedbuff():
    ours, _ = run_package(td.DCASGD(lr=0.2, compensation=0.0), torch.float64)
    theirs, _ = run_package(td.FedBuff(lr=0.2, staleness="constant"), torch.float64)
    assert_same(ours, theirs, torch.float64)


@pytest.mark.parametrize(("dtype", "broadcast"), [(torch.float32, "bfloat16"), (torch.bfloat16, "float32")])
def test_a_fresh_upload_is_not_corrected_although_its_start_was_rounded(dtype, broadcast):
    torch.manual_seed(0)
    module, x, y = torch.nn.Linear(6, 3, dtype=dtype), torch.randn(40, 6, dtype=dtype), torch.arange(40) % 3
    given = {
        "model": module, "clients": {"a": (x, y)}, "test": (x, y), "broadcast": broadcast,
        "buffer": {"size": 1}, "pace": {"kind": "asynchronous", "concurrency": 1}, "stop": {"trips": 12},
    }  # fmt: skip
    ours = td.run(algorithm=td.DCASGD(lr=0.5, compensation=5.0), **given)
    plain = td.run(algorithm=td.FedBuff(lr=0.5, staleness="constant"), **given)
    assert ours.steps == plain.steps == 12
    assert all(torch.equal(ours.model[name], plain.model[name]) for name in plain.model)
