"""What a helper demands of a policy before it signs."""

import pytest
import torch
from secure_world import World

import tardigrad as td
from tardigrad.core.participation import Limits
from tardigrad.errors import ConfigError
from tardigrad.privacy.releases import digest_of
from tardigrad.secure.helper_guardrails import HelperGuardrails, check_policy
from tardigrad.secure.helper_refusals import HelperRefusal, RefusalKind
from tardigrad.secure.policy import Facts, HelperNoise

NOISE = HelperNoise(
    mechanism=td.Independent(), deviation=12800.0, steps=4, allowed=4, noise_multiplier=10.0, epsilon=2.0,
    delta=1e-5,
)  # fmt: skip
PRIVATE = {"noise": NOISE, "norm": 5.0, "limits": Limits(2, 1)}


def check(world, **guardrails):
    check_policy(world.policy, world.policy.helpers[0], world.policy.server, HelperGuardrails(**guardrails))


def test_honest_policies_are_signed():
    check(World())
    check(World(helpers=3))
    check(World(**PRIVATE), most_epsilon=2.0, most_steps=4, least_clients=2)
    check(World(facts=Facts(population=8, steps=10)), most_steps=10)


@pytest.mark.parametrize(
    ("changes", "guardrails", "match"),
    [
        ({"server": "another"}, {}, "is of the server another, but this helper serves"),
        ({"helpers": ("another",)}, {}, "must name each helper once, and this one"),
        ({"batch": 1}, {}, "a batch has 1 uploads, fewer than the 2 clients"),
        ({"opening": 1}, {}, "a batch has 1 uploads, fewer than the 2 clients"),
        ({"least_clients": 4}, {}, "a batch has 3 uploads, fewer than the 4 clients"),
        ({"least_clients": 1}, {}, "demands 2 "),
        ({}, {"least_clients": 3}, "demands 3 "),
        ({"largest": 2**31 // (3 * 256) + 1}, {}, "does not fit into 32 bits"),
        ({"opening": 8, "largest": 2**31 // (8 * 256) + 1}, {}, "a sum of 8 uploads"),
        ({**PRIVATE, "largest": 2**31 // (3 * 256) - 10}, {}, "and the noise of all helpers, does not fit"),
        ({}, {"most_steps": 10}, "allows any number of steps"),
        ({"facts": Facts(population=8, steps=11)}, {"most_steps": 10}, "allows 11 steps"),
        (PRIVATE, {"most_steps": 3}, "allows 4 steps"),
        ({}, {"most_epsilon": 9.0}, "promises no privacy"),
        (PRIVATE, {"most_epsilon": 1.0}, "promises epsilon 2; the operator of this helper allows epsilon 1"),
        (
            {**PRIVATE, "noise": NOISE.model_copy(update={"delta": 0.9})}, {"most_epsilon": 9.0},
            "at a delta of 0.9",
        ),
        ({**PRIVATE, "limits": Limits(4, 1), "norm": 500.0}, {}, "promises an epsilon of 2, but its noise"),
        (
            {**PRIVATE, "noise": NOISE.model_copy(update={"seed": 1})}, {"most_epsilon": 9.0},
            "promises no privacy",
        ),
        ({**PRIVATE, "noise": NOISE.model_copy(update={"allowed": 5})}, {}, "planned for 4 steps, but 5"),
    ],
)  # fmt: skip
def test_policies_beyond_the_guardrails_are_not_signed(changes, guardrails, match):
    world = World()
    world.policy = world.policy.model_copy(update=changes)
    own = World().policy if "helpers" in changes else world.policy
    server = "the right one" if "server" in changes else world.policy.server
    with pytest.raises(ConfigError, match=match):
        check_policy(world.policy, own.helpers[0], server, HelperGuardrails(**guardrails))


def test_helper_that_is_named_twice_would_not_hide_anything():
    world = World()
    world.policy = world.policy.model_copy(update={"helpers": world.policy.helpers * 2})
    with pytest.raises(ConfigError, match="each helper once"):
        check(world)


@pytest.mark.parametrize(
    ("policy", "vectors", "match"),
    [
        (lambda policy: b"{}", lambda vectors: vectors, "cannot be read"),
        (lambda policy: policy.to_bytes() + b" ", lambda vectors: vectors, "not in canonical form"),
        (
            lambda policy: policy.to_bytes(),
            lambda vectors: {"model": torch.zeros(12)},
            "does not have the digest",
        ),
        (
            lambda policy: policy.model_copy(update={"least_clients": 1}).to_bytes(),
            lambda vectors: vectors,
            "the operator of this helper demands 2",
        ),
    ],
)
def test_run_does_not_begin_with_a_policy_that_is_not_signed(policy, vectors, match, tmp_path):
    world = World()
    with world.reopened(tmp_path / "helper") as state:
        with pytest.raises(HelperRefusal, match=match) as caught:
            state.begin(policy(world.policy), vectors(world.version(0)))
        assert caught.value.kind == RefusalKind.POLICY
        assert state.policy is None
        state.begin(world.policy.to_bytes(), world.version(0))


def test_version_0_must_be_that_of_the_algorithm(tmp_path):
    """A broadcast that has more than the algorithm makes could hide something."""
    world = World()
    vectors = world.version(0) | {"more": torch.zeros(3)}
    world.policy = world.policy.model_copy(update={"start": digest_of(vectors)})
    with (
        world.reopened(tmp_path / "helper") as state,
        pytest.raises(HelperRefusal, match="does not belong to the algorithm"),
    ):
        state.begin(world.policy.to_bytes(), vectors)
