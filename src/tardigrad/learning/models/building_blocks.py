"""Layers that several models use."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tardigrad.errors import ConfigError


class Tokens(nn.Embedding):
    """An embedding whose tokens may be integers of any size."""

    def forward(self, input: Tensor) -> Tensor:
        if input.dtype not in (torch.int64, torch.int32):
            input = input.int()
        try:
            return super().forward(input)
        except IndexError:
            raise ConfigError(
                f"model: it knows the tokens 0 to {self.num_embeddings - 1}, but the data has "
                f"{int(input.min())} to {int(input.max())}; give the vocabulary of the data"
            ) from None


def group_norm(groups: int, channels: int) -> nn.GroupNorm:
    """Return a GroupNorm with `groups` groups, or fewer if `groups` does not divide the channels."""
    return nn.GroupNorm(math.gcd(groups, channels), channels)
