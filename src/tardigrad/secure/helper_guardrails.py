"""The conditions that a helper and its operator set for a policy before the helper signs it."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt

from tardigrad.core.setting import Setting
from tardigrad.errors import ConfigError
from tardigrad.secure.integer_noise import tail
from tardigrad.secure.policy import Policy
from tardigrad.secure.promised_epsilon import check_delta, check_epsilon, check_steps


class HelperGuardrails(Setting):
    """The operator's own limits. A policy beyond them is not signed.

    >>> HelperGuardrails(least_clients=10).least_clients
    10
    """

    least_clients: PositiveInt = 2
    """The smallest effective number of clients that a batch may have (K_min)."""
    most_steps: PositiveInt | None = None
    """The largest number of steps that a run may be planned for; None for any number."""
    most_epsilon: PositiveFloat | None = None
    """The greatest epsilon of the run; a run without noise has none and is refused. None for any."""


def check_policy(policy: Policy, identity: str, server: str, guardrails: HelperGuardrails) -> None:
    """Raise a ConfigError if this helper does not sign the policy. `identity`, `server`: the public keys of
    this helper and of the server that its operator named."""
    if policy.server != server:
        raise ConfigError(f"the policy is of the server {policy.server}, but this helper serves {server}")
    if policy.helpers.count(identity) != 1 or len(set(policy.helpers)) < len(policy.helpers):
        raise ConfigError(f"the policy must name each helper once, and this one, which is {identity}")
    check_steps(policy)
    for size in {policy.batch, policy.opening or policy.batch}:
        if size < policy.least_clients:
            raise ConfigError(
                f"a batch has {size} uploads, fewer than the {policy.least_clients} clients that must hide "
                "each other in it (least_clients)"
            )
        if size * policy.denominator * policy.largest + _tail(policy) >= 2 ** (policy.bits - 1):
            raise ConfigError(
                f"a sum of {size} uploads of weight {policy.denominator} with codes up to {policy.largest}, "
                f"and the noise of all helpers, does not fit into {policy.bits} bits"
            )
    check_epsilon(policy)
    if policy.least_clients < guardrails.least_clients:
        raise ConfigError(
            f"the policy lets {policy.least_clients} clients hide each other in a batch; the operator of "
            f"this helper demands {guardrails.least_clients} (--least-clients)"
        )
    steps = policy.facts.steps if policy.noise is None else policy.noise.allowed
    if guardrails.most_steps is not None and (steps is None or steps > guardrails.most_steps):
        raise ConfigError(
            f"the policy allows {'any number of' if steps is None else steps} steps; the operator of this "
            f"helper allows {guardrails.most_steps} (--most-steps)"
        )
    if policy.noise is not None and policy.noise.allowed > policy.noise.steps:
        raise ConfigError(
            f"the noise is planned for {policy.noise.steps} steps, but {policy.noise.allowed} are allowed"
        )
    if guardrails.most_epsilon is not None:
        check_delta(policy)
    epsilon = None if policy.noise is None or policy.noise.seed is not None else policy.noise.epsilon
    if guardrails.most_epsilon is not None and (epsilon is None or epsilon > guardrails.most_epsilon):
        raise ConfigError(
            f"the policy promises {'no privacy' if epsilon is None else f'epsilon {epsilon:g}'}; the "
            f"operator of this helper allows epsilon {guardrails.most_epsilon:g} (--most-epsilon)"
        )


def _tail(policy: Policy) -> int:
    """Return how large the noise of all helpers can be in a sum."""
    noise = policy.noise
    if noise is None:
        return 0
    return tail(noise.noise(), noise.deviation, noise.steps, sum(policy.lengths), len(policy.helpers))
