"""The head that a config names: a built-in one, or one of the user's own file."""

from __future__ import annotations

import inspect
from typing import Annotated, cast

from pydantic import ConfigDict, Field, PlainSerializer, ValidatorFunctionWrapHandler, WrapValidator

from tardigrad.core.own_code import absolute_place, load_name
from tardigrad.core.setting import Setting, by_name_or_place
from tardigrad.errors import ConfigError
from tardigrad.learning.heads import Binary, ModuleLoss, MultiClass, MultiLabel, NextToken, Regression
from tardigrad.learning.heads.task_head import Head

BuiltInHead = Annotated[
    MultiClass | Binary | MultiLabel | NextToken | Regression | ModuleLoss, Field(discriminator="kind")
]


class OwnHead(Setting):
    """A head in a file of the user's own: "path/to/file.py:Name", with the arguments of a class."""

    model_config = ConfigDict(extra="allow")

    kind: str
    """A class or an object: "path/to/file.py:Name"."""

    def build(self) -> Head:
        """Load the file and return the head."""
        found = load_name(self.kind, "head")
        if inspect.isclass(found) and issubclass(found, Head):
            if inspect.isabstract(found):
                missing = ", ".join(sorted(found.__abstractmethods__))
                raise ConfigError(f"head: {self.kind} does not define {missing}")
            try:
                return found(**(self.model_extra or {}))
            except TypeError as error:
                raise ConfigError(f"head: {self.kind} cannot be made ({error})") from None
        if isinstance(found, Head) and not self.model_extra:
            return found
        raise ConfigError(f"head: {self.kind} is neither a class of heads (td.Head) nor a head")


def _own_or_built_in(value: object, built_in: ValidatorFunctionWrapHandler) -> object:
    if isinstance(value, OwnHead):
        return value
    if isinstance(value, dict) and ".py:" in str(value.get("kind")):
        return OwnHead.model_validate(value | {"kind": absolute_place(str(value["kind"]))})
    return built_in(value)


def _dump(head: Setting) -> dict[str, object]:
    return head.model_dump(mode="json", exclude_none=True, by_alias=True)


AnyHead = Annotated[
    BuiltInHead,
    WrapValidator(_own_or_built_in),
    by_name_or_place,  # runs before the validator above, so that "file.py:Name" is a kind, too
    PlainSerializer(_dump, return_type=dict[str, object]),
]
"""A head as a config names it; own heads are an `OwnHead` there."""


def built(choice: object) -> Head:
    """Return the head that a config names."""
    return choice.build() if isinstance(choice, OwnHead) else cast(Head, choice)
