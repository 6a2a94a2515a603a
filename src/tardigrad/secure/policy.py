"""The policy of a secure run: everything that its clients and helpers agree to before it begins.

It is fixed for the run. Each helper signs its digest, and a client takes part only if all helpers that it
trusts have signed, if the policy is within the client's own guardrails, and if its tasks ask for what the
policy says.
"""

from __future__ import annotations

import json
from typing import Literal

from blake3 import blake3
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from tardigrad.core.participation import Limits
from tardigrad.core.setting import Setting
from tardigrad.core.situation import Situation
from tardigrad.core.staleness import RoundedLaw, StalenessLaw
from tardigrad.errors import ConfigError
from tardigrad.privacy.blt import FixedBLT, Toeplitz
from tardigrad.privacy.noise import Noise
from tardigrad.privacy.settings import AnyNoise

LARGEST = 1 << 20
"""Bytes of the largest policy that is read."""


class CodedVector(Setting):
    """One of the vectors of an upload, as codes on the common grid."""

    name: str
    length: PositiveInt
    discounted: bool = True
    """Whether the staleness weight applies to it; otherwise every upload has the largest weight."""


class HelperNoise(Setting):
    """The noise that each helper adds to the sum of a batch."""

    mechanism: AnyNoise
    toeplitz: Toeplitz | None = None
    """The constants of BLT noise; None for other kinds."""
    deviation: PositiveFloat
    """The standard deviation of the noise that a 1 from the mechanism stands for, in units of the weighted
    sum of codes: the noise multiplier times the largest norm of an upload times the largest weight."""
    steps: PositiveInt
    """Steps that the noise is planned for."""
    allowed: PositiveInt
    """Steps that the budget allows."""
    noise_multiplier: PositiveFloat
    epsilon: PositiveFloat
    delta: PositiveFloat
    seed: int | None = None
    """If given, noise is drawn from it: a run can be repeated, and nothing is private."""

    def noise(self) -> Noise:
        """Return the mechanism with its constants."""
        return self.mechanism if self.toeplitz is None else FixedBLT(constants=self.toeplitz)


class Facts(Setting):
    """The numbers of the run that algorithms derive their settings from."""

    population: PositiveInt
    buffer: PositiveInt | None = None
    staleness_bound: NonNegativeInt | None = None
    steps: PositiveInt | None = None
    local_steps: float = 1.0
    examples: PositiveInt | None = None
    blocks: tuple[NonNegativeInt, ...] = ()

    def situation(self) -> Situation:
        """Return them as algorithms are given them."""
        return Situation(**self.model_dump())


class Policy(Setting):
    """The policy of one run."""

    protocol: Literal[1] = 1
    run: str
    """The identifier of the run."""
    settings: str
    """JSON: what every task asks for, as `service/protocol/task_settings.py` writes it."""
    declaration: str = ""
    """`declared_digest` of what the server declares to clients that bring a table and no code."""
    vectors: tuple[CodedVector, ...]
    """The vectors of an upload, in their order."""
    bits: Literal[8, 16, 32]
    """All sums are modulo 2^bits."""
    largest: PositiveInt
    """The largest magnitude of a code."""
    step: PositiveFloat
    """The number that a code of 1 stands for."""
    norm: PositiveFloat | None = None
    """The largest Euclidean norm of all codes of an upload together; None if it is not limited."""
    denominator: PositiveInt
    """Weights are integers from 1 to this."""
    staleness: StalenessLaw
    batch: PositiveInt
    """Uploads that make a step (K)."""
    opening: NonNegativeInt = 0
    """Uploads that make the first step, if that is another number; 0 if it is not."""
    least_clients: PositiveInt
    """The smallest effective number of clients in a batch (K_min)."""
    staleness_bound: NonNegativeInt | None = None
    """Uploads of a greater staleness are refused; 0 where rounds are synchronous."""
    limits: Limits | None = None
    """How often a client may take part, and how far apart; None for any number of times."""
    noise: HelperNoise | None = None
    """None if nobody adds noise."""
    facts: Facts
    start: str
    """Digest of version 0, as clients download it, in hexadecimal."""
    helpers: tuple[str, ...]
    """The identities of all helpers: their Ed25519 public keys in base64."""
    server: str
    """The identity of the server: its Ed25519 public key in base64."""
    post_quantum: bool = False
    """Whether seeds are sealed with the hybrid key exchange."""

    def to_bytes(self) -> bytes:
        """Return the policy as canonical JSON: sorted keys, no spaces."""
        return json.dumps(
            self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True
        ).encode()

    @property
    def digest(self) -> bytes:
        """BLAKE3 of the canonical JSON."""
        return policy_digest(self.to_bytes())

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the vectors."""
        return tuple(vector.length for vector in self.vectors)

    def batch_size(self, batch: int) -> int:
        """Return how many uploads a batch has. Batches are numbered by the version that they make."""
        return self.opening if self.opening and batch == 1 else self.batch

    def weight(self, staleness: int) -> int:
        """Return the integer weight of an upload of this staleness, from 1 to the denominator."""
        return round(RoundedLaw(self.staleness, self.denominator)(staleness) * self.denominator)

    def weights(self, staleness: int) -> tuple[int, ...]:
        """Return the integer weight of an upload of this staleness in each of its vectors."""
        weight = self.weight(staleness)
        return tuple(weight if vector.discounted else self.denominator for vector in self.vectors)


def policy_digest(content: bytes) -> bytes:
    """Return the digest that helpers sign."""
    return blake3(b"tardigrad policy 1\n" + content).digest()


def declared_digest(declaration: str) -> str:
    """Return BLAKE3 of a declaration in hexadecimal; "" if nothing is declared."""
    return blake3(declaration.encode()).hexdigest() if declaration else ""


def read_policy(content: bytes) -> Policy:
    """Return the policy in these bytes; raise a ConfigError if they are not exactly one in canonical form."""
    if len(content) > LARGEST:
        raise ConfigError(f"the policy has {len(content)} bytes; at most {LARGEST} are read")
    try:
        policy = Policy.model_validate_json(content)
    except ValidationError as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(f"the policy of the run cannot be read ({said}); is the server newer?") from None
    if policy.to_bytes() != content:
        raise ConfigError("the policy of the run is not in canonical form")
    return policy
