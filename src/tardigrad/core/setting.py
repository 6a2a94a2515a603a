"""Settings: frozen, typed, and strict about unknown keys; the same objects in Python and in TOML."""

from __future__ import annotations

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Setting(BaseModel):
    """One table of a config file.

    A subclass that is one of several kinds has a field `kind: Literal[...]`, which selects it in the union of
    these kinds. A class is its own configuration: `Polynomial(a=0.5)` in Python is
    `{kind = "polynomial", a = 0.5}` in TOML.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )


def _named(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


by_name = BeforeValidator(_named)
"""Makes `staleness = "constant"` short for `staleness = {kind = "constant"}`."""
