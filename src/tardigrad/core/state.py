"""The state of an algorithm: tensors and numbers by name."""

from __future__ import annotations

from torch import Tensor

State = dict[str, Tensor | float]
"""It can be printed, saved in a snapshot and resumed from. `state["model"]` is the model."""


def tensor_of(state: State, name: str) -> Tensor:
    """Return the tensor of this name.

    >>> import torch
    >>> tensor_of({"model": torch.zeros(2), "mass": 5}, "model")
    tensor([0., 0.])
    """
    value = state[name]
    assert isinstance(value, Tensor), f"{name} is a number, not a tensor"
    return value
