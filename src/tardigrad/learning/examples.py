"""Examples: what a module is called with, which is a tensor, a tuple of tensors or a dict of tensors.

The first dimension of every tensor is the example. A tensor is passed as `module(x)`, a tuple as
`module(*x)`, a dict as `module(**x)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import cast

from torch import Tensor, nn

from tardigrad.learning.heads import Head

Features = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""The inputs of a module for some examples."""


def mapped(features: Features, function: Callable[[Tensor], Tensor]) -> Features:
    """Return the features with each tensor replaced by the function's value.

    >>> import torch
    >>> mapped({"ids": torch.tensor([[1, 2]])}, torch.Tensor.double)
    {'ids': tensor([[1., 2.]], dtype=torch.float64)}
    """
    if isinstance(features, Tensor):
        return function(features)
    if isinstance(features, tuple):
        return tuple(function(tensor) for tensor in features)
    return {name: function(tensor) for name, tensor in features.items()}


def take(features: Features, index: Tensor) -> Features:
    """Return the examples with these indices."""
    if isinstance(features, Tensor):
        return features.index_select(0, index)
    return mapped(features, lambda tensor: tensor.index_select(0, index))


def tensors(features: Features) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor with its name: "" for a single one, its position in a tuple, its key in a dict."""
    if isinstance(features, Tensor):
        yield "", features
    elif isinstance(features, tuple):
        for position, tensor in enumerate(features):
            yield str(position), tensor
    else:
        yield from features.items()


def described(features: Features) -> str:
    """Return the shape and dtype of one example in words.

    >>> import torch
    >>> described(torch.zeros(5, 2)), described({"ids": torch.zeros(5, 3, dtype=torch.int64)})
    ('(2,) of torch.float32', 'ids: (3,) of torch.int64')
    """
    return ", ".join(
        (f"{name}: " if name else "") + f"{tuple(tensor.shape[1:])} of {tensor.dtype}"
        for name, tensor in tensors(features)
    )


def predicted(module: nn.Module, head: Head, features: Features, labels: Tensor) -> Tensor:
    """Return what the module gives for these features, as the head takes it.

    A head with `labels_for_module` gets the whole output of a module that is called with the labels, too.
    """
    if head.labels_for_module is not None:
        named = {head.labels_for_module: labels}
        if isinstance(features, Tensor):
            return module(features, **named)
        return module(*features, **named) if isinstance(features, tuple) else module(**features, **named)
    if isinstance(features, Tensor):
        return logits_of(module(features))
    return logits_of(module(*features) if isinstance(features, tuple) else module(**features))


def logits_of(outputs: object) -> Tensor:
    """Return the output of a module, or its `logits` if it is an object or a dict that has them, as the
    modules of Hugging Face return. A tuple is returned as it is, for a head of the user's own."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        outputs = outputs.get("logits", outputs)
    return cast(Tensor, getattr(outputs, "logits", outputs))
