"""FedProx with any pace: the gradient plus mu (x - x_start), and the mean of late uploads too."""

import pytest
import torch
from problem import BUFFER, LOCAL_LR, LOCAL_STEPS, X0, assert_same, gradient, run_package, schedule

import tardigrad as td


def naive(lr, mu, s):
    models, buffer = [X0], []
    for arrival in schedule():
        if not arrival.accepted:
            continue
        start = y = models[arrival.start_version]
        for _ in range(LOCAL_STEPS):
            y = y - LOCAL_LR * (gradient(arrival.client, y) + mu * (y - start))
        buffer.append(s(arrival.staleness) * (start - y))
        if len(buffer) == BUFFER:
            models.append(models[-1] - lr * sum(buffer) / BUFFER)
            buffer = []
    return models


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("law", ["constant", "linear"])
def test_fedprox_takes_late_uploads(law, dtype):
    models, _ = run_package(td.FedProx(lr=0.8, mu=0.7, staleness=law), dtype)
    s = {"constant": lambda tau: 1.0, "linear": lambda tau: 1 / (1 + tau)}[law]
    assert_same(models, naive(0.8, 0.7, s), dtype)


def test_a_config_without_a_pace_works_in_rounds():
    assert td.Config(algorithm="fedprox").resolved(50).pace == td.Synchronous(cohort=10)
