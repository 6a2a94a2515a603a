"""Data loaders and Hugging Face data sets as a client's examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    default_collate,
    default_convert,
)

from tardigrad.errors import ConfigError


def without_loader(where: str, data: object) -> object:
    """Return the data set of a DataLoader, or a Hugging Face data set as a torch Dataset; other data is
    returned as it is. Errors begin with `where`.

    Every example is read once, with the transforms of its data set. The order and the batch size of a loader
    are not used, because local training draws minibatches by itself. A `collate_fn` of one's own is called
    once with all examples, and its result is returned.

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> loader = DataLoader(TensorDataset(torch.eye(2), torch.tensor([0, 1])), shuffle=True)
    >>> without_loader("clients['ann']", loader)[1]
    (tensor([0., 1.]), tensor(1))
    """
    source = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(source, IterableDataset):
        raise ConfigError(
            f"{where}: {type(source).__name__} is a stream without a length, but local training draws "
            "minibatches from all examples of a client; read it into arrays, or give a Dataset with a length"
        )
    if hasattr(source, "with_format"):
        source = HuggingFaceRows(source)
    if not isinstance(data, DataLoader):
        return source
    chosen = Subset(cast(Dataset[Any], source), _indices(where, data))
    if data.collate_fn in (default_collate, default_convert):
        return chosen
    return data.collate_fn([chosen[row] for row in range(len(chosen))])


class HuggingFaceRows(Dataset[Any]):
    """The rows of a `datasets.Dataset`: as its own transform or format gives them, or as dicts of tensors."""

    def __init__(self, data: Any) -> None:
        self._data = data if data.format["type"] is not None else data.with_format("torch")

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, row: int) -> Any:
        return self._data[row]


def _indices(where: str, loader: DataLoader[Any]) -> Sequence[int]:
    """Return the indices of the examples that a pass over the loader has, in the order of the data set."""
    sampler, batches = loader.sampler, loader.batch_sampler
    plain = batches is None or type(batches) is BatchSampler
    if plain and isinstance(sampler, SubsetRandomSampler):
        return sorted(sampler.indices)
    whole = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler) and not sampler.replacement
    )
    if plain and whole:
        return range(len(loader.dataset))  # type: ignore[arg-type]
    kind = type(sampler if plain else batches).__name__
    raise ConfigError(
        f"{where}: the DataLoader draws its examples by a {kind}, but "
        "local training draws minibatches by itself; give the data set, or a torch.utils.data.Subset of it"
    )
