"""Audits of secure runs: canaries are enrolled clients, and the auditor sees what the server sees.

All noise is from the seed, so that no verdict depends on chance.
"""

import re

import numpy as np
import pytest

import tardigrad as td
from tardigrad.errors import RunError
from tardigrad.experiments.runs.audit_run import AuditRun
from tardigrad.secure.integer_noise import IntegerNoise
from tardigrad.secure.simulated_helpers import SimulatedHelpers


def config(masks=False, epsilon=2.0, helpers=1, **privacy):
    settings = {"kind": "participation", "epsilon": epsilon, "delta": 1e-6, "noise_from": "seed"}
    return td.Config(
        data={"kind": "synthetic", "clients": 600, "examples": 5},
        model={"kind": "mlp", "hidden": [8]},
        algorithm=td.FedBuff(staleness="constant"),
        pace=td.Asynchronous(concurrency=20),
        buffer=td.Buffer(size=20),
        stop=td.Stop(steps=30),
        local=td.Local(steps=1),
        privacy=settings | privacy,
        secure={"masks": masks, "helpers": helpers},
    )


def audited(settings, canaries=600):
    run = AuditRun(settings, canaries)
    for _ in run.events():
        pass
    return run.result()


@pytest.mark.parametrize(
    "settings",
    [{}, {"masks": True}, {"helpers": 2}, {"noise": "tree"}],
    ids=["unmasked", "masked", "two helpers", "tree"],
)
def test_secure_run_that_keeps_its_promise_is_consistent(settings):
    found = audited(config(**settings))
    assert found.accountant_epsilon == pytest.approx(2.0)
    assert found.defects == ()
    assert 0 <= found.public_bound <= found.accountant_epsilon
    assert 0 <= found.lower_bound < found.accountant_epsilon < found.largest_bound
    assert found.verdict() == "consistent"


def test_masks_do_not_change_what_is_found():
    assert audited(config(masks=True)) == audited(config(masks=False))


def test_little_noise_is_seen_from_the_sums_and_from_the_models():
    found = audited(config(epsilon=400.0))
    assert found.lower_bound > 3
    assert 0.5 < found.public_bound < found.lower_bound


def weak_noise(patch):
    drawn = IntegerNoise.draw
    patch.setattr(IntegerNoise, "draw", lambda self, step: drawn(self, step) // 2)


def no_clip(patch):
    patch.setattr("tardigrad.encodings.layer.clipped", lambda vectors, *_: (vectors, True))
    patch.setattr("tardigrad.encodings.layer.joint_norm", lambda _: 0.0)


def no_noise(patch):
    patch.setattr(IntegerNoise, "draw", lambda self, step: np.zeros(self._dimension, np.int64))


def noise_used_twice(patch):
    closing = SimulatedHelpers.close

    def close(self, version):
        released = closing(self, version)
        if version == 1:
            self.kept = released
        return self.kept if version == 2 else released

    patch.setattr(SimulatedHelpers, "close", close)


BROKEN = {
    "no noise": (no_noise, "BROKEN: "),
    "half the noise": (weak_noise, "the noise in .* is 0.5 times what is promised"),
    "clients that do not clip": (no_clip, "contributions are .* times as long as the clip"),
    "the same noise twice": (noise_used_twice, "is not fresh: that of steps 2 and 3"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_secure_mechanism_is_reported(name, monkeypatch):
    breaking, said = BROKEN[name]
    breaking(monkeypatch)
    found = audited(config())
    assert not found.holds
    assert re.search(said, found.verdict()), found.verdict()


def test_audit_says_that_an_abandoned_batch_spoils_it():
    late = config().model_copy(
        update={
            "algorithm": td.FedBuff(staleness=td.Exponential(a=5.0)),
            "delay": td.LogNormal(spread=1.5),
            "secure": td.Secure(least_clients=19),
        }
    )
    with pytest.raises(RunError, match=r"audit: the batch of version .* was not released"):
        audited(late)
