"""QAFeL: a buffer of encoded uploads, and a hidden state that follows the model by encoded differences.

server: x = x - eta_g (1/K) sum of Q_c(delta);  q = Q_s(x - x_hat);  x_hat = x_hat + q
client: starts from x_hat
"""

import numpy as np
import pytest
import torch
from problem import BUFFER, LOCAL_LR, LOCAL_STEPS, X0, assert_same, gradient, run_package, schedule

import tardigrad as td
from event_records import records
from tardigrad.experiments.runs.simulation_assembly import build

LR = 0.7


def sign(vector):
    return np.abs(vector).mean() * np.where(vector >= 0, 1.0, -1.0)


def largest(vector, count):
    kept = np.argsort(-np.abs(vector), kind="stable")[:count]
    return np.where(np.isin(np.arange(len(vector)), kept), vector, 0.0)


def nearest_bfloat16(vector):
    """Eight bits of mantissa, to the nearest."""
    fraction, exponent = np.frexp(vector)
    return np.ldexp(np.round(fraction * 2**8), exponent - 8)


def naive(upload, follow):
    """`upload(delta)`: what arrives of it; `follow(x_hat, x)`: the next hidden state."""
    models, hidden, buffer = [X0], [follow(None, X0)], []
    for arrival in schedule():
        if not arrival.accepted:
            continue
        start = hidden[arrival.start_version]
        y = start.copy()
        for _ in range(LOCAL_STEPS):
            y = y - LOCAL_LR * gradient(arrival.client, y)
        buffer.append(upload(start - y) / np.sqrt(1 + arrival.staleness))
        if len(buffer) == BUFFER:
            models.append(models[-1] - LR * sum(buffer) / BUFFER)
            hidden.append(follow(hidden[-1], models[-1]))
            buffer = []
    return models, hidden


def differences(encode):
    return lambda hidden, x: x if hidden is None else hidden + encode(x - hidden)


PLAIN = td.Float32()
CASES = {
    "sign": (PLAIN, lambda v: v, td.DifferenceBroadcast(encoding=td.Sign()), differences(sign)),
    "largest three": (
        PLAIN, lambda v: v, td.DifferenceBroadcast(encoding=td.TopK(share=0.5)),
        differences(lambda v: largest(v, 3)),
    ),
    "encoded both ways": (
        td.TopK(share=0.5, error_feedback=False), lambda v: largest(v, 3),
        td.DifferenceBroadcast(encoding=td.Sign()), differences(sign),
    ),
    "bfloat16": (PLAIN, lambda v: v, td.BFloat16Broadcast(), lambda _, x: nearest_bfloat16(np.float32(x))),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_hidden_state_follows_the_model_as_in_the_paper(case):
    encoding, upload, broadcast, follow = CASES[case]
    models, simulation = run_package(td.FedBuff(lr=LR), torch.float32, encoding=encoding, broadcast=broadcast)
    expected, hidden = naive(upload, follow)
    assert_same(models, expected, torch.float32)
    shared = simulation.aggregator.broadcast()["model"].double().numpy()
    assert np.abs(shared - hidden[-1]).max() < 2e-5 * np.abs(hidden[-1]).max()
    assert np.abs(shared - expected[-1]).max() > 1e-4, "this encoding loses something"


def test_8_bit_differences_are_multiples_of_the_scale_and_off_by_less_than_one():
    config = td.Config(
        algorithm=td.FedBuff(), data=td.Digits(partition=td.IID(clients=6)), model=td.MLP(hidden=(8,)),
        broadcast=td.DifferenceBroadcast(encoding=td.Int8(block="vector")), stop=td.Stop(trips=40),
        pace=td.Asynchronous(concurrency=4), buffer=td.Buffer(size=4),
    )  # fmt: skip
    simulation, before, steps = build(config), None, 0
    for events in records(simulation.engine.run()):
        if any(event["event"] == "step" for event in events):
            x = simulation.aggregator.state["model"].double().numpy()
            shared = simulation.aggregator.broadcast()["model"].double().numpy()
            scale = np.abs(x - before).max() / 127
            assert np.abs(x - shared).max() <= scale * (1 + 1e-3)
            codes = (shared - before) / scale
            assert np.abs(codes - np.round(codes)).max() < 1e-2  # the sum is in float32
            assert len(np.unique(np.round(codes))) > 20
            steps += 1
        before = simulation.aggregator.broadcast()["model"].double().numpy()
    assert steps == 10
