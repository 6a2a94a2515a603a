"""A small Transformer that predicts the next token."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from tardigrad.learning.models.architecture import MOST_LAYERS, Architecture, Shape, sequence
from tardigrad.learning.models.building_blocks import Tokens


class Transformer(Architecture):
    """The Transformer of Momentum Approximation for StackOverflow: three layers with causal attention, and an
    output for every position.

    The paper says three layers and refers to "A Field Guide to Federated Optimization", which gives the other
    sizes: width 96, 8 heads, feed-forward layers of 1,536, dropout 0.1, one matrix for embedding and output.
    With 10,004 tokens (10,000 words and four special ones) there are 960,384 + 3 * 334,176 = 1,962,912
    parameters.
    """

    kind: Literal["transformer"] = "transformer"
    layers: int = Field(default=3, gt=0, le=MOST_LAYERS)
    """Number of layers."""
    embedding: PositiveInt = 96
    """Width of the embedding and of the layers."""
    heads: PositiveInt = 8
    """Number of attention heads of every layer; must divide `embedding`."""
    feedforward: PositiveInt = 1536
    """Width of the feed-forward part of every layer."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout probability after the embedding and in every layer."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Transformer:
        if self.embedding % self.heads:
            raise ValueError(f"embedding ({self.embedding}) must be a multiple of heads ({self.heads})")
        return self

    def build(self, shape: Shape, classes: int) -> nn.Module:
        length = sequence(shape, self.kind)
        layers = [
            TransformerLayer(self.embedding, self.heads, self.feedforward, self.dropout)
            for _ in range(self.layers)
        ]
        return Causal(classes, length, self.embedding, layers, self.dropout)


class Causal(nn.Module):
    """Embedding and positions, layers, and the transposed embedding as the output layer."""

    positions: Tensor

    def __init__(
        self, vocabulary: int, length: int, width: int, layers: list[TransformerLayer], dropout: float
    ) -> None:
        super().__init__()
        self.tokens = Tokens(vocabulary, width)
        nn.init.uniform_(self.tokens.weight, -0.05, 0.05)
        self.register_buffer("positions", positions(length, width), persistent=False)
        self.layers = nn.Sequential(nn.Dropout(dropout), *layers)
        self.scale = math.sqrt(width)

    def forward(self, x: Tensor) -> Tensor:
        embedded = torch.add(self.positions[: x.shape[1]], self.tokens(x), alpha=self.scale)
        return F.linear(self.layers(embedded), self.tokens.weight)


class TransformerLayer(nn.Module):
    """Causal attention and a feed-forward part, each added to its input and then normalised."""

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.attend = nn.Sequential(nn.Linear(width, width), nn.Dropout(dropout))
        self.first_norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, feedforward), nn.ReLU(), nn.Linear(feedforward, width), nn.Dropout(dropout)
        )
        self.second_norm = nn.LayerNorm(width)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.xavier_uniform_(part.weight)
                nn.init.zeros_(part.bias)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        projected = self.project(x).view(n, length, 3, self.heads, width // self.heads)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind()
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = self.first_norm(x + self.attend(attended.transpose(1, 2).reshape(n, length, width)))
        return self.second_norm(x + self.feed(x))


def positions(length: int, width: int) -> Tensor:
    """Return sinusoidal position encodings: sines at even and cosines at odd indices, of growing period."""
    place = torch.arange(width)
    angle = torch.arange(length)[:, None] / 10_000 ** (2 * (place // 2) / width)
    return torch.where(place % 2 == 0, angle.sin(), angle.cos())
