"""Delayed Nesterov (Liu et al.), Algorithm 3."""

import numpy as np
import pytest
import torch
from problem import SIZE, assert_same, naive_models, run_package

import tardigrad as td


def naive(lr, beta, period, c, size, s=lambda tau: 1.0):
    """The whole history of deltas, from which the momentum is computed anew at every step."""
    deltas = []

    def move(x, buffer):
        deltas.append(sum(s(arrival.staleness) * delta for arrival, _, delta in buffer) / size)
        done = len(deltas) // period
        means = [sum(deltas[k * period : (k + 1) * period]) / period for k in range(done)]
        m = sum((beta ** (done - 1 - k) * mean for k, mean in enumerate(means)), np.zeros(SIZE))
        share = 1 - c * period + c if len(deltas) % period == 0 else c
        return x - lr * (share * beta * m + deltas[-1] / period)

    return naive_models(move, size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("period", "c"), [(4, 0.0), (4, 0.25), (5, 0.1), (1, 0.0)])
def test_delayed_nesterov_follows_the_paper(period, c, dtype):
    models, _ = run_package(td.DelayedNesterov(lr=0.3, beta=0.8, period=period, c=c), dtype, size=1)
    assert_same(models, naive(0.3, 0.8, period, c, 1), dtype)


def test_a_buffer_of_several_uploads_and_a_staleness_law():
    algorithm = td.DelayedNesterov(lr=0.3, beta=0.8, period=3, staleness="polynomial")
    models, _ = run_package(algorithm, torch.float64, size=2)
    assert_same(models, naive(0.3, 0.8, 3, 0.0, 2, s=lambda tau: (1 + tau) ** -0.5), torch.float64)


def test_n_steps_together_are_one_step_of_nesterovs_method():
    """Whatever c is: x moves by lr (beta m + D / N), if all uploads of the period are given."""
    random = torch.Generator().manual_seed(0)
    uploads = [torch.randn(5, generator=random, dtype=torch.float64) for _ in range(12)]
    for c in (0.0, 0.1, 0.25):
        algorithm = td.DelayedNesterov(lr=0.3, beta=0.8, period=4, c=c)
        state = algorithm.start(torch.zeros(5, dtype=torch.float64), None)
        x = m = torch.zeros(5, dtype=torch.float64)
        for k in range(3):
            for upload in uploads[4 * k : 4 * k + 4]:
                algorithm.step(state, td_sum(upload))
            mean = sum(uploads[4 * k : 4 * k + 4]) / 4
            before, m = m, 0.8 * m + mean
            x = x - 0.3 * (mean + 0.8 * (3 * c * before + (1 - 3 * c) * m))
            torch.testing.assert_close(state["model"], x)


def td_sum(delta):
    from tardigrad.core.upload import Member, WeightedSum

    return WeightedSum({"delta": delta}, (Member(0, 0, 1.0, 1.0),), 0, 1.0)


def test_c_is_at_most_the_inverse_of_the_period():
    with pytest.raises(td.ConfigError, match=r"c must be at most 1 / period \(0\.25\)"):
        td.Config(algorithm={"kind": "delayed_nesterov", "period": 4, "c": 0.3})


def test_a_period_of_no_float_is_refused():
    with pytest.raises(td.ConfigError, match=r"algorithm\.period: must be less than or equal to 1000000000"):
        td.Config(algorithm={"kind": "delayed_nesterov", "period": 10**400})
