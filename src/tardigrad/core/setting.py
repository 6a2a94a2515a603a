"""Settings: frozen, typed, and strict about unknown keys; the same objects in Python and in TOML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from tardigrad.core.setting_errors import SettingError

if TYPE_CHECKING:
    _Table = BaseModel  # so that type checkers and editors see a constructor with the fields as keywords
else:

    class _TableType(type(BaseModel)):
        """Explains the errors of constructors in the words of config errors.

        A table inside another one is not made by its constructor, so that its errors name the whole key.
        """

        def __call__(cls, *args: object, **fields: object) -> object:
            try:
                return super().__call__(*args, **fields)
            except ValidationError as error:
                said = SettingError.of(error, cls)
            raise said

    class _Table(BaseModel, metaclass=_TableType):
        pass


class Setting(_Table):
    """One table of a config file.

    A subclass that is one of several kinds has a field `kind: Literal[...]`, which selects it in the union of
    these kinds. A class is its own configuration: `Polynomial(a=0.5)` in Python is
    `{kind = "polynomial", a = 0.5}` in TOML, and errors have the same words:

    >>> class Buffer(Setting):
    ...     size: int = 10
    >>> Buffer(sise=5)
    Traceback (most recent call last):
    tardigrad.core.setting_errors.SettingError: Buffer: unknown key 'sise'; did you mean 'size'?
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
