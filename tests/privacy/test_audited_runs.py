"""Audits of whole runs: consistent for intact mechanisms, BROKEN for each kind of defect."""

import json
import re
from pathlib import Path

import pytest

import tardigrad as td
from tardigrad.core.participation import Ledger
from tardigrad.experiments.runs import traffic
from tardigrad.experiments.runs.audit_run import AuditRun
from tardigrad.privacy.layers import central_noise, clip
from tardigrad.privacy.layers.canaries import Canaries
from tardigrad.privacy.layers.central_noise import CentralNoiseLayer
from tardigrad.privacy.layers.clip import WITHIN, ClipLayer
from tardigrad.privacy.normal import Seeded
from tardigrad.privacy.settings import PoissonSampling


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


HONEST = {
    "blt": {},
    "tree": {"noise": "tree"},
    "restarted": {"noise": {"kind": "tree", "restart_every": 7}, "participations": 2, "separation": 10},
    "independent": {"noise": "independent"},
    "adaptive": {"adaptive": {"quantile": 0.5}},
}


@pytest.mark.parametrize("name", HONEST)
def test_a_run_that_keeps_its_promise_is_consistent(name):
    found = audited(config(**HONEST[name]))
    assert found.accountant_epsilon == pytest.approx(2.0)
    assert 0 <= found.lower_bound < found.accountant_epsilon < found.largest_bound
    assert found.defects == ()
    assert found.verdict() == "consistent"


def test_several_vectors_and_private_versions_are_consistent():
    settings = config(versions="private", adaptive={"quantile": 0.5})
    settings = settings.model_copy(
        update={
            "algorithm": td.FedBuff(momentum=td.Approximation()),
            "buffer": td.Buffer(size=20, staleness_bound=5),
        }
    )
    found = audited(settings)
    assert (found.holds, found.defects) == (True, ())
    scaffold = {"algorithm": td.SCAFFOLD(), "pace": td.Synchronous(cohort=20)}
    found = audited(config().model_copy(update=scaffold))
    assert (found.holds, found.defects) == (True, ())


# -- broken mechanisms: each defect is put where the real one would be -------------------------------------


def no_noise(patch):
    patch.setattr(central_noise, "add_noise", lambda total, noise, scale, *precision: None)


def little_noise(patch):
    right = central_noise.add_noise
    patch.setattr(
        central_noise,
        "add_noise",
        lambda total, noise, scale, *precision: right(total, noise, scale / 8, *precision),
    )


def no_clipping(patch):
    right = clip.clipped
    patch.setattr(clip, "clipped", lambda vectors, limit: (vectors, right(vectors, limit)[1]))


def longer_clip(patch):
    right = clip.clipped
    patch.setattr(clip, "clipped", lambda vectors, limit: right(vectors, 10 * limit))


def one_key(patch):
    patch.setattr(traffic, "Seeded", lambda key: Seeded(7))


def no_ledger(patch):
    patch.setattr(Ledger, "allows", lambda self, client, step: True)
    patch.setattr(Ledger, "enter", lambda self, client, step: None)


def no_separation(patch):
    patch.setattr(Ledger, "allows", lambda self, client, step: not self.finished(client))
    right = Ledger.enter

    def enter(self, client, step):
        right(self, client, step)
        if not self.finished(client):
            self.resting.discard(client)

    patch.setattr(Ledger, "enter", enter)


def bit_without_noise(patch):
    right = central_noise.add_noise

    def add_noise(total, noise, scale, *precision):
        if total.numel() > 1:  # the clipping bit is the only extra
            right(total, noise, scale, *precision)

    patch.setattr(central_noise, "add_noise", add_noise)


def clip_without_noise(patch):
    """The extras are released with noise, but the clip follows those without it."""
    release, moved = CentralNoiseLayer.release, ClipLayer.moved
    counts = []

    def releasing(self, buffer, total):
        counts.append(buffer.extras[WITHIN].clone())
        return release(self, buffer, total)

    def following(self, buffer, total):
        buffer.extras[WITHIN] = counts[-1]
        return moved(self, buffer, total)

    patch.setattr(CentralNoiseLayer, "release", releasing)
    patch.setattr(ClipLayer, "moved", following)


ADAPTIVE = {"adaptive": {"quantile": 0.5}}
TWICE = {"participations": 2, "separation": 10}
BROKEN = {
    "noise off": (no_noise, {}, "noise in the sum of 'delta' is .*e-0. times what is promised"),
    "noise off, tree": (no_noise, {"noise": "tree"}, "noise in the sum of 'delta' is .*e-0. times"),
    "noise / 8": (little_noise, {}, "noise in the sum of 'delta' is 0.1[23] times what is promised"),
    "no clipping": (no_clipping, {}, r"contributions are (9\d|1e\+02) times as long as the clip"),
    "clip x 10": (longer_clip, {}, r"contributions are (9\.\d|10) times as long as the clip"),
    "one key": (one_key, {}, "noise in the sum of 'delta' is not fresh"),
    "one key, tree": (one_key, {"noise": "tree"}, "noise in the sum of 'delta' is not fresh"),
    "one key, independent": (one_key, {"noise": "independent"}, "noise in the sum of 'delta' is not fresh"),
    "ledger off": (no_ledger, {}, "a client took part 2 times; at most 1 is promised"),
    "separation off": (
        no_separation,
        TWICE,
        r"a client took part in steps \d apart; at least 10 is promised",
    ),
    "bit without noise": (bit_without_noise, ADAPTIVE, "noise in the share within the clip is .*e-0. times"),
    "clip without noise": (clip_without_noise, ADAPTIVE, "after step 1 the clip is"),
}
GUESSED = ("noise off", "noise off, tree", "noise / 8", "no clipping", "clip x 10")
"""Those that a bound on epsilon shows, too."""


@pytest.mark.parametrize("name", BROKEN)
def test_broken_mechanism_is_reported(name, monkeypatch):
    break_it, settings, said = BROKEN[name]
    break_it(monkeypatch)
    found = audited(config(**settings))
    assert found.verdict().startswith("BROKEN")
    assert not found.holds
    assert any(re.search(said, defect) for defect in found.defects), found.defects
    if name in GUESSED:
        assert found.lower_bound > found.accountant_epsilon


def test_private_experiment_without_noise_is_broken(cli, monkeypatch):
    no_noise(monkeypatch)
    file = Path(__file__).parents[2] / "experiments/private.toml"
    half = [f"--set={setting}" for setting in ("local.steps=1", "stop.steps=100", "data.clients=2500")]
    code, out, _ = cli("privacy", "audit", file, "--json", *half)
    found = json.loads(out)
    assert code == 3
    assert found["accountant_epsilon"] == pytest.approx(4.0)
    assert found["lower_bound"] > 4.6
    assert found["power"]
    assert not found["holds"]


def test_guesses_do_not_use_who_was_sampled(monkeypatch):
    sampled = config().model_copy(
        update={
            "privacy": PoissonSampling(noise_multiplier=0.7, delta=1e-6, noise_from="seed"),
            "pace": td.Poisson(probability=0.01),
            "buffer": td.Buffer(),
            "stop": td.Stop(steps=100),
        }
    )
    found = audited(sampled)
    assert (found.holds, found.canaries) == (True, 600), "also those that never joined"
    no_noise(monkeypatch)
    assert audited(sampled).verdict().startswith("BROKEN")


def test_bound_is_large_for_a_large_epsilon():
    found = audited(config(epsilon=40.0))
    assert 2.0 < found.lower_bound < 40.0


def test_configs_that_cannot_be_audited_are_refused():
    with pytest.raises(td.ConfigError, match="an audit is of a run with central privacy"):
        AuditRun(td.Config())
    with pytest.raises(td.ConfigError, match="without noise nothing is promised"):
        AuditRun(config(epsilon=None, noise_multiplier=0.0))
    with pytest.raises(td.ConfigError, match="confidence = 1"):
        AuditRun(config(), confidence=1.0)
    emulating = config().model_copy(
        update={
            "privacy": PoissonSampling(noise_multiplier=1.0, emulated_cohort=500),
            "pace": td.Poisson(probability=0.1),
            "buffer": td.Buffer(),
        }
    )
    with pytest.raises(td.ConfigError, match="emulated_cohort: the promise is that of a larger run"):
        AuditRun(emulating)
    with pytest.raises(td.ConfigError, match="do not fit into memory"):
        Canaries.drawn(10, 10, 0).directions(10**10)


def test_audit_on_the_command_line(cli, tmp_path, monkeypatch):
    file = tmp_path / "private.toml"
    file.write_text(config(epsilon=2.0).to_toml())
    code, out, err = cli("privacy", "audit", str(file), "--canaries", "100", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["canaries"] == 100
    assert 0 <= found["lower_bound"] <= found["accountant_epsilon"] == pytest.approx(2.0)
    assert found["power"]
    assert found["defects"] == []
    code, out, err = cli("privacy", "audit", str(file), "--canaries", "20")
    assert code == 0, err
    assert "no power: 20 canaries cannot show more than epsilon 1.3" in out
    no_noise(monkeypatch)
    code, out, err = cli("privacy", "audit", str(file), "--canaries", "20")
    assert code == 3, err
    assert "BROKEN: the noise in the sum of 'delta' is" in out
