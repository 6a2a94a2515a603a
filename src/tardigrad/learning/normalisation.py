"""Normalisation layers with running statistics, such as BatchNorm, which are never averaged over clients."""

from __future__ import annotations

import copy
from typing import Literal

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from tardigrad.errors import ConfigError

BatchNormMode = Literal["client", "group_norm"]
"""How these layers are treated: each client keeps its own, or they are replaced by GroupNorm."""

MOST_GROUPS = 32
FEWEST_CHANNELS = 4


def is_frozen(layer: _NormBase) -> bool:
    """Whether a layer has parameters and none of them is trained. Such a layer keeps its statistics."""
    parameters = list(layer.parameters())
    return bool(parameters) and not any(p.requires_grad for p in parameters)


def statistics_layers(module: nn.Module) -> dict[str, _NormBase]:
    """Return the layers with running statistics by name, frozen ones too."""
    return {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, _NormBase) and part.track_running_stats
    }


def trained_statistics(module: nn.Module) -> dict[str, _NormBase]:
    """Return the layers whose running statistics change in training."""
    return {name: layer for name, layer in statistics_layers(module).items() if not is_frozen(layer)}


def check_no_statistics(module: nn.Module) -> None:
    """Raise a ConfigError if the module has a layer whose statistics would change in training."""
    for name, layer in trained_statistics(module).items():
        raise ConfigError(
            f"model: {name or 'the module'} is {type(layer).__name__}, whose running statistics have no "
            "meaning in an average of models; set local.batch_norm to 'client' (each client keeps its own "
            "statistics and parameters of such layers: FedBN) or to 'group_norm' (they are replaced by "
            "GroupNorm), or use GroupNorm or LayerNorm in its place"
        )


def with_group_norm(module: nn.Module) -> nn.Module:
    """Return a copy of the module in which GroupNorm replaces the layers with running statistics.

    The parameters of a layer are kept, and its statistics are dropped. Frozen layers stay as they are. The
    module itself is returned if there is nothing to replace. A run with `local.batch_norm = "group_norm"`
    trains this module, so that its result fits it:

    >>> with_group_norm(module).load_state_dict(result.model)  # doctest: +SKIP
    """
    if not trained_statistics(module):
        return module
    module = copy.deepcopy(module)
    replaced = {id(layer): _group_norm(layer) for layer in trained_statistics(module).values()}
    if id(module) in replaced:
        return replaced[id(module)]
    for part in list(module.modules()):
        for name, child in list(part._modules.items()):  # one layer may be a child more than once
            if id(child) in replaced:
                setattr(part, name, replaced[id(child)])
    return module


def group_count(channels: int) -> int:
    """Return how many groups replace a layer: the most that divide its channels, up to 32, with at least four
    channels in each; one group if there is no such number.

    >>> [group_count(channels) for channels in (3, 6, 16, 64, 512)]
    [1, 1, 4, 16, 32]
    """
    fitting = (groups for groups in range(1, MOST_GROUPS + 1) if channels % groups == 0)
    return max((groups for groups in fitting if channels // groups >= FEWEST_CHANNELS), default=1)


def _group_norm(layer: _NormBase) -> nn.GroupNorm:
    channels = layer.num_features
    made = nn.GroupNorm(group_count(channels), channels, layer.eps, affine=False)
    made.affine = layer.affine
    if layer.affine:
        made.weight, made.bias = layer.weight, layer.bias
    return made.train(layer.training)


def statistics_of(layer: _NormBase) -> list[Tensor]:
    """Return the running statistics of a layer."""
    return list(layer.buffers(recurse=False))
