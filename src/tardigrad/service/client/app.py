"""The user's part of a client: its module and examples, in a Python file that `join --app` names."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from tardigrad.algorithms.algorithm import Algorithm
from tardigrad.algorithms.registry import load_name
from tardigrad.errors import ConfigError
from tardigrad.learning.heads import Head
from tardigrad.learning.transform import Transform


@dataclass
class Client:
    """The module that a client trains and the examples that it trains on.

    `tardigrad join HOST:PORT --app my_client.py:client` takes a `Client`, or a function that returns one. The
    function may have one parameter, which is given the client's name, and one that is called `run`, which is
    given the name of the run ("" if the server has only one).
    """

    module: nn.Module
    """The module. Its parameters must have the same shapes in the same order as the server's."""
    examples: Any
    """Features and labels, or a torch Dataset of such pairs."""
    held_out: Any | None = None
    """Examples to evaluate on. A server without a test set asks for the metrics."""
    head: Head | None = None
    """The loss and metrics; by default, those of the server's config, or of a classifier if it names none."""
    transform: Transform | None = None
    """Turns stored examples into inputs of the module."""
    algorithm: type[Algorithm] | None = None
    """The class of an algorithm that is not built in, if the server runs one; servers never send code."""


def load_app(place: str, name: str) -> Client:
    """Return the client that "path/to/file.py:client" is or makes.

    Without ":client" it is the only one in the file; with several, the ConfigError lists them.
    """
    return client_of(find_app(place), place, name)


def find_app(place: str) -> object:
    """Return the client at this place, or the function that makes one, which is not called yet."""
    return _only_app(place) if place.endswith(".py") else load_name(place, "--app")


def wants_run(found: object) -> bool:
    """Return whether this is a function that makes a client for one run."""
    return callable(found) and not isinstance(found, Client) and "run" in inspect.signature(found).parameters


def client_of(found: object, place: str, name: str, run: str = "") -> Client:
    """Return the client that was found at this place, or that the function found there makes for this run."""
    if callable(found) and not isinstance(found, Client):
        names = set(inspect.signature(found).parameters)
        given = {"run": run} if "run" in names else {}
        found = found(*[name] * bool(names - {"run"}), **given)
    if not isinstance(found, Client):
        raise ConfigError(
            f"--app {place}: must be a tardigrad.Client or a function that returns one, not a "
            f"{type(found).__name__}"
        )
    return found


def _only_app(file: str) -> object:
    """Return the only object of a file that is a client or may make one, or raise a ConfigError."""
    members = cast(dict[str, object], load_name(f"{file}:__dict__", "--app"))
    public = {name: value for name, value in members.items() if not name.startswith("_")}
    found = {name: value for name, value in public.items() if _may_be_app(value, str(members["__name__"]))}
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        listed = ", ".join(f"{file}:{name}" for name in found)
        raise ConfigError(f"--app {file}: has {len(found)} clients; give one of them: {listed}")
    raise ConfigError(
        f"--app {file}: has no tardigrad.Client and no function that uses it; define one, or give its "
        f"name: --app {file}:NAME"
    )


def _may_be_app(value: object, module: str) -> bool:
    """Return whether this is a client, or a function of this module that uses `Client` and can make one.

    Functions are not called to find out, because that may have side effects.
    """
    if isinstance(value, Client):
        return True
    if not inspect.isfunction(value) or value.__module__ != module:
        return False
    parameters = inspect.signature(value).parameters.values()
    required = [p for p in parameters if p.default is p.empty and p.name != "run"]
    names = value.__code__.co_names
    return len(required) <= 1 and any(n == "Client" or value.__globals__.get(n) is Client for n in names)
