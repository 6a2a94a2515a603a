"""Guardrails: what a client itself demands of a secure run, whatever the server says.

They come from the client's own file or arguments. The identities of the helpers are never taken from the
server: their operators tell them to the clients when these are enrolled.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, field_validator

from tardigrad.core.setting import Setting
from tardigrad.core.setting_errors import explain
from tardigrad.errors import ConfigError
from tardigrad.secure.policy import Policy
from tardigrad.secure.promised_epsilon import check_delta, check_epsilon
from tardigrad.service.access.enrolment import public_key


class Guardrails(Setting):
    """A client's conditions for taking part in a secure run.

    >>> Guardrails(least_clients=8).helpers
    ()
    """

    helpers: tuple[str, ...] = ()
    """The identities of the helpers, as `tardigrad identity` prints them. The run must have exactly these."""
    least_clients: PositiveInt = Field(default=2, ge=2)
    """The smallest number of clients that must hide each other in a sum (the run's secure.least_clients)."""
    most_epsilon: PositiveFloat | None = None
    """The greatest epsilon. If it is given, a run in which nobody adds noise is refused too."""
    most_weight: PositiveInt | None = None
    """The greatest integer weight that an upload can have in a sum (the run's secure.denominator)."""

    @field_validator("helpers")
    @classmethod
    def _are_keys(cls, helpers: tuple[str, ...]) -> tuple[str, ...]:
        for text in helpers:
            try:
                public_key(text, "helper")
            except ConfigError:
                raise ValueError(
                    f"{text!r} is not an identity, which is an Ed25519 public key in base64"
                ) from None
        if len({*helpers}) < len(helpers):
            raise ValueError("names a helper twice")
        return helpers

    def check(self, policy: Policy) -> None:
        """Raise a ConfigError that says why a client with these guardrails does not take part, if it does
        not."""
        if not self.helpers:
            count = len(policy.helpers)
            raise ConfigError(
                f"this run is secure and has {count} helper{'s' if count > 1 else ''}, but this client "
                "trusts none; ask the operator of each helper for its identity, and give --helper IDENTITY "
                "for each (or helpers in --guardrails FILE). Do not take an identity from the server"
            )
        strangers = [helper for helper in policy.helpers if helper not in self.helpers]
        if strangers:
            raise ConfigError(
                f"the run has the helper {strangers[0]}, which this client does not trust; if its operator "
                f"tells you the same identity, add --helper {strangers[0]}"
            )
        absent = [helper for helper in self.helpers if helper not in policy.helpers]
        if absent:
            raise ConfigError(
                f"the run does without the helper {absent[0]}, which this client demands; without it, the "
                "other helpers and the server could read single uploads, so nothing is trained"
            )
        if policy.least_clients < self.least_clients:
            raise ConfigError(
                f"the run releases sums of {policy.least_clients} clients, and this client demands at least "
                f"{self.least_clients} (--least-clients), so nothing is trained"
            )
        if self.most_weight is not None and policy.denominator > self.most_weight:
            raise ConfigError(
                f"uploads of the run weigh up to {policy.denominator}, and this client allows at most "
                f"{self.most_weight} (--most-weight), so nothing is trained"
            )
        check_epsilon(policy)
        if self.most_epsilon is not None:
            self._check_epsilon(policy, self.most_epsilon)

    def _check_epsilon(self, policy: Policy, most: float) -> None:
        if policy.noise is None:
            raise ConfigError(
                "nobody adds noise in this run, so it has no epsilon, and this client demands one of at most "
                f"{most:g} (--most-epsilon); nothing is trained"
            )
        if policy.noise.seed is not None:
            raise ConfigError(
                "the noise of this run is drawn from a seed that everybody knows, so nothing is private, and "
                f"this client demands an epsilon of at most {most:g} (--most-epsilon); nothing is trained"
            )
        check_delta(policy)
        if policy.noise.epsilon > most:
            raise ConfigError(
                f"the run has an epsilon of {policy.noise.epsilon:g}, and this client allows at most "
                f"{most:g} (--most-epsilon), so nothing is trained"
            )


def read_guardrails(file: Path) -> Guardrails:
    """Return the guardrails in a TOML file; raise a ConfigError if they cannot be read."""
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--guardrails {file}: cannot be read ({error.strerror}); give a file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--guardrails {file}: is not TOML ({error})") from None
    try:
        return Guardrails.model_validate(values)
    except ValidationError as error:
        said = "; ".join(explain(error, Guardrails))
        raise ConfigError(f"--guardrails {file}: {said}") from None
