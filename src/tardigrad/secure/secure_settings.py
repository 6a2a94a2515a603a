"""The secure table of a config: who the helpers are, and what they check."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveInt, field_validator

from tardigrad.core.setting import Setting


class HelperAddress(Setting):
    """Where a helper is, and how the server knows it."""

    address: str
    """HOST:PORT."""
    identity: str
    """The helper's Ed25519 public key in base64, as `tardigrad helper` prints it."""
    ca: Path | None = None
    """The certificate of the authority that signed the helper's own. Default: no TLS, for loopback only."""

    @field_validator("address")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        if not re.fullmatch(r".+:\d{1,5}", value):
            raise ValueError("must be HOST:PORT")
        return value


class Secure(Setting):
    """Secure aggregation: the server sees only masked uploads, and the sum of a buffer.

    >>> Secure(least_clients=8).bits
    32
    """

    helpers: PositiveInt | tuple[HelperAddress, ...] = 1
    """The helpers: their addresses and identities for a server; for a simulation their number is enough."""
    bits: Literal[16, 32] = 32
    """Bits of a code. Sums are modulo 2^bits."""
    denominator: PositiveInt = 256
    """Weights of uploads are multiples of 1 / denominator, which is a power of two."""
    limit: float | None = Field(default=None, ge=1e-20, le=1e20)
    """The largest magnitude of a number in an upload. Default: privacy.clip, or 1."""
    least_clients: PositiveInt | None = Field(default=None, ge=2)
    """The smallest effective number of clients in a batch. Default: half of the buffer, and at least 2."""
    noise: Literal["helper", "nobody"] | None = None
    """Who adds the noise of a private run. Default: the helper if the config has a privacy table."""
    masks: bool = True
    """Whether uploads are masked. False is for simulations: the same numbers, faster."""
    post_quantum: bool = False
    """Whether seeds are sealed with a hybrid of ML-KEM-768 and X25519."""

    @field_validator("denominator")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1) or value > 2**20:
            raise ValueError("must be a power of two up to 2^20")
        return value

    @field_validator("helpers")
    @classmethod
    def _some_and_different(cls, value: int | tuple[HelperAddress, ...]) -> int | tuple[HelperAddress, ...]:
        if isinstance(value, tuple) and len({one.identity for one in value}) != max(1, len(value)):
            raise ValueError("must be one or more helpers, each with an identity of its own")
        return value

    @property
    def helper_count(self) -> int:
        """How many helpers there are."""
        return self.helpers if isinstance(self.helpers, int) else len(self.helpers)
