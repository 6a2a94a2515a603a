"""The folder of a Flower app: its ClientApp, its config, and the function that makes its model."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from torch import nn

from tardigrad.core.own_code import call_own, own_arguments
from tardigrad.errors import ConfigError
from tardigrad.flower.app_trips import UserConfig

PAIR = re.compile(r"""([^\s=]+)=('[^']*'|"[^"]*"|\S+)\s*""")
"""A key and a value on a command line, as Flower's own commands take them."""


@dataclass(frozen=True)
class AppFolder:
    """An app of Flower in a folder on this machine."""

    path: Path
    config: UserConfig
    """The app's own config, from [tool.flwr.app.config]."""
    components: Mapping[str, str]

    def client_app(self) -> ClientApp:
        """Return the app's ClientApp."""
        place = self.components.get("clientapp", "")
        if not place:
            raise ConfigError(
                f"--flower {self.path}: [tool.flwr.app.components] in its pyproject.toml has no clientapp"
            )
        found = self._load(place, f"--flower {self.path}: clientapp")
        if not isinstance(found, ClientApp):
            raise ConfigError(
                f"--flower {self.path}: {place} must be a flwr.clientapp.ClientApp, not a "
                f"{type(found).__name__}"
            )
        return found

    def initial_arrays(self, place: str) -> ArrayRecord:
        """Return the arrays of the model that "module:name" of the app is or makes: a torch module, its state
        dict, or an ArrayRecord."""
        found = self._load(place, "--model")
        if not isinstance(found, nn.Module | ArrayRecord | Mapping):
            if not callable(found):
                raise ConfigError(f"--model {place}: must be a function or a class that makes the model")
            function = cast(Callable[..., object], found)
            found = call_own(function, own_arguments(function, {}, {}, "--model"), f"--model {place}")
        if isinstance(found, nn.Module):
            found = found.state_dict()
        try:
            return found if isinstance(found, ArrayRecord) else ArrayRecord(cast(Any, found))
        except (TypeError, ValueError):
            raise ConfigError(
                f"--model {place}: must make a torch.nn.Module, a state dict or an ArrayRecord, not a "
                f"{type(found).__name__}"
            ) from None

    def _load(self, place: str, option: str) -> object:
        """Return the object at "module:name"; the modules of the app can be imported."""
        name, colon, attributes = place.partition(":")
        if not (colon and name and attributes):
            raise ConfigError(
                f"{option} {place}: give module:name, as in the app's pyproject.toml, such as my_app.task:Net"
            )
        if str(self.path) not in sys.path:
            sys.path.insert(0, str(self.path))
        try:
            found: object = importlib.import_module(name)
        except Exception as error:  # the app's own code can raise anything
            said = " ".join(str(error).split())
            raise ConfigError(
                f"{option} {place}: cannot be imported ({type(error).__name__}: {said})"
            ) from None
        for attribute in attributes.split("."):
            if not hasattr(found, attribute):
                raise ConfigError(f"{option} {place}: {name} has nothing called {attributes}")
            found = getattr(found, attribute)
        return found


def open_app(folder: Path) -> AppFolder:
    """Return the app in a folder; raise a ConfigError if there is none."""
    file = folder / "pyproject.toml"
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"--flower {folder}: is no Flower app, because {file} cannot be read ({error.strerror}); give "
            "the folder with the app's pyproject.toml"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--flower {folder}: its pyproject.toml is not TOML ({error})") from None
    app = _table(_table(_table(document, "tool"), "flwr"), "app")
    components = _table(app, "components")
    if not components:
        raise ConfigError(
            f"--flower {folder}: is no Flower app, because its pyproject.toml has no "
            "[tool.flwr.app.components]"
        )
    config = _flat(_table(app, "config"), f"--flower {folder}: [tool.flwr.app.config]")
    return AppFolder(folder.resolve(), config, {name: str(place) for name, place in components.items()})


def parse_pairs(text: str | None, option: str) -> dict[str, int | float | str | bool]:
    """Return a config that is written as Flower's commands take it.

    >>> parse_pairs('partition-id=0 name="left hand" fast=true', "--node-config")
    {'partition-id': 0, 'name': 'left hand', 'fast': True}
    """
    pairs, rest = PAIR.findall(text or ""), PAIR.sub("", text or "").strip()
    try:
        if rest:
            raise tomllib.TOMLDecodeError
        return _flat(tomllib.loads("\n".join(f"{name} = {value}" for name, value in pairs)), option)
    except tomllib.TOMLDecodeError:
        raise ConfigError(
            f"{option}: {text!r} is not a list of pairs such as 'partition-id=0 name=\"left\"'; values are "
            "numbers, true, false, or text in quotation marks"
        ) from None


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name, {})
    return found if isinstance(found, Mapping) else {}


def _flat(table: Mapping[str, Any], where: str, prefix: str = "") -> dict[str, int | float | str | bool]:
    """Return a table with the keys of nested tables joined by dots, as Flower does."""
    found: dict[str, int | float | str | bool] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, where, f"{prefix}{name}.")
        elif isinstance(value, int | float | str):
            found[prefix + name] = value
        else:
            raise ConfigError(f"{where}: {prefix}{name} must be a number, true, false or text, not {value!r}")
    return found
