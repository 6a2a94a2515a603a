"""What the server tells its clients of the algorithm and of local training, as JSON.

A client makes settings of it, never code: an algorithm that is not built in must be in the client's own file.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from tardigrad.algorithms.algorithm import Algorithm
from tardigrad.algorithms.registry import BUILT_IN, AnyAlgorithm, BuiltIn
from tardigrad.errors import ConfigError
from tardigrad.learning.local import Local


def to_json(algorithm: Algorithm, local: Local, private: bool = False) -> str:
    """For the clients. `private`: whether the run promises privacy."""
    told = TypeAdapter(AnyAlgorithm).dump_python(algorithm)  # type: ignore[arg-type]
    if not isinstance(algorithm, BUILT_IN):
        told["kind"] = Path(told["kind"]).name  # where the file lies on the server is nobody's business
    settings = {"algorithm": told, "local": local.model_dump(mode="json", exclude_none=True)}
    return json.dumps(settings | ({"private": True} if private else {}))


def is_private(text: str) -> bool:
    """Whether the run that these settings belong to promises privacy."""
    return json.loads(text).get("private") is True


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
