"""FedBuff's Corollary 1: lr = K and a local lr of 1 / (K sqrt(T Q)), and late uploads count in full."""

import math

import pytest
import torch
from problem import BUFFER, LOCAL_STEPS, SCRIPT, X0, assert_same, gradient, run_package, schedule

import tardigrad as td
from tardigrad.core.situation import Situation

T = len(SCRIPT) // BUFFER


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_step_sizes_follow_from_the_corollary(scale, dtype):
    eta = scale / (BUFFER * math.sqrt(T * LOCAL_STEPS))
    models, buffer = [X0], []
    for arrival in schedule():
        if not arrival.accepted:
            continue
        start = y = models[arrival.start_version]
        for _ in range(LOCAL_STEPS):
            y = y - eta * gradient(arrival.client, y)
        buffer.append(start - y)
        if len(buffer) == BUFFER:
            models.append(models[-1] - sum(buffer))  # K times the mean
            buffer = []
    ours, _ = run_package(td.FedBuffCorollary(scale=scale), dtype)
    assert_same(ours, models, dtype)


def test_a_run_of_unknown_length_is_refused():
    with pytest.raises(td.ConfigError, match=r"stop\.steps: .* set stop\.steps"):
        td.FedBuffCorollary().start(torch.zeros(2), Situation(population=5, buffer=2))


def test_steps_that_the_corollary_does_not_allow_are_refused():
    """eta_g eta_l Q = scale sqrt(Q / T) is at most 1 / L."""
    situation = Situation(population=100, buffer=10, steps=50, local_steps=8)  # sqrt(Q / T) = 0.4
    td.FedBuffCorollary(scale=2.4, smoothness=1.0).start(torch.zeros(2), situation)
    for refused in (td.FedBuffCorollary(scale=2.6), td.FedBuffCorollary(smoothness=2.6)):
        with pytest.raises(td.ConfigError, match=r"algorithm\.scale: .* 8 local .* at most (1|0\.385) "):
            refused.start(torch.zeros(2), situation)
