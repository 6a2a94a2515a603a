"""Accounting: known values, each number from the other three, and monotonicity."""

import itertools
import math

import pytest

from tardigrad.errors import ConfigError
from tardigrad.privacy.accounting import ByParticipation, BySampling, solve
from tardigrad.privacy.blt import BLT
from tardigrad.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from tardigrad.privacy.independent import Independent
from tardigrad.privacy.poisson import poisson_delta, poisson_epsilon, poisson_sigma
from tardigrad.privacy.tree import Tree

DELTA = 1e-7


def by_renyi(mu, delta):
    """Epsilon of one Gaussian release by Renyi divergences, which is looser than the exact one."""
    return poisson_epsilon(1 / mu, 1.0, 1, delta, "rdp")


# -- known values --------------------------------------------------------------------------------


def test_tree_epsilon_with_one_participation():
    mode = ByParticipation(Tree(), 1, 1)
    assert mode.epsilon(8.0, 2048, DELTA) == pytest.approx(2.130939, abs=1e-4)
    assert by_renyi(mode.mu(8.0, 2048), DELTA) == pytest.approx(2.268136, abs=1e-4)


@pytest.mark.parametrize(
    ("participations", "separation", "epsilon", "multiplier"),
    [(4, 512, 5.349345, 19.59249), (8, 256, 9.797662, 33.22068)],
)
def test_tree_epsilon_with_several_participations(participations, separation, epsilon, multiplier):
    mode = ByParticipation(Tree(), participations, separation)
    assert mode.epsilon(8.0, 2048, DELTA) == pytest.approx(epsilon, abs=1e-4)
    assert mode.noise_multiplier(2.0, 2048, DELTA) == pytest.approx(multiplier, abs=1e-4)


@pytest.mark.parametrize(("participations", "separation", "epsilon"), [(4, 512, 4.368163), (1, 1, 2.056491)])
def test_tree_epsilon_with_restarts(participations, separation, epsilon):
    mode = ByParticipation(Tree(restart_every=512), participations, separation)
    assert by_renyi(mode.mu(8.0, 2048), DELTA) == pytest.approx(epsilon, abs=1e-4)


def test_blt_needs_less_noise_than_the_tree():
    limits = (2048, 1, 2048)
    blt = BLT().sensitivity(*limits) * math.sqrt(BLT().prefix_variance(2048, *limits))
    tree = Tree().sensitivity(*limits) * math.sqrt(Tree().prefix_variance(2047, *limits))
    assert tree / blt == pytest.approx(2.48, abs=0.01)


# -- an independent implementation ---------------------------------------------------------------


def test_sampling_rate_of_one_is_the_gaussian_mechanism():
    exact = gaussian_epsilon(math.sqrt(30) / 9, 1e-6)
    assert poisson_epsilon(9.0, 1.0, 30, 1e-6, "pld") == pytest.approx(exact)
    assert poisson_epsilon(9.0, 1 - 1e-9, 30, 1e-6, "pld") == pytest.approx(exact, abs=1e-3)
    assert ByParticipation(Independent(), 30, 1).epsilon(9.0, 30, 1e-6) == pytest.approx(exact)
    assert exact < by_renyi(math.sqrt(30) / 9, 1e-6) < 1.2 * exact


# -- edges ---------------------------------------------------------------------------------------


def test_epsilon_is_infinite_without_noise_and_zero_without_steps():
    assert poisson_epsilon(0.0, 0.1, 1, DELTA) == math.inf
    assert poisson_epsilon(1.0, 0.1, 0, DELTA) == 0
    assert poisson_epsilon(1.0, 0.0, 10, DELTA) == 0
    mode = ByParticipation(Tree(), 1, 1)
    assert mode.epsilon(0.0, 10, DELTA) == math.inf
    assert mode.epsilon(1.0, 10, DELTA, after=0) == 0
    assert gaussian_epsilon(0.0, DELTA) == 0
    assert gaussian_delta(math.inf, 1.0) == 1
    assert gaussian_epsilon(1e-12, DELTA) == 0  # so little that even delta alone covers it


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: gaussian_epsilon(1.0, 0.0), "delta = 0"),
        (lambda: gaussian_epsilon(-1.0, DELTA), "mu = -1"),
        (lambda: gaussian_mu(-1.0, DELTA), "epsilon = -1"),
        (lambda: poisson_epsilon(1.0, 1.5, 1, DELTA), "q = 1.5"),
        (lambda: poisson_epsilon(-1.0, 0.5, 1, DELTA), "noise multiplier -1"),
        (lambda: poisson_sigma(0.0, 0.5, 1, DELTA), "epsilon = 0"),
        (lambda: solve(BySampling(0.1), epsilon=1.0, delta=DELTA), "noise_multiplier, steps was left open"),
        (
            lambda: solve(BySampling(0.1), epsilon=1.0, delta=DELTA, noise_multiplier=1.0, steps=3),
            "none was left open",
        ),
        (
            lambda: solve(ByParticipation(Tree(), 1, 1), epsilon=1.0, delta=DELTA, noise_multiplier=1.0),
            "not even one step; it takes 4.",
        ),
    ],
)
def test_invalid_values_are_refused(call, said):
    with pytest.raises(ConfigError, match=said):
        call()


# -- each from the others --------------------------------------------------------------------------

MODES = [
    (ByParticipation(Tree(), 4, 100), 30.0, 700),
    (ByParticipation(Tree(restart_every=64), 4, 100), 30.0, 700),
    (ByParticipation(BLT(), 4, 100), 10.0, 700),
    (ByParticipation(Independent(), 50, 3), 20.0, 100),
    (BySampling(0.01), 1.1, 300),
    (BySampling(0.02, "pld"), 1.5, 60),
]


@pytest.mark.parametrize(("mode", "multiplier", "steps"), MODES, ids=repr)
def test_each_number_is_recovered_from_the_other_three(mode, multiplier, steps):
    plan = solve(mode, delta=1e-6, noise_multiplier=multiplier, steps=steps)
    epsilon = plan.epsilon
    assert 0.1 < epsilon < 20
    noise = solve(mode, epsilon=epsilon, delta=1e-6, steps=steps)
    assert noise.noise_multiplier == pytest.approx(multiplier, rel=1e-4)
    assert mode.epsilon(noise.noise_multiplier, steps, 1e-6) <= epsilon * (1 + 1e-9)
    delta = solve(mode, epsilon=epsilon, noise_multiplier=multiplier, steps=steps)
    assert delta.delta == pytest.approx(1e-6, rel=0.01)
    most = solve(mode, epsilon=epsilon * (1 + 1e-9), delta=1e-6, noise_multiplier=multiplier)
    assert most.steps >= steps
    assert mode.epsilon(multiplier, most.steps, 1e-6) <= epsilon * (1 + 1e-9)
    if most.steps < mode.most_steps:
        assert mode.epsilon(multiplier, most.steps + 1, 1e-6) > epsilon


def test_unlimited_steps_stop_at_the_largest_plan():
    plan = solve(ByParticipation(BLT(), 1, 1), epsilon=8.0, delta=DELTA, noise_multiplier=10.0)
    assert plan.steps == 16384  # what there are constants for
    plan = solve(ByParticipation(Independent(), 2, 1), epsilon=8.0, delta=DELTA, noise_multiplier=10.0)
    assert plan.steps == 2**22


# -- directions ----------------------------------------------------------------------------------


def falls(values):
    return all(a > b for a, b in itertools.pairwise(values))


@pytest.mark.parametrize("noise", [Tree(), Tree(restart_every=100), BLT(), Independent()], ids=repr)
def test_epsilon_by_participation_is_monotone(noise):
    def epsilon(multiplier=10.0, steps=1024, participations=4, separation=64):
        return ByParticipation(noise, participations, separation).epsilon(multiplier, steps, DELTA)

    assert falls([epsilon(multiplier=z) for z in (1, 5, 10, 50)])
    assert falls([epsilon(participations=k) for k in (16, 8, 4, 2, 1)])
    by_separation = [epsilon(separation=b, participations=8) for b in (1, 16, 64, 128)]
    by_steps = [epsilon(steps=n, participations=8) for n in (1024, 512, 256, 128)]
    if isinstance(noise, Independent):  # only the count matters
        assert len(set(by_separation)) == 1
        assert by_steps[0] == by_steps[1] > by_steps[2] > by_steps[3]
    elif noise == Tree(restart_every=100):  # which cannot tell trees that are far apart from farther ones
        assert falls(by_separation[:3])
        assert by_separation[2] >= by_separation[3]
        assert by_steps[0] >= by_steps[1] > by_steps[2] > by_steps[3]
    else:
        assert falls(by_separation)
        assert falls(by_steps)


@pytest.mark.parametrize("by", ["rdp", "pld"])
def test_epsilon_by_sampling_is_monotone(by):
    def epsilon(sigma=1.0, q=0.01, steps=100):
        return poisson_epsilon(sigma, q, steps, 1e-6, by)

    assert falls([epsilon(sigma=sigma) for sigma in (0.8, 1.0, 2.0)])
    assert falls([epsilon(q=q) for q in (1.0, 0.03, 0.01, 0.001)])
    assert falls([epsilon(steps=steps) for steps in (300, 100, 10)])
    assert poisson_delta(1.0, 0.01, 100, epsilon(), by) == pytest.approx(1e-6, rel=0.01)
    assert poisson_epsilon(1.0, 0.01, 100, 1e-8, by) > epsilon()


@pytest.mark.parametrize(("mode", "multiplier", "steps"), MODES, ids=repr)
def test_spent_epsilon_grows_to_the_planned_epsilon(mode, multiplier, steps):
    spent = [mode.epsilon(multiplier, steps, 1e-6, after) for after in (0, 1, 10, 50, steps)]
    assert spent == sorted(spent)
    assert spent[0] == 0 < spent[1]
    assert spent[-1] == mode.epsilon(multiplier, steps, 1e-6)
