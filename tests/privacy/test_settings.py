"""The privacy table: impossible guarantees are refused with the key that causes them."""

import math

import pytest
import torch

import tardigrad as td
from tardigrad.experiments.config.reading import parse_config
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.privacy.settings import LocalPrivacy, Participation, PoissonSampling

POPULATION = 30


def promised(privacy, **settings):
    """What a run of this table promises; its values as a config file has them."""
    values = {
        "privacy": privacy, "stop": {"steps": 12}, "buffer": {"size": 5},
        "pace": {"kind": "asynchronous", "concurrency": 10},
    } | settings  # fmt: skip
    config = parse_config(values, "x.toml")
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    clients = dict.fromkeys(range(POPULATION), (x, torch.arange(6) % 2))
    return build(config, torch.nn.Linear(4, 2), clients).guarantee


PARTICIPATION = {"kind": "participation", "epsilon": 2.0, "participations": 2, "separation": 6}
POISSON = {"kind": "poisson", "noise_multiplier": 1.0}
SAMPLED = {"pace": {"kind": "poisson", "probability": 0.1}, "buffer": {}}
APPROXIMATION = {"kind": "fedbuff", "momentum": {"kind": "approximation"}}

REFUSED = {
    "nothing is said": ({"kind": "participation"}, {}, r"x\.toml: privacy: give epsilon, or noise_mult"),
    "no kind": ({"epsilon": 1.0}, {}, r"privacy\.kind is missing"),
    "unknown key": (PARTICIPATION | {"clipp": 1.0}, {}, r"'privacy\.clipp'; did you mean 'clip'"),
    "epsilon 0": (PARTICIPATION | {"epsilon": 0.0}, {}, r"privacy\.epsilon: must be greater than 0"),
    "delta 1": (PARTICIPATION | {"delta": 1.0}, {}, r"privacy\.delta: must be less than 1"),
    "clip 0": (PARTICIPATION | {"clip": 0.0}, {}, r"privacy\.clip: must be greater"),
    "next to no noise": (
        {"kind": "participation", "noise_multiplier": 1e-9}, {},
        r"privacy: noise_multiplier must be 0 \(no noise\) or at least 1e-06",
    ),
    "too few clients": (
        PARTICIPATION | {"participations": 1}, {},
        r"privacy\.participations: 12 steps of 5 uploads need 60 contributions, but 30 .* at least 2",
    ),
    "too far apart": (
        PARTICIPATION | {"participations": 3, "separation": 7}, {},
        r"privacy\.separation: in 7 steps .* there are 30 clients; give at most 6",
    ),
    "no number of steps": (PARTICIPATION, {"stop": {"virtual_time": 3.0}}, r"privacy: .* give stop\.steps"),
    "weights by examples": (
        PARTICIPATION, {"buffer": {"size": 5, "weights": "examples"}}, r"buffer\.weights: .* leave it out"
    ),
    "not one step": (
        PARTICIPATION | {"noise_multiplier": 0.01}, {},
        r"privacy\.epsilon: with a noise multiplier of 0\.01 the first step alone costs \d+.* more than 2",
    ),
    "too long for BLT": (
        {"kind": "participation", "epsilon": 2.0, "participations": 10_000},
        {"stop": {"steps": 16_385}}, r"privacy\.noise: BLT has constants for at most 16384 .*\"tree\"",
    ),
    "nobody samples": (POISSON, {}, r"privacy\.sampling_rate: the pace 'asynchronous' does not sample"),
    "twice in a step": (POISSON | {"sampling_rate": 0.1}, {}, r"buffer\.once_per_client: .* set it to true"),
    "versions of nothing": (
        PARTICIPATION | {"versions": "private"}, {}, r"privacy\.versions: 'private' is for .* leave it out"
    ),
    "versions without a ridge": (
        PARTICIPATION | {"versions": "private"},
        {"algorithm": {"kind": "fedbuff", "momentum": {"kind": "approximation", "ridge": 0.0}}},
        r"algorithm\.momentum\.ridge: .* more than 0",
    ),
    "how many joined is private": (POISSON, SAMPLED | {"algorithm": "ca2fl"}, r"buffer\.size: ca2fl uses"),
    "and momentum approximation tells": (
        POISSON, SAMPLED | {"algorithm": APPROXIMATION}, r"privacy\.versions: .* set it to 'private'"
    ),
    "overhead 1": (
        PARTICIPATION | {"adaptive": {"overhead": 1.0}}, {}, r"privacy\.adaptive\.overhead: must be greater"
    ),
    "xi of public versions": (
        PARTICIPATION | {"version_noise": 3.0}, {}, r"privacy: version_noise is the noise of private versions"
    ),
    "xi that drowns all versions": (
        PARTICIPATION | {"versions": "private", "version_noise": 1e300}, {},
        r"privacy\.version_noise: must be less than or equal to 1",
    ),
    "overhead that drowns all deltas": (
        PARTICIPATION | {"versions": "private", "version_overhead": 1e300}, {},
        r"privacy\.version_overhead: must be less than or equal to 1",
    ),
    "local, and too little": (
        {"kind": "local", "epsilon": 1.0, "noise_multiplier": 1.0, "participations": 4},
        {"algorithm": "fedasync", "buffer": {}},
        r"privacy\.epsilon: a noise multiplier of 1 and 4 participations cost",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_guarantees_are_refused_with_the_key(case):
    privacy, settings, said = REFUSED[case]
    with pytest.raises(td.ConfigError, match=said):
        promised(privacy, **settings)


def test_the_ledger_gets_the_limits_that_are_accounted_for():
    guarantee = promised(PARTICIPATION)
    assert guarantee.limits == (2, 6)
    assert (guarantee.mode.participations, guarantee.mode.separation) == (2, 6)
    assert guarantee.epsilon() == pytest.approx(2.0)
    assert guarantee.divisor == 5.0
    assert Participation(epsilon=1.0, participations=3).limits(100) == (3, 33), (
        "as far apart as there is room"
    )
    assert Participation(epsilon=1.0, participations=9).limits(4) == (9, 1)
    assert LocalPrivacy(epsilon=1.0, participations=3).limits(100) == (3, 1)


def test_the_budget_says_how_many_steps_are_allowed():
    table = {"kind": "participation", "noise": "independent", "participations": 12, "separation": 1}
    table |= {"noise_multiplier": 3.0}
    free = promised(table)
    assert free.allowed == free.steps == 12
    for after in (1, 5, 11, 12):
        budget = free.epsilon(after) + 1e-9
        assert promised(table | {"epsilon": budget}).allowed == after
    assert promised(table | {"epsilon": 1e3}).allowed == 12


def test_local_noise_does_not_depend_on_the_steps():
    values = {"algorithm": "fedasync", "buffer": {}}
    local = {"kind": "local", "epsilon": 2.0, "participations": 4}
    short, long = promised(local, **values), promised(local, stop={"steps": 100}, **values)
    rounding = math.sqrt(10) * 2**-20  # of an upload of ten numbers
    expected = 1 / (1 / (2 * 2.4490607) - rounding)
    assert short.noise_multiplier == long.noise_multiplier == pytest.approx(expected, rel=1e-7)


def test_assumed_sampling_is_recognised():
    assert promised(POISSON, **SAMPLED).sampling_made
    assert promised(POISSON | {"sampling_rate": 0.1}, **SAMPLED).sampling_made
    assert not promised(POISSON | {"sampling_rate": 0.01}, **SAMPLED).sampling_made
    fixed = {"buffer": {"size": 5, "once_per_client": True}}
    assert not promised(POISSON | {"sampling_rate": 0.1}, **fixed).sampling_made
    assert not promised(POISSON, **(SAMPLED | fixed)).sampling_made
    assert promised(PARTICIPATION).sampling_made


def test_epsilon_falls_with_noise_and_separation_and_rises_with_participations():
    def epsilon(k=2, b=3, z=2.0):
        table = {"kind": "participation", "noise_multiplier": z, "participations": k, "separation": b}
        return promised(table).epsilon()

    assert epsilon(k=2) < epsilon(k=3) < epsilon(k=4)
    assert epsilon(b=1) > epsilon(b=3) > epsilon(b=6)
    assert epsilon(z=1.0) > epsilon(z=2.0) > epsilon(z=4.0)


def test_overhead_is_the_norm_of_the_whole_payload():
    alone = promised(PARTICIPATION | {"adaptive": {"overhead": 1.02}})
    assert alone.overhead == pytest.approx(1.02)
    both = promised(
        PARTICIPATION | {"adaptive": {"overhead": 1.02}, "versions": "private", "version_overhead": 1.1},
        algorithm=APPROXIMATION,
    )
    assert both.overhead == pytest.approx(math.sqrt(1 + (1.02**2 - 1) + (1.1**2 - 1)))
    assert promised(PARTICIPATION).overhead == 1.0


def test_an_emulated_cohort_scales_the_noise():
    assert promised(POISSON | {"emulated_cohort": 300}, **SAMPLED).emulated == pytest.approx(0.01)
    assert PoissonSampling(epsilon=1.0).emulated_cohort is None
