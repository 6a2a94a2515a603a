"""Secure runs that a server cannot have are refused before they begin."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import tardigrad as td
from tardigrad.experiments.runs.server_assembly import build_server
from tardigrad.secure.policy import Policy
from tardigrad.service.access.enrolment import public_text

ONE, OTHER = (public_text(Ed25519PrivateKey.generate()) for _ in range(2))
HERE = {"address": "127.0.0.1:7434", "identity": ONE}


def config(secure=None):
    given = {"helpers": [HERE]} | (secure or {})
    return td.Config(
        algorithm=td.FedBuff(), data=td.Digits(partition=td.IID(clients=6)), model=td.MLP(hidden=(4,)),
        pace=td.Asynchronous(concurrency=4), buffer=td.Buffer(size=4), stop=td.Stop(trips=8),
        secure=td.Secure(**given),
    )  # fmt: skip


def test_plan_of_a_secure_run_has_the_helpers_and_the_policy():
    identity = Ed25519PrivateKey.generate()
    plan = build_server(config(), identity=identity).plan
    policy = plan.secure.policy("run-1", "{}", (ONE,), public_text(identity))
    assert isinstance(policy, Policy)
    assert (policy.run, policy.helpers, policy.server) == ("run-1", (ONE,), public_text(identity))
    assert plan.untold
    assert build_server(config().model_copy(update={"secure": None}), identity=identity).plan.secure is None


@pytest.mark.parametrize(
    ("secure", "sentence"),
    [
        ({"helpers": 1}, r"secure\.helpers: a server must know its helpers"),
        ({"helpers": [HERE | {"identity": "AAAA"}]}, r"secure\.helpers\.identity: 'AAAA' is not"),
        ({"helpers": [HERE | {"address": "10.0.0.1:7434"}]}, r"10\.0\.0\.1:7434 is another machine"),
        ({"helpers": [HERE | {"ca": "gone.pem"}]}, r"secure\.helpers\.ca: gone\.pem cannot be read"),
        ({"masks": False}, r"secure\.masks: false is for simulations"),
    ],
)
def test_secure_runs_that_a_server_cannot_have_are_refused(secure, sentence):
    with pytest.raises(td.ConfigError, match=sentence):
        build_server(config(secure))


def test_target_that_nobody_could_see_is_refused():
    changes = {"stop": td.Stop(target=0.9, trips=8), "evaluation": td.Evaluation(held_out=0.2)}
    seen = config().model_copy(update=changes)
    identity = Ed25519PrivateKey.generate()
    assert build_server(seen, identity=identity).plan.stop.target == 0.9
    unseen = seen.model_copy(update={"local": td.Local(personal=["*bias"])})
    with pytest.raises(td.ConfigError, match=r"stop\.target: nobody would know when it is reached"):
        build_server(unseen, identity=identity)
    build_server(unseen.model_copy(update={"secure": None}))
