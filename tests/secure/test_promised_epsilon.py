"""The epsilon of a policy is worked out from its noise."""

import math

import pytest
from scipy.stats import norm

import tardigrad as td
from tardigrad.core.participation import Limits
from tardigrad.core.staleness import Constant
from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.privacy.blt import Toeplitz
from tardigrad.secure.masked_grid import MaskedGridLayer
from tardigrad.secure.policy import CodedVector, Facts, HelperNoise, Policy
from tardigrad.secure.promised_epsilon import MOST_DELTA, check_delta, check_epsilon, epsilon_of

IDENTITY = "A" * 43 + "="
DELTA = 1e-6


def policy_of(epsilon, multiplier=2.0, **changes):
    noise = {
        "mechanism": td.Independent(), "deviation": multiplier * 50.0 * 256, "steps": 10, "allowed": 10,
        "noise_multiplier": multiplier, "epsilon": epsilon, "delta": DELTA, "seed": None, "toeplitz": None,
    }  # fmt: skip
    fields = {
        "run": "r", "settings": "{}", "vectors": (CodedVector(name="delta", length=9),), "bits": 32,
        "largest": 100, "step": 0.01, "norm": 50.0, "denominator": 256, "staleness": Constant(), "batch": 4,
        "least_clients": 2, "limits": Limits(3, 2), "facts": Facts(population=9), "start": "",
        "helpers": (IDENTITY,), "server": IDENTITY,
    }  # fmt: skip
    of_noise = {name: value for name, value in changes.items() if name in noise}
    others = {name: value for name, value in changes.items() if name not in noise}
    return Policy(**fields | others, noise=HelperNoise(**noise | of_noise))


def delta_of(epsilon, mu):
    """The exact delta of a Gaussian mechanism (Balle and Wang)."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def test_epsilon_is_that_of_one_gaussian_release_of_all_contributions():
    found = epsilon_of(policy_of(1.0))
    assert delta_of(found, math.sqrt(3) / 2.0) == pytest.approx(DELTA, rel=1e-6)


def test_promise_that_the_noise_keeps_is_accepted_and_a_smaller_one_is_refused():
    true = epsilon_of(policy_of(1.0))
    check_epsilon(policy_of(true))
    check_epsilon(policy_of(1.1 * true))
    with pytest.raises(ConfigError, match=r"promises an epsilon of 1, but its noise gives [34]\."):
        check_epsilon(policy_of(1.0))


@pytest.mark.parametrize(
    "noise", [td.BLT(), td.Tree(), td.Tree(restart_every=3), td.Independent()], ids=lambda noise: str(noise)
)
@pytest.mark.parametrize("multiplier", [0.5, 40.0])
def test_policies_of_private_runs_promise_what_their_noise_gives(noise, multiplier):
    config = td.Config(
        data=td.Digits(partition=td.IID(clients=40)), model=td.MLP(hidden=(4,)), buffer=td.Buffer(size=4),
        pace=td.Asynchronous(concurrency=8), stop=td.Stop(steps=8), secure=td.Secure(),
        privacy=td.Participation(
            noise=noise, noise_multiplier=multiplier, delta=DELTA, clip=0.5, participations=2, separation=3
        ),
    )  # fmt: skip
    (layer,) = (one for one in build(config).aggregator.layers if isinstance(one, MaskedGridLayer))
    policy = layer._helpers.policy
    check_epsilon(policy)
    assert epsilon_of(policy) == pytest.approx(policy.noise.epsilon, rel=1e-4)
    lie = policy.noise.model_copy(update={"epsilon": 0.99 * policy.noise.epsilon})
    with pytest.raises(ConfigError, match="promises an epsilon of"):
        check_epsilon(policy.model_copy(update={"noise": lie}))


def test_claimed_multiplier_does_not_replace_noise():
    true = epsilon_of(policy_of(1.0))
    with pytest.raises(ConfigError, match="the server has worked it out wrongly, or lies"):
        check_epsilon(policy_of(true, deviation=50.0 * 256))


@pytest.mark.parametrize("change", [{"limits": None}, {"norm": None}], ids=["any number of times", "no clip"])
def test_noise_without_limits_or_clip_promises_nothing(change):
    assert epsilon_of(policy_of(1e6, **change)) == math.inf
    with pytest.raises(ConfigError, match="its noise gives inf"):
        check_epsilon(policy_of(1e6, **change))


def test_policy_that_promises_nothing_is_not_checked():
    check_epsilon(policy_of(1.0).model_copy(update={"noise": None}))
    check_epsilon(policy_of(1.0, seed=3))


def test_absurd_number_of_steps_is_refused_before_anything_is_computed():
    with pytest.raises(ConfigError, match="steps; at most"):
        epsilon_of(policy_of(1.0, steps=2**40, allowed=2**40))


@pytest.mark.parametrize("constants", [
    Toeplitz((0.984375,), (0.984375,)), Toeplitz((0.5,), (0.875,)), Toeplitz((-0.5,), (-0.25,)),
    Toeplitz((1.5,), (-0.25,)), Toeplitz((0.5,), (-2.0,)),
    Toeplitz((0.5, 0.25), (-0.25,)), Toeplitz((0.1,), (-0.25,)),
], ids=str)  # fmt: skip
def test_noise_whose_correlations_would_cancel_the_worst_client_is_refused(constants):
    policy = policy_of(1e9, mechanism=td.BLT(), toeplitz=constants)
    with pytest.raises(ConfigError, match="constants of the policy's BLT noise"):
        check_epsilon(policy)


def test_epsilon_at_a_large_delta_is_no_promise():
    check_delta(policy_of(1.0, delta=MOST_DELTA))
    check_delta(policy_of(1.0).model_copy(update={"noise": None}))
    assert epsilon_of(policy_of(1.0, delta=0.9)) < 1e-3
    with pytest.raises(ConfigError, match=r"at a delta of 0\.9; with a delta above 0\.001"):
        check_delta(policy_of(1.0, delta=0.9))
