"""The policy of a secure run."""

import json

import pytest
from secure_world import World

import tardigrad as td
from tardigrad.core.participation import Limits
from tardigrad.errors import ConfigError
from tardigrad.privacy.blt import Toeplitz
from tardigrad.secure.policy import LARGEST, CodedVector, HelperNoise, policy_digest, read_policy

NOISE = HelperNoise(
    mechanism=td.BLT(), toeplitz=Toeplitz((0.25,), (-0.5,)), deviation=3.0, steps=10, allowed=9,
    noise_multiplier=2.0, epsilon=1.5, delta=1e-6,
)  # fmt: skip
FULL = World(
    noise=NOISE, limits=Limits(3, 2), norm=7.5, opening=8, staleness_bound=4, post_quantum=True,
    staleness=td.Hinge(a=2.0, b=1.0),
).policy  # fmt: skip


@pytest.mark.parametrize("policy", [World().policy, FULL], ids=["plain", "full"])
def test_policy_is_read_as_it_was_written(policy):
    content = policy.to_bytes()
    assert read_policy(content) == policy
    assert read_policy(content).to_bytes() == content
    assert policy.digest == policy_digest(content)
    assert read_policy(content).noise == policy.noise


def test_every_field_changes_the_digest():
    document = json.loads(FULL.to_bytes())
    digests = {FULL.digest}
    for name in document:
        digests.add(policy_digest(json.dumps({**document, name: "another"}).encode()))
    assert len(digests) == len(document) + 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content + b"\n",
        lambda content: content.replace(b'"batch":3', b'"batch": 3'),
        lambda content: json.dumps(
            dict(reversed(json.loads(content).items())), separators=(",", ":")
        ).encode(),
        lambda content: content.replace(b'"batch":3', b'"batch":3,"more":1'),
        lambda content: content.replace(b'"protocol":1', b'"protocol":2'),
        lambda content: content.replace(b'"least_clients":2', b'"least_clients":0'),
        lambda content: content.replace(b'"least_clients":2', b'"least_clients":2.5'),
        lambda content: content.replace(b'"step":0.001', b'"step":NaN'),
        lambda content: content[:-1],
        lambda content: b"",
        lambda content: b"[]",
        lambda content: b"\xff" * 10,
        lambda content: b" " * (LARGEST + 1),
        lambda content: b"[" * 100_000,
    ],
)
def test_anything_else_than_a_policy_in_canonical_form_is_refused(spoil):
    content = World().policy.to_bytes()
    assert spoil(content) != content
    with pytest.raises(ConfigError, match="the policy"):
        read_policy(spoil(content))


def test_weights_are_integers_from_1_to_the_denominator():
    policy = World(staleness=td.Polynomial(a=0.5), denominator=256).policy
    assert [policy.weight(late) for late in (0, 1, 3, 10**9)] == [256, 181, 128, 1]
    vectors = (CodedVector(name="delta", length=3), CodedVector(name="control", length=2, discounted=False))
    assert World(vectors=vectors).policy.weights(3) == (128, 256)


def test_first_batch_may_have_another_size():
    assert [FULL.batch_size(batch) for batch in (1, 2, 3)] == [8, 3, 3]
    assert [World().policy.batch_size(batch) for batch in (1, 2)] == [3, 3]
