"""The named arrays of an app's model, and which of them are trained.

An app sends its model as named arrays, usually a state dict, and says nothing about what they are. Floats
are trained, except running statistics, which have the names that torch gives them. The aggregator sees what
is trained, as one vector in the order of the arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tardigrad.core.plural import counted
from tardigrad.errors import ConfigError

Arrays = Mapping[str, np.ndarray]
STATISTICS = ("running_mean", "running_var")
"""Ends of the names of arrays that follow the data and are not trained."""


class BadReply(Exception):
    """An error in a node's reply, described in one sentence."""


class ArraysModule(nn.Module):
    """A module without a forward pass that has the arrays of an app. Its parameters are those that are
    trained, under their own names; `state_dict` has all arrays.

    >>> module = ArraysModule({"w": np.zeros(2, np.float32), "steps": np.array(7)})
    >>> [name for name, _ in module.named_parameters()], list(module.state_dict())
    (['w'], ['w', 'steps'])
    """

    def __init__(self, arrays: Arrays) -> None:
        super().__init__()
        self.names = list(arrays)
        self.others: dict[str, Tensor] = {}
        """The arrays that are not trained: statistics, and what is no float."""
        for name, array in arrays.items():
            tensor = _tensor(name, array)
            if _is_trained(name, tensor):
                self._parameters[name] = nn.Parameter(tensor)  # a registered name could have no dot
            else:
                self.others[name] = tensor
        dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in self.parameters()})
        if len(dtypes) > 1:
            raise ConfigError(
                f"initial_arrays: the trained arrays are {' and '.join(dtypes)}; give all of them one type, "
                "such as float32"
            )
        if not dtypes:
            raise ConfigError("initial_arrays: no array of floats is there to train; give those of a model")

    @property
    def statistics(self) -> list[str]:
        """The names of the running statistics."""
        return [name for name, tensor in self.others.items() if tensor.is_floating_point()]

    @property
    def fixed(self) -> list[str]:
        """The names of the arrays that keep their first values."""
        return [name for name in self.others if name not in self.statistics]

    def extra_repr(self) -> str:
        return ", ".join(f"{name}: {tuple(value.shape)}" for name, value in self.state_dict().items())

    def state_dict(self, *args: Any, **keywords: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return all arrays in the order of the app."""
        every = dict(self.named_parameters()) | self.others
        return {name: every[name].detach() for name in self.names}

    def arrays(self, vector: Tensor) -> dict[str, np.ndarray]:
        """Return all arrays, with the trained ones from a flat vector."""
        parts = iter(vector.split([p.numel() for p in self.parameters()]))
        found = {}
        for name in self.names:
            own = self.others.get(name)
            value = next(parts).view(self._shape(name)) if own is None else own
            found[name] = value.detach().numpy()
        return found

    def flat(self, arrays: Arrays) -> Tensor:
        """Return the trained arrays of a reply as one vector; raise a `BadReply` if they do not fit."""
        missing = [name for name in self.names if name not in arrays]
        unknown = [name for name in arrays if name not in self.names]
        if missing or unknown:
            said = [f"{' and '.join(_few(names))} {word}" for names, word in
                    ((missing, "missing"), (unknown, "unknown")) if names]  # fmt: skip
            raise BadReply(
                f"its arrays have other names than those that were sent ({', '.join(said)}); return the "
                "whole model under the names that it had"
            )
        parts = []
        for name, parameter in self.named_parameters():
            array = np.asarray(arrays[name])
            if array.shape != tuple(parameter.shape):
                raise BadReply(
                    f"its array {name!r} has the shape {array.shape}, but {tuple(parameter.shape)} was sent"
                )
            if array.dtype.kind not in "fiu":
                raise BadReply(f"its array {name!r} holds {array.dtype} and not numbers")
            parts.append(torch.from_numpy(np.array(array)).to(parameter.dtype).reshape(-1))
        return torch.cat(parts)

    def statistics_of(self, arrays: Arrays) -> dict[str, Tensor]:
        """Return the running statistics of a reply whose names fit; raise a `BadReply` if they do not."""
        found = {}
        for name in self.statistics:
            array, own = np.asarray(arrays[name]), self.others[name]
            if array.shape != tuple(own.shape) or array.dtype.kind != "f":
                raise BadReply(f"its statistics {name!r} have the shape {array.shape} and hold {array.dtype}")
            found[name] = torch.from_numpy(np.array(array)).to(own.dtype)
        return found

    def described(self) -> str:
        """Return how the arrays are treated, as a sentence for the log."""
        said = [f"{counted(len(self._parameters), 'array')} trained"]
        if self.statistics:
            said.append(f"{len(self.statistics)} running statistics, averaged over the uploads of each step")
        if self.fixed:
            said.append(f"{len(self.fixed)} that are not floats, sent with their first values")
        return "; ".join(said)

    def _shape(self, name: str) -> torch.Size:
        parameter = self._parameters[name]
        assert parameter is not None
        return parameter.shape


def _tensor(name: str, array: np.ndarray) -> Tensor:
    try:
        return torch.from_numpy(np.array(array))  # a copy
    except TypeError:
        raise ConfigError(
            f"initial_arrays: {name!r} holds {array.dtype}, which is no type of numbers that torch knows; "
            "leave it out"
        ) from None


def _is_trained(name: str, tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not name.endswith(STATISTICS)


def _few(names: list[str]) -> list[str]:
    return [*map(repr, names[:3]), *(["others"] if len(names) > 3 else [])]
