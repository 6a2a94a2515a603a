"""A model from a file of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeGuard, cast

from pydantic import ConfigDict, field_validator, model_validator
from torch import nn

from tardigrad.core.own_code import absolute_place, call_own, load_name, own_arguments
from tardigrad.errors import ConfigError
from tardigrad.learning.models.architecture import Architecture, Shape


class OwnModel(Architecture):
    """A model that a function of the user's own returns: `kind = "path/to/file.py:function"`.

    All further keys are keyword arguments of the function. A parameter called `shape` is given the shape of
    one example, and one called `classes` the number of classes. A class that is a torch.nn.Module works like
    a function, and the file may also contain the module itself. Initial values come from torch's global
    generator, which the run has seeded before the file is executed.
    """

    model_config = ConfigDict(extra="allow")

    kind: str

    _absolute = field_validator("kind")(absolute_place)

    @model_validator(mode="after")
    def _arguments_fit(self) -> OwnModel:
        self._arguments(load_name(self.kind, "model"), {"shape": None, "classes": None})
        return self

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return self.make({"shape": shape, "classes": classes})

    def make(self, offered: Mapping[str, object]) -> nn.Module:
        """Build the module; the function may want something of what is offered."""
        found = load_name(self.kind, "model", fresh=True)
        if not isinstance(found, nn.Module):
            arguments = self._arguments(found, offered)
            found = call_own(cast(Callable[..., object], found), arguments, "model")
        if not isinstance(found, nn.Module):
            raise ConfigError(
                f"model: {self.kind} must be a torch.nn.Module or a function that returns one, not a "
                f"{type(found).__name__}"
            )
        return found

    def _arguments(self, found: object, offered: Mapping[str, object]) -> dict[str, object]:
        given = self.model_extra or {}
        if isinstance(found, nn.Module):
            if given:
                raise ConfigError(f"unknown key 'model.{next(iter(given))}'; {self.kind} is not a function")
            return {}
        if not callable(found):
            raise ConfigError(
                f"model: {self.kind} must be a torch.nn.Module or a function that returns one, not a "
                f"{type(found).__name__}"
            )
        return own_arguments(found, given, offered, "model")


def is_own_model(model: object) -> TypeGuard[OwnModel]:
    """Return whether a config's model is from a file of the user's own."""
    return isinstance(model, OwnModel)
