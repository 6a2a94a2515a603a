"""The audit of a secure run, whose canaries are clients."""

import pytest

import tardigrad as td
from tardigrad.encodings import layer
from tardigrad.errors import RunError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.audit_run import AuditRun
from tardigrad.secure import simulated_helpers

SETTINGS = {
    "data": td.Digits(partition=td.IID(clients=200)),
    "model": td.MLP(hidden=()),
    "local": td.Local(steps=1, lr=0.1),
    "pace": td.Asynchronous(concurrency=40),
    "buffer": td.Buffer(size=20),
    "stop": td.Stop(steps=8),
    "evaluation": td.Evaluation(every_steps=8),
    "privacy": td.Participation(noise_multiplier=1.0, participations=1, separation=1),
}


def audit(**settings):
    audited = AuditRun(Config(**(SETTINGS | settings)), canaries=100)
    for _ in audited.events():
        pass
    return audited.result()


@pytest.mark.parametrize("helpers", [1, 2])
def test_honest_secure_run_is_consistent(helpers):
    found = audit(secure={"helpers": helpers})
    assert found.holds, found.verdict()
    assert found.canaries > 50
    assert not found.defects


def test_helper_without_noise_is_caught(monkeypatch):
    class Silent(simulated_helpers.IntegerNoise):
        def draw(self, step):
            return super().draw(step) * 0

    monkeypatch.setattr(simulated_helpers, "IntegerNoise", Silent)
    found = audit(secure={})
    assert not found.holds
    assert found.verdict().startswith("BROKEN")


def shrunk(vectors):
    """Return vectors that are twice as long as the clip, if they were those of canaries."""
    return {name: vector * 0.02 for name, vector in vectors.items()}


def test_clients_that_do_not_clip_are_caught(monkeypatch):
    monkeypatch.setattr(
        layer, "clipped", lambda vectors, clip: ({n: v * 0.02 for n, v in vectors.items()}, True)
    )
    monkeypatch.setattr(layer, "EXACT", 1e9)
    found = audit(secure={"limit": 2.0})
    assert not found.holds


def test_audit_says_that_an_abandoned_batch_spoils_it():
    late = {"algorithm": td.FedBuff(staleness=td.Exponential(a=5.0)), "delay": td.LogNormal(spread=1.5)}
    with pytest.raises(RunError, match=r"audit: the batch of version .* was not released"):
        audit(secure={"least_clients": 19}, **late)
