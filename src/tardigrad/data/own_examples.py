"""Examples in the forms that people have them: arrays, tuples and dicts of arrays, torch Datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tardigrad.learning.examples import Features, tensors

LABEL_KEYS = ("labels", "label")
"""The keys under which a dict may have its labels."""

Shape = tuple[int, ...]


def features_and_labels(data: object) -> tuple[Features, Tensor]:
    """Return examples as tensors.

    `data` is a pair of features and labels, a dict that has its labels under "labels" or "label", or a torch
    Dataset whose items are such pairs or dicts; in longer items the label is the last. Features are an array,
    a tuple of arrays or a dict of arrays, whose first dimension is the example. Raises a ValueError,
    TypeError or similar for anything else.

    >>> features_and_labels({"ids": [[1, 2], [3, 4]], "label": [0, 1]})
    ({'ids': tensor([[1, 2],
            [3, 4]])}, tensor([0, 1]))
    """
    if isinstance(data, Dataset):
        data = _stacked([data[i] for i in range(len(data))])  # type: ignore[arg-type]
    if isinstance(data, Mapping):
        key = next((key for key in LABEL_KEYS if key in data), None)
        if key is None:
            raise ValueError(f"a dict must have the key 'labels' or 'label', and has {', '.join(data)}")
        data = {name: value for name, value in data.items() if name != key}, data[key]
    given, labels = cast(tuple[Any, Any], data)
    labels = torch.as_tensor(labels)
    if isinstance(given, Mapping):
        return {str(name): torch.as_tensor(value) for name, value in given.items()}, labels
    if isinstance(given, tuple) and all(_is_array(part) and len(part) == len(labels) for part in given):
        return tuple(torch.as_tensor(part) for part in given), labels
    return torch.as_tensor(given), labels


def shapes_of(features: Features) -> Shape | dict[str, Shape]:
    """Return the shape of one example; a shape for each name if it has several tensors."""
    if isinstance(features, Tensor):
        return tuple(features.shape[1:])
    return {name: tuple(tensor.shape[1:]) for name, tensor in tensors(features)}


def _is_array(value: object) -> bool:
    return isinstance(value, Tensor | np.ndarray) and value.ndim > 0


def _stacked(rows: Sequence[Any]) -> object:
    """Return the items of a Dataset as a dict, or as a pair of features and labels."""
    if isinstance(rows[0], Mapping):
        return {name: _column([row[name] for row in rows]) for name in rows[0]}
    width = len(rows[0])
    if width < 2:
        raise ValueError(f"an item has {width} part and needs two, features and a label")
    columns = [_column([row[part] for row in rows]) for part in range(width)]
    return columns[0] if width == 2 else tuple(columns[:-1]), columns[-1]


def _column(values: Sequence[Any]) -> Any:
    """Return one part of all items, stacked."""
    first = values[0]
    if isinstance(first, Mapping):
        return {name: _column([value[name] for value in values]) for name in first}
    if isinstance(first, tuple) and all(isinstance(part, Tensor | np.ndarray) for part in first):
        return tuple(_column([value[part] for value in values]) for part in range(len(first)))
    return torch.stack([torch.as_tensor(value) for value in values])
