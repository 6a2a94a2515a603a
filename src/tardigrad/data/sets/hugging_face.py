"""Convert Hugging Face data sets, and the partitions of flwr-datasets, to clients."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tardigrad.data.clients import Examples
from tardigrad.data.partition import Natural
from tardigrad.errors import ConfigError

if TYPE_CHECKING:
    import datasets


def from_hugging_face(
    data: object,
    *,
    label: str = "label",
    features: str | Sequence[str] | None = None,
    client: str | None = None,
    test: datasets.Dataset | None = None,
) -> tuple[dict[Hashable, Examples], Examples | None]:
    """Return the clients by name, and the test set, for `tardigrad.run(clients=..., test=...)`.

    `data` is one of:

    - a `datasets.Dataset`, in which the column `client` names the client of each row;
    - a list or mapping of data sets, one for each client;
    - a FederatedDataset of flwr-datasets or one of its partitioners, whose partitions are the clients.

    `test` is a data set with the same columns.

    Features are the named columns, or all except label and client. Several columns of numbers become one
    float32 vector. A single column of images becomes float32 in [0, 1], channels first; a single column of
    other arrays keeps its type (whole numbers are taken as tokens). Labels that are words become classes in
    alphabetical order.

    >>> clients, test = from_hugging_face(train, client="writer_id", features="image", test=test)
    ... # doctest: +SKIP
    """
    named = dict(_partitions(data, client))
    if not named:
        raise ConfigError("from_hugging_face: there are no partitions")
    columns = [features] if isinstance(features, str) else features
    tables = [_read_table(str(name), part, columns, label, client) for name, part in named.items()]
    if test is not None:
        tables.append(_read_table("test", test, columns, label, client))
    labels = _class_numbers([table[1] for table in tables], label)
    pairs = [(x, y) for (x, _), y in zip(tables, labels)]
    held = pairs.pop() if test is not None else None
    if client is None or next(iter(named.values())) is not data:
        return dict(zip(named, pairs)), held
    (x, y), users = pairs[0], _values(named["data"], client)
    parts = [torch.from_numpy(part) for part in Natural().split(users, np.random.default_rng(0), users)]
    return {users[part[0]].item(): (x[part], y[part]) for part in parts}, held


def _partitions(data: object, client: str | None) -> Iterator[tuple[Hashable, datasets.Dataset]]:
    """Yield the name and data set of each partition; a single data set is yielded as a whole."""
    if hasattr(data, "load_partition"):
        # A FederatedDataset has a partitioner for each split. If there is only one, load_partition uses it.
        partitioners = list(getattr(data, "partitioners", {"": data}).values())
        if len(partitioners) != 1:
            raise ConfigError(
                f"from_hugging_face: {len(partitioners)} splits are partitioned; give one of .partitioners, "
                "or the partitions of one split as a list"
            )
        yield from ((number, data.load_partition(number)) for number in range(partitioners[0].num_partitions))
    elif isinstance(data, Mapping):
        if type(data).__name__ == "DatasetDict":
            raise ConfigError(f"from_hugging_face: give one of the splits {', '.join(data)}, not all of them")
        yield from data.items()
    elif isinstance(data, Sequence):
        yield from enumerate(data)
    elif client is not None:
        yield "data", data
    else:
        raise ConfigError(
            "from_hugging_face: a single data set needs client = 'the column that says whose a row is'"
        )


def _read_table(
    where: str, data: datasets.Dataset, features: Sequence[str] | None, label: str, client: str | None
) -> tuple[Tensor, np.ndarray]:
    """Return the features and labels of one data set; errors begin with `where`."""
    data = _transformed(data, client)
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


def _transformed(data: datasets.Dataset, client: str | None) -> datasets.Dataset:
    """Return a data set that has a transform of its own (`set_transform`) with the transformed columns, and
    with the column `client` if the transform drops it."""
    if data.format["type"] != "custom":
        return data
    columns = {
        name: [value.numpy() if isinstance(value, Tensor) else value for value in values]
        for name, values in data[:].items()
    }
    if client is not None and client in data.column_names:
        columns.setdefault(client, list(_values(data, client)))
    return type(data).from_dict(columns)


def _values(data: datasets.Dataset, name: str) -> np.ndarray:
    """Return a column as an array, copied so that it is writable."""
    return np.array(data.select_columns([name]).with_format("numpy")[:][name])


def _images(pixels: np.ndarray) -> Tensor:
    """Convert images to float32 in [0, 1], channels first."""
    images = torch.from_numpy(pixels).float() / 255
    return images.unsqueeze(1) if images.dim() == 3 else images.permute(0, 3, 1, 2).contiguous()


def _class_numbers(labels: Sequence[np.ndarray], name: str) -> list[Tensor]:
    """Convert labels to class numbers, which are the same in all data sets."""
    if all(part.dtype.kind in "biu" for part in labels):
        return [torch.from_numpy(part.astype(np.int64)) for part in labels]
    if any(part.dtype.kind != "U" for part in labels):
        raise ConfigError(f"column {name!r}: labels must be whole numbers, or words, without gaps")
    classes = np.unique(np.concatenate(labels))
    return [torch.from_numpy(np.searchsorted(classes, part)) for part in labels]
