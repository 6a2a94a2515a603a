"""Layers that several of the models have."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tardigrad.errors import ConfigError


class Tokens(nn.Embedding):
    """An embedding of tokens that are held as bytes or as integers of any size."""

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
    """GroupNorm with as many of the `groups` as divide the channels."""
    return nn.GroupNorm(math.gcd(groups, channels), channels)
