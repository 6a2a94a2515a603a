"""What the server tells its clients of the algorithm and of local training, as JSON.

A client makes settings of it, never code: an algorithm that is not built in must be in the client's own file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, TypeAdapter, ValidationError

from tardigrad.algorithms.algorithm import Algorithm
from tardigrad.algorithms.registry import BUILT_IN, AnyAlgorithm, BuiltIn
from tardigrad.core.draws import key
from tardigrad.core.setting import Setting
from tardigrad.errors import ConfigError
from tardigrad.learning.local import Local
from tardigrad.privacy.layers.local_noise import LocalNoiseLayer
from tardigrad.privacy.normal import Cryptographic, Seeded


class LocalNoise(Setting):
    """What clients of a run with local privacy do to each upload."""

    clip: PositiveFloat
    noise_multiplier: NonNegativeFloat
    participations: PositiveInt
    """How many uploads a client sends in the whole run."""
    seed: int | None = None
    """Where noise comes from the run's seed, so that a simulation can be repeated and nothing is private."""

    def layer(self) -> LocalNoiseLayer:
        """Return the client's half of the noise, from the client's own system unless there is a seed."""
        seed = self.seed
        if seed is None:
            return LocalNoiseLayer(self.clip, self.noise_multiplier, lambda trip: Cryptographic())
        return LocalNoiseLayer(
            self.clip, self.noise_multiplier, lambda trip: Seeded(key(seed, "noise", trip))
        )


def to_json(
    algorithm: Algorithm, local: Local, private: bool = False, noise: LocalNoise | None = None
) -> str:
    """For the clients. `private`: whether the run promises privacy; `noise`: what they add by themselves."""
    told = TypeAdapter(AnyAlgorithm).dump_python(algorithm)  # type: ignore[arg-type]
    if not isinstance(algorithm, BUILT_IN):
        told["kind"] = Path(told["kind"]).name  # where the file lies on the server is nobody's business
    settings: dict[str, Any] = {"algorithm": told, "local": local.model_dump(mode="json", exclude_none=True)}
    if private:
        settings["private"] = True
    if noise is not None:
        settings["local_noise"] = noise.model_dump(mode="json")
    return json.dumps(settings)


def is_private(text: str) -> bool:
    """Whether the run that these settings belong to promises privacy."""
    return json.loads(text).get("private") is True


def local_noise(text: str) -> LocalNoise | None:
    """Return what the client must do to its uploads, or None."""
    told = json.loads(text).get("local_noise")
    if told is None:
        return None
    try:
        return LocalNoise.model_validate(told)
    except ValidationError as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(f"the server's settings cannot be used here ({said}); is it newer?") from None


def from_json(text: str, own: type[Algorithm] | None) -> tuple[Algorithm, Local]:
    """As the client needs it. `own`: the class of an algorithm that is not built in."""
    try:
        told = json.loads(text)
        settings = dict(told["algorithm"])
        local = Local.model_validate(told["local"])
        kind = str(settings.get("kind"))
        if ":" not in kind:
            return TypeAdapter(BuiltIn).validate_python(settings), local
        name = kind.rpartition(":")[2]
        if own is None or own.__name__ != name:
            raise ConfigError(
                f"the server runs an algorithm of its own, {kind}; have a copy of that file and give "
                f"Client(..., algorithm={name})"
            )
        del settings["kind"]
        return own.model_validate(settings), local
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(f"the server's settings cannot be used here ({said}); is it newer?") from None
