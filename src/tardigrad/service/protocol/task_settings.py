"""The settings of the algorithm and of local training that a server sends to its clients, as JSON.

They never contain code: an algorithm that is not built in must be in the client's own file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar, cast

from pydantic import JsonValue, NonNegativeFloat, PositiveFloat, PositiveInt, TypeAdapter, ValidationError

from tardigrad.algorithms.algorithm import Algorithm
from tardigrad.algorithms.registry import BUILT_IN, AnyAlgorithm, BuiltIn
from tardigrad.core.draws import key
from tardigrad.core.setting import Setting
from tardigrad.encodings.broadcasts import AnyBroadcast, BroadcastEncoding, Float32Broadcast
from tardigrad.encodings.encoding import Encoding
from tardigrad.encodings.float32 import Float32
from tardigrad.encodings.kinds import AnyEncoding
from tardigrad.errors import ConfigError
from tardigrad.learning.heads import BUILT_IN as HEADS
from tardigrad.learning.heads import Head, MultiClass
from tardigrad.learning.heads.head_choice import BuiltInHead
from tardigrad.learning.local import Local
from tardigrad.privacy.layers.local_noise import LocalNoiseLayer
from tardigrad.privacy.normal import Cryptographic, Seeded

Found = TypeVar("Found")


class LocalNoise(Setting):
    """The clip and the noise that clients of a run with local privacy apply to each upload."""

    clip: PositiveFloat
    noise_multiplier: NonNegativeFloat
    participations: PositiveInt
    """The largest number of uploads of one client in the whole run."""
    seed: int | None = None
    """If given, noise is drawn from it: a simulation can be repeated, and nothing is private."""

    def layer(self) -> LocalNoiseLayer:
        """Return the layer that clips and adds noise; without a seed, noise of the system's generator."""
        seed = self.seed
        if seed is None:
            return LocalNoiseLayer(self.clip, self.noise_multiplier, lambda trip: Cryptographic())
        return LocalNoiseLayer(
            self.clip, self.noise_multiplier, lambda trip: Seeded(key(seed, "noise", trip))
        )


def to_json(
    algorithm: Algorithm,
    local: Local,
    private: bool = False,
    noise: LocalNoise | None = None,
    metrics: tuple[str, ...] = (),
    encoding: Encoding | None = None,
    broadcast: BroadcastEncoding | None = None,
    head: Head | None = None,
) -> str:
    """Return the settings as JSON.

    `private` says whether the run promises privacy; `noise` is applied by the clients; `metrics` are asked of
    clients that evaluate, besides those of their head; clients encode their uploads with `encoding`, and
    versions travel to them as `broadcast` says. `head`: of clients that have none of their own; one that is
    not built in is not told, because no code is sent.
    """
    named = TypeAdapter(AnyAlgorithm).dump_python(algorithm)  # type: ignore[arg-type]
    if not isinstance(algorithm, BUILT_IN):
        named["kind"] = Path(named["kind"]).name  # clients need not know the server's folders
    settings: dict[str, JsonValue] = {
        "algorithm": named,
        "local": local.model_dump(mode="json", exclude_none=True),
    }
    if private:
        settings["private"] = True
    if noise is not None:
        settings["local_noise"] = noise.model_dump(mode="json")
    if metrics:
        settings["metrics"] = list(metrics)
    if encoding is not None and not isinstance(encoding, Float32):
        settings["encoding"] = encoding.model_dump(mode="json", exclude_none=True)
    if broadcast is not None and not isinstance(broadcast, Float32Broadcast):
        settings["broadcast"] = broadcast.model_dump(mode="json", exclude_none=True)
    if isinstance(head, HEADS) and head != MultiClass():
        told = TypeAdapter(BuiltInHead).dump_python(head, mode="json", exclude_none=True)  # type: ignore[arg-type]
        settings["head"] = told
    return json.dumps(settings)


def told_head(text: str) -> Head | None:
    """Return the head of clients that have none of their own, or None if the server names none."""
    settings = json.loads(text).get("head")
    if settings is None:
        return None
    try:
        return cast(Head, TypeAdapter(BuiltInHead).validate_python(settings))
    except ValidationError as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(f"the server's settings cannot be used here ({said}); is it newer?") from None


def asked_metrics(text: str) -> tuple[str, ...]:
    """Return the metrics that the server asks for besides those of the client's head."""
    found = json.loads(text).get("metrics", [])
    return tuple(map(str, found)) if isinstance(found, list) else ()


def is_private(text: str) -> bool:
    """Return whether the run with these settings promises privacy."""
    return json.loads(text).get("private") is True


def local_noise(text: str) -> LocalNoise | None:
    """Return the noise that the client must apply to its uploads, or None."""
    settings = json.loads(text).get("local_noise")
    if settings is None:
        return None
    try:
        return LocalNoise.model_validate(settings)
    except ValidationError as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(f"the server's settings cannot be used here ({said}); is it newer?") from None


def upload_encoding(text: str) -> Encoding:
    """Return the encoding of uploads that the server asks for."""
    return _known(TypeAdapter(AnyEncoding), json.loads(text).get("encoding", Float32().kind), "uploads")


def broadcast_encoding(text: str) -> BroadcastEncoding:
    """Return how versions travel to the client."""
    settings = json.loads(text).get("broadcast", Float32Broadcast().kind)
    return _known(TypeAdapter(AnyBroadcast), settings, "downloads")


def _known(adapter: TypeAdapter[Found], settings: object, what: str) -> Found:
    try:
        return adapter.validate_python(settings)
    except ValidationError as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"the server asks for {what} in an encoding that this client does not know ({said}); upgrade "
            "this client"
        ) from None


def from_json(text: str, own: type[Algorithm] | None) -> tuple[Algorithm, Local]:
    """Return the algorithm and the local training of a client.

    `own` is the class of an algorithm that is not built in, from the client's file.
    """
    try:
        document = json.loads(text)
        settings = dict(document["algorithm"])
        local = Local.model_validate(document["local"])
        kind = str(settings.get("kind"))
        if ":" not in kind:
            return TypeAdapter(BuiltIn).validate_python(settings), local
        name = kind.rpartition(":")[2]
        if own is None or own.__name__ != name:
            raise ConfigError(
                f"the server runs {kind}, which is not built in; get a copy of that file and give "
                f"Client(..., algorithm={name})"
            )
        del settings["kind"]
        return own.model_validate(settings), local
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(f"the server's settings cannot be used here ({said}); is it newer?") from None
