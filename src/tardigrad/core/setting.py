"""Settings: frozen, typed, and strict about unknown keys; the same objects in Python and in TOML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema

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


class ByName(BeforeValidator):
    """A table that can be given by the name of its kind, in its JSON Schema too."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, object]:
        name = {"type": "string", "description": "The name of a kind."}
        return {"anyOf": [name, *self.own_tables(), handler(schema)]}

    def own_tables(self) -> list[dict[str, object]]:
        """Return the schemas of tables besides those of the kinds."""
        return []


class ByNameOrPlace(ByName):
    """A table whose kind can also be a place in the user's own file."""

    def own_tables(self) -> list[dict[str, object]]:
        kind = {"type": "string", "pattern": r"\.py:", "description": "path/to/file.py:name"}
        return [{"type": "object", "properties": {"kind": kind}, "required": ["kind"], "title": "Your own"}]


by_name = ByName(_named)
"""Makes `staleness = "constant"` short for `staleness = {kind = "constant"}`."""
by_name_or_place = ByNameOrPlace(_named)
"""The same for tables whose kind may be `"path/to/file.py:name"`."""
