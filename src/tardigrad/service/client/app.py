"""A client's own part: its model and its examples, in a file of its own."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tardigrad.algorithms.algorithm import Algorithm
from tardigrad.algorithms.registry import load_name
from tardigrad.errors import ConfigError
from tardigrad.learning.head import Head
from tardigrad.learning.transform import Transform


@dataclass
class Client:
    """What a client trains, and on what.

    `tardigrad join HOST:PORT --app my_client.py:client` takes one of these, or a function that returns one,
    with the client's name as its argument if it wants it.
    """

    module: nn.Module
    """The same as the server's: parameters of the same shapes, in the same order."""
    examples: Any
    """Features and labels, or a torch Dataset of such pairs."""
    held_out: Any | None = None
    """Examples to evaluate on; where the server has no test set, it is told the metrics."""
    head: Head | None = None
    """The loss and metrics; classes, if none is given."""
    transform: Transform | None = None
    """From stored examples to what the model sees."""
    algorithm: type[Algorithm] | None = None
    """The class of an algorithm of one's own, if the server runs it: code is never taken from a server."""


def load_app(place: str, name: str) -> Client:
    """The client that "path/to/file.py:client" gives."""
    found = load_name(place, "--app")
    if callable(found) and not isinstance(found, Client):
        wants_name = bool(inspect.signature(found).parameters)
        found = found(name) if wants_name else found()
    if not isinstance(found, Client):
        raise ConfigError(
            f"--app {place}: must be a tardigrad.service.client.app.Client or a function that returns one, "
            f"not a {type(found).__name__}"
        )
    return found


def load_module(place: str, seed: int) -> nn.Module:
    """The torch module that "path/to/file.py:model" is or makes, drawn with this seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found = load_name(place, "--model")
        if callable(found) and not isinstance(found, nn.Module):
            found = found()
    if not isinstance(found, nn.Module):
        raise ConfigError(
            f"--model {place}: must be a torch.nn.Module or a function that returns one, "
            f"not a {type(found).__name__}"
        )
    return found
