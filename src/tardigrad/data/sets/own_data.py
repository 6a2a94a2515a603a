"""Data from a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeGuard, cast

import torch
from pydantic import ConfigDict, field_validator, model_validator

from tardigrad.core.own_code import absolute_place, call_own, load_name, own_arguments
from tardigrad.data.clients import Federation, given
from tardigrad.data.dataset import DataSource
from tardigrad.errors import ConfigError
from tardigrad.learning.heads import Head

RETURNS = (
    'a mapping {id: (features, labels), ...}, a pair (clients, test), a dict {"clients": ..., "test": ..., '
    '"head": ...}, or a tardigrad.data.clients.Federation'
)


class OwnData(DataSource):
    """Clients that a function of the user's own returns: `kind = "path/to/file.py:function"`.

    The function returns what `td.run` takes: a mapping of clients, a pair of that and a test set, a dict with
    the keys `clients`, `test` and `head`, or a `Federation`. All further keys are keyword arguments of the
    function. A parameter called `seed` is given a seed that depends on the run's.
    """

    model_config = ConfigDict(extra="allow")

    kind: str

    _absolute = field_validator("kind")(absolute_place)

    @model_validator(mode="after")
    def _arguments_fit(self) -> OwnData:
        self._arguments(load_name(self.kind, "data"), 0)
        return self

    def federation(
        self, seed: int, head: Head | None = None, dtype: torch.dtype = torch.float32
    ) -> Federation:
        """Build the clients and the test set. `head` replaces that of the function; features and labels that
        are floats get the `dtype`."""
        function = load_name(self.kind, "data")
        made = call_own(cast(Callable[..., object], function), self._arguments(function, seed), "data")
        if isinstance(made, Federation):
            return made
        clients, test, own_head = self._parts(made)
        return given(clients, test, dtype, head or own_head)

    def _arguments(self, found: object, seed: int) -> dict[str, object]:
        if not callable(found):
            raise ConfigError(f"data: {self.kind} must be a function that returns clients, not {found!r:.80}")
        return own_arguments(found, self.model_extra or {}, {"seed": seed}, "data")

    def _parts(self, made: object) -> tuple[Mapping[object, object], object, Head | None]:
        """Return clients, test set and head of what the function returned."""
        if isinstance(made, tuple) and len(made) == 2:
            parts: dict[object, object] = {"clients": made[0], "test": made[1]}
        elif isinstance(made, dict) and isinstance(made.get("clients"), Mapping):
            parts = made
        else:
            parts = {"clients": made}
        clients, head = parts["clients"], parts.get("head")
        named = set(parts) <= {"clients", "test", "head"}
        if not (named and isinstance(clients, Mapping) and isinstance(head, Head | None)):
            raise ConfigError(f"data: {self.kind} returned a {_described(made)}; expected {RETURNS}")
        return clients, parts.get("test"), head


def _described(made: object) -> str:
    """Return the type of an object, and of its parts if it has few."""
    if isinstance(made, dict) and len(made) < 5:
        return f"dict with {', '.join(f'{name!r}: {type(part).__name__}' for name, part in made.items())}"
    if isinstance(made, tuple) and len(made) < 5:
        return f"tuple of {', '.join(type(part).__name__ for part in made)}"
    return type(made).__name__


def is_own_data(data: object) -> TypeGuard[OwnData]:
    """Return whether a config's data is from a file of the user's own."""
    return isinstance(data, OwnData)
