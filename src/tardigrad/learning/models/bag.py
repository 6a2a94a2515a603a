"""A bag of words, the simplest model of text."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from tardigrad.learning.models.architecture import Architecture, Shape, sequence
from tardigrad.learning.models.building_blocks import Tokens


class BagOfWords(Architecture):
    """The sum of the word vectors and one linear layer: a baseline that learns from little text.

    500,251 parameters with one output.
    """

    kind: Literal["bag_of_words"] = "bag_of_words"
    vocabulary: PositiveInt = 10_004
    """Number of tokens."""
    embedding: PositiveInt = 50
    """Width of the embedding."""
    pad: NonNegativeInt = 0
    """The padding token."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        sequence(shape, self.kind)
        tokens = Tokens(self.vocabulary, self.embedding)
        nn.init.normal_(tokens.weight, std=0.01)  # keeps the initial sums over many words small
        return Bag(tokens, nn.Linear(self.embedding, classes), self.pad)


class Bag(nn.Module):
    """Sums the vectors of all tokens that are not padding, and applies an output layer."""

    def __init__(self, tokens: nn.Module, output: nn.Module, pad: int) -> None:
        super().__init__()
        self.tokens, self.output, self.pad = tokens, output, pad

    def forward(self, x: Tensor) -> Tensor:
        words = self.tokens(x) * (x != self.pad).unsqueeze(-1)
        return self.output(words.sum(dim=1))
