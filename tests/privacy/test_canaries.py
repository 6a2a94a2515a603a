"""The audit: below the accountant's epsilon for what works, above it for what is broken."""

import json

import numpy as np
import pytest

import tardigrad as td
from tardigrad.experiments.audit import AuditRun
from tardigrad.privacy.blt import BLT
from tardigrad.privacy.canaries import Canaries, mixing_matrix
from tardigrad.privacy.independent import Independent
from tardigrad.privacy.tree import Tree

NOISES = {"blt": BLT(), "tree": Tree(), "plain tree": Tree(honaker=False), "independent": Independent()}


def config(noise="blt", **privacy):
    settings = {"kind": "participation", "epsilon": 2.0, "delta": 1e-6, "noise": noise, "noise_from": "seed"}
    return td.Config(
        data={"kind": "synthetic", "clients": 600, "examples": 5},
        model={"kind": "mlp", "hidden": [8]},
        pace=td.Asynchronous(concurrency=20),
        buffer=td.Buffer(size=20),
        stop=td.Stop(steps=30),
        local=td.Local(steps=1),
        privacy=settings | privacy,
    )


def audited(settings, canaries=600):
    run = AuditRun(settings, canaries)
    for _ in run.events():
        pass
    return run.result()


@pytest.mark.parametrize("noise", ["blt", "tree"])
def test_the_bound_is_below_the_accountants_epsilon_and_above_it_when_the_noise_is_broken(noise, monkeypatch):
    found = audited(config(noise))
    assert found.canaries == 600
    assert found.accountant_epsilon == pytest.approx(2.0)
    assert found.lower_bound < found.accountant_epsilon
    assert found.holds
    kind = type(config(noise).privacy.noise)
    right = kind.draw
    monkeypatch.setattr(kind, "draw", lambda self, state, normal: 0.01 * right(self, state, normal))
    broken = audited(config(noise))
    assert broken.lower_bound > broken.accountant_epsilon
    assert not broken.holds


def test_much_epsilon_shows_in_the_bound():
    found = audited(config(epsilon=40.0))
    assert 2.0 < found.lower_bound < 40.0


def test_canaries_are_drawn_once_and_half_are_in():
    canaries = Canaries.drawn(10_000, 2000, seed=3)
    assert canaries == Canaries.drawn(10_000, 2000, seed=3)
    assert canaries != Canaries.drawn(10_000, 2000, seed=4)
    assert len(canaries.included) == 2000
    assert 900 < sum(canaries.included.values()) < 1100
    signs = canaries.directions(400)
    assert set(signs.unique().tolist()) == {-1, 1}
    overlaps = (signs[:50].float() @ signs[:50].float().T / 400).fill_diagonal_(0)
    assert overlaps.abs().max() < 0.3


@pytest.mark.parametrize("name", NOISES)
def test_the_mixing_matrix_is_that_of_the_noise(name):
    noise, steps = NOISES[name], 13
    mixing = mixing_matrix(noise, steps, planned=16, k=1, b=16)
    prefixes = np.cumsum(mixing, axis=0)
    expected = [noise.prefix_variance(t, 16, 1, 16) for t in range(1, steps + 1)]
    np.testing.assert_allclose((prefixes**2).sum(axis=1), expected, rtol=1e-5)


def test_what_cannot_be_audited_is_refused():
    with pytest.raises(td.ConfigError, match="an audit is of a run with central privacy"):
        AuditRun(td.Config())
    with pytest.raises(td.ConfigError, match="do not fit into memory"):
        Canaries.drawn(10, 10, 0).directions(10**10)


def test_plan_on_the_command_line(cli):
    def planned(question):
        code, out, err = cli("privacy", "plan", *question.split(), "--json")
        assert code == 0, err
        return json.loads(out)

    tree = "--participations 4 --separation 512 --noise tree"
    assert planned(f"--epsilon 2 --steps 2048 {tree}")["noise_multiplier"] == pytest.approx(
        19.59249, rel=1e-5
    )
    sampled = planned("--noise-multiplier 1 --steps 2000 --sampling-rate 5e-4")
    assert sampled["epsilon"] == pytest.approx(0.913268, abs=1e-4)
    assert planned(f"--noise-multiplier 20 --epsilon 2 {tree}")["steps"] >= 2048
    found = planned(f"--noise-multiplier 19.59249 --epsilon 2 --steps 2048 {tree}")
    assert found["delta"] == pytest.approx(1e-7, rel=1e-4)
    for wrong in (
        ["--epsilon", "2"],
        ["--epsilon", "2", "--steps", "5", "--noise-multiplier", "1", "--delta", "1e-6"],
        ["--epsilon", "2", "--steps", "5", "--noise", "pink"],
        ["--epsilon", "-2", "--steps", "5"],
        ["--noise-multiplier", "3", "--epsilon", "2", "--participations", "2"],
    ):
        code, _, err = cli("privacy", "plan", *wrong)
        assert code == 2, wrong
        assert err.count("\n") == 1, err


def test_audit_on_the_command_line(cli, tmp_path):
    file = tmp_path / "private.toml"
    file.write_text(config(epsilon=2.0).to_toml())
    code, out, err = cli("privacy", "audit", str(file), "--canaries", "100", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["canaries"] == 100
    assert 0 <= found["lower_bound"] <= found["accountant_epsilon"] == pytest.approx(2.0)
