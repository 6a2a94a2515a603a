"""Names of tensors in snapshots, which are paths such as buffer/0/sum/delta."""

from __future__ import annotations

from torch import Tensor


def strip_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with the prefix, under their names without it.

    >>> import torch
    >>> strip_prefix("sum/", {"sum/delta": torch.zeros(1), "extra/share": torch.ones(1)})
    {'delta': tensor([0.])}
    """
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def by_number(prefix: str, tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Return the tensors that are called prefix + number/name, by their number.

    >>> import torch
    >>> by_number("memory/", {"memory/7/control": torch.zeros(1)})
    {7: {'control': tensor([0.])}}
    """
    groups: dict[int, dict[str, Tensor]] = {}
    for path, tensor in strip_prefix(prefix, tensors).items():
        number, name = path.split("/", 1)
        groups.setdefault(int(number), {})[name] = tensor
    return groups
