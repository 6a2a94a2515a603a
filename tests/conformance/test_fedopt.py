"""FedAdam, FedAdaGrad and FedYogi: m averages the mean deltas, v their squares; v starts at 0."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from test_fedavg import DTYPES, PACES, assert_same, naive_rounds, run_rounds

import tardigrad as td


def average(beta, vectors):
    """beta x + (1 - beta) vector, from 0, written as one sum over all of the past."""
    return (1 - beta) * sum(beta ** (len(vectors) - 1 - s) * v for s, v in enumerate(vectors))


def adam(beta1, beta2, tau):
    def direction(means):
        return average(beta1, means) / (np.sqrt(average(beta2, [r**2 for r in means])) + tau)

    return direction


def adagrad(beta1, tau):
    def direction(means):
        return average(beta1, means) / (np.sqrt(sum(r**2 for r in means)) + tau)

    return direction


def yogi(beta1, beta2, tau):
    def direction(means):
        v = np.zeros_like(means[0])
        for r in means:
            v = v - (1 - beta2) * r**2 * np.sign(v - r**2)
        return average(beta1, means) / (np.sqrt(v) + tau)

    return direction


CASES = {
    "fedadam": (td.FedAdam(), adam(0.9, 0.99, 1e-3), 0.01),
    "fedadam, other settings": (
        td.FedAdam(lr=0.1, beta1=0.5, beta2=0.8, adaptivity=0.1), adam(0.5, 0.8, 0.1), 0.1,
    ),
    "fedadam, no memory": (td.FedAdam(beta1=0.0, beta2=0.0), adam(0.0, 0.0, 1e-3), 0.01),
    "fedadagrad": (td.FedAdaGrad(), adagrad(0.0, 1e-3), 0.01),
    "fedadagrad, other settings": (
        td.FedAdaGrad(lr=0.2, beta1=0.6, adaptivity=0.05), adagrad(0.6, 0.05), 0.2,
    ),
    "fedyogi": (td.FedYogi(), yogi(0.9, 0.99, 1e-3), 0.01),
    "fedyogi, other settings": (
        td.FedYogi(lr=0.1, beta1=0.5, beta2=0.8, adaptivity=0.1), yogi(0.5, 0.8, 0.1), 0.1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pace", ["by examples", "poisson"])
@pytest.mark.parametrize("case", CASES)
def test_rounds_follow_the_paper(case, pace, dtype):
    algorithm, direction, lr = CASES[case]
    models, rounds = run_rounds(algorithm, dtype, **PACES[pace])
    naive = naive_rounds(rounds, direction, lr, by_examples=pace == "by examples")
    assert_same(models, naive, dtype)


def test_fedadam_is_fedbuff_with_ema_and_adam_in_rounds():
    ours, _ = run_rounds(td.FedAdam(lr=0.05, beta1=0.6, beta2=0.9, adaptivity=0.01), torch.float32)
    parts = td.FedBuff(lr=0.05, momentum=td.EMA(beta=0.6), preconditioner=td.Adam(beta2=0.9, adaptivity=0.01))
    theirs, _ = run_rounds(parts, torch.float32)
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("kind", [td.FedAdam, td.FedAdaGrad, td.FedYogi])
@pytest.mark.parametrize(
    "bad", [{"lr": 0.0}, {"beta1": 1.0}, {"beta1": -0.1}, {"adaptivity": 0.0}, {"momentum": 0.9}]
)
def test_bad_settings_name_the_key(kind, bad):
    with pytest.raises(ValidationError) as caught:
        kind(**bad)
    assert [problem["loc"] for problem in caught.value.errors()] == [tuple(bad)]


@pytest.mark.parametrize(
    ("kind", "bad"),
    [(td.FedAdam, {"beta2": 1.0}), (td.FedYogi, {"beta2": -0.1}), (td.FedAdaGrad, {"beta2": 0.9})]
    + [(kind, {"v0": v0}) for kind in (td.FedYogi, td.Yogi) for v0 in (-1.0, 1e39)],
)
def test_bad_beta2_and_v0_are_named(kind, bad):
    with pytest.raises(ValidationError) as caught:
        kind(**bad)
    assert [problem["loc"] for problem in caught.value.errors()] == [tuple(bad)]


@pytest.mark.parametrize("algorithm", [td.FedAdam(), td.FedAdaGrad(), td.FedYogi()])
def test_asynchronous_pace_is_refused(algorithm):
    with pytest.raises(td.ConfigError, match=r"pace\.kind: .* works in rounds"):
        run_rounds(algorithm, torch.float32, pace=td.Asynchronous(concurrency=3))
