"""Hugging Face data sets, and the partitions of flwr-datasets, as clients."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tardigrad.data.clients import Examples
from tardigrad.data.partition import Natural
from tardigrad.errors import ConfigError


def from_hugging_face(
    data: Any,
    *,
    label: str = "label",
    features: str | Sequence[str] | None = None,
    client: str | None = None,
    test: Any | None = None,
) -> tuple[dict[Hashable, Examples], Examples | None]:
    """The clients, by name, and the test set, for `tardigrad.run(clients=..., test=...)`.

    `data` is a `datasets.Dataset` with a column `client` that says whose each row is; or a list or mapping
    of such data sets, one for each client; or flwr-datasets' FederatedDataset or one of its partitioners,
    whose partitions are the clients. `test` is a data set with the same columns.

    Features are the named columns, or all that are neither label nor client. Several columns of numbers
    become one float32 vector. Of a single column, images become float32 in [0, 1], channels first; other
    arrays keep their type (whole numbers are taken for tokens). Words as labels become classes in
    alphabetical order.

    >>> clients, test = from_hugging_face(train, client="writer_id", features="image", test=test)
    ... # doctest: +SKIP
    """
    named = dict(_by_client(data, client))
    if not named:
        raise ConfigError("from_hugging_face: there are no partitions")
    columns = [features] if isinstance(features, str) else features
    tables = [_table(str(name), part, columns, label, client) for name, part in named.items()]
    if test is not None:
        tables.append(_table("test", test, columns, label, client))
    labels = _numbered([table[1] for table in tables], label)
    pairs = [(x, y) for (x, _), y in zip(tables, labels)]
    held = pairs.pop() if test is not None else None
    if client is None or next(iter(named.values())) is not data:
        return dict(zip(named, pairs)), held
    (x, y), users = pairs[0], _values(data, client)
    parts = [torch.from_numpy(part) for part in Natural().split(users, np.random.default_rng(0), users)]
    return {users[part[0]].item(): (x[part], y[part]) for part in parts}, held


def _by_client(data: Any, client: str | None) -> Iterator[tuple[Hashable, Any]]:
    """Name and data set of each partition; of a single data set with a client column, all of it."""
    if hasattr(data, "load_partition"):
        # a FederatedDataset has a partitioner for each split, and guesses the split if there is one
        partitioners = list(getattr(data, "partitioners", {"": data}).values())
        if len(partitioners) != 1:
            raise ConfigError(
                f"from_hugging_face: {len(partitioners)} splits are partitioned; give one of .partitioners, "
                "or the partitions of one split as a list"
            )
        yield from ((number, data.load_partition(number)) for number in range(partitioners[0].num_partitions))
    elif type(data).__name__ == "DatasetDict":
        raise ConfigError(f"from_hugging_face: give one of the splits {', '.join(data)}, not all of them")
    elif isinstance(data, Mapping):
        yield from data.items()
    elif isinstance(data, Sequence):
        yield from enumerate(data)
    elif client is not None:
        yield "data", data
    else:
        raise ConfigError(
            "from_hugging_face: a single data set needs client = 'the column that says whose a row is'"
        )


def _table(
    where: str, data: Any, features: Sequence[str] | None, label: str, client: str | None
) -> tuple[Tensor, np.ndarray]:
    """Features and labels of one data set."""
    names = data.column_names
    chosen = [name for name in names if name not in (label, client)] if features is None else list(features)
    for name in (*chosen, label, *([client] if client and where != "test" else [])):
        if name not in names:
            raise ConfigError(f"{where}: there is no column {name!r}; the columns are {', '.join(names)}")
    values = [_values(data, name) for name in chosen]
    for name, value in zip(chosen, values):
        if value.dtype.kind not in "biuf" or not np.isfinite(value).all():
            raise ConfigError(
                f"{where}, column {name!r}: not numbers of one shape without gaps; leave it out of features"
            )
    if len(values) == 1:
        if type(data.features[chosen[0]]).__name__ == "Image":
            return _images(values[0]), _values(data, label)
        return torch.from_numpy(values[0]), _values(data, label)
    if not values or any(value.ndim != 1 for value in values):
        raise ConfigError(f"{where}: features must be one column, or several of single numbers, not {chosen}")
    return torch.from_numpy(np.stack(values, axis=1).astype(np.float32)), _values(data, label)


def _values(data: Any, name: str) -> np.ndarray:
    return np.array(data.select_columns([name]).with_format("numpy")[:][name])  # a copy that may be written


def _images(pixels: np.ndarray) -> Tensor:
    """Images as float32 in [0, 1], channels first."""
    images = torch.from_numpy(pixels).float() / 255
    return images.unsqueeze(1) if images.dim() == 3 else images.permute(0, 3, 1, 2).contiguous()


def _numbered(labels: Sequence[np.ndarray], name: str) -> list[Tensor]:
    """Labels as class numbers, the same in all data sets."""
    if all(part.dtype.kind in "biu" for part in labels):
        return [torch.from_numpy(part.astype(np.int64)) for part in labels]
    if any(part.dtype.kind != "U" for part in labels):
        raise ConfigError(f"column {name!r}: labels must be whole numbers, or words, without gaps")
    classes = np.unique(np.concatenate(labels))
    return [torch.from_numpy(np.searchsorted(classes, part)) for part in labels]
