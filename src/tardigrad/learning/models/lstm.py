"""The papers' recurrent networks, on sequences of tokens."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from tardigrad.learning.models.architecture import Architecture, Shape, sequence
from tardigrad.learning.models.building_blocks import Tokens


class FedBuffLSTM(Architecture):
    """FedBuff's sentiment classifier for Sent140: 300-dimensional embeddings of 10,000 words, two LSTM
    layers of 100, a linear layer of 128, dropout 0.1 and the output layer.

    3,255,986 parameters with 2 classes; 3,001,200 of them are the embedding, which is not trained where it
    is given as GloVe vectors (`words_of = "glove"` of the data set sent140). As in LEAF, no activation
    stands between the two linear layers. The output is read at the last token that is not padding.
    """

    kind: Literal["fedbuff_lstm"] = "fedbuff_lstm"
    vocabulary: PositiveInt = 10_004
    """How many tokens there are: words, and those for padding, beginning, end and unknown."""
    embedding: PositiveInt = 300
    """Width of the embedding."""
    hidden: PositiveInt = 100
    """Width of the two LSTM layers."""
    linear: PositiveInt = 128
    """Width of the linear layer."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Share of activations that is dropped between the LSTM layers and before the output layer."""
    pad: NonNegativeInt | None = 0
    """The token that fills up short sequences; nothing if there is none."""
    train_vectors: bool = False
    """Whether vectors that are given are trained as well. Without them, the embedding always is."""

    def build(self, shape: Shape, classes: int, vectors: Tensor | None = None) -> nn.Module:
        """The module; `vectors`, one row a token, takes the place of `vocabulary` and `embedding`."""
        sequence(shape, self.kind)
        if vectors is None:
            tokens = Tokens(self.vocabulary, self.embedding)
        else:
            tokens = Tokens.from_pretrained(vectors.float(), freeze=not self.train_vectors)
        lstm = nn.LSTM(tokens.embedding_dim, self.hidden, 2, batch_first=True, dropout=self.dropout)
        output = nn.Sequential(
            nn.Linear(self.hidden, self.linear), nn.Dropout(self.dropout), nn.Linear(self.linear, classes)
        )
        return Last(tokens, lstm, output, self.pad)

    def build_with(self, vectors: Tensor | None, shape: Shape, classes: int) -> nn.Module:
        return self.build(shape, classes, vectors)


class CharLSTM(Architecture):
    """The character model of McMahan et al. for Shakespeare, which FedAC uses too: 8-dimensional
    embeddings, two LSTM layers of 256 and one output layer.

    822,570 parameters with 90 characters; TensorFlow counts 2,048 less, for its LSTM has one bias where
    PyTorch's has two.
    """

    kind: Literal["char_lstm"] = "char_lstm"
    embedding: PositiveInt = 8
    """Width of the embedding."""
    hidden: PositiveInt = 256
    """Width of the LSTM layers."""
    layers: PositiveInt = 2
    """How many LSTM layers there are."""
    predict: Literal["next", "every"] = "next"
    """The character after the whole sequence (LEAF's labels), or after every character of it."""
    pad: NonNegativeInt | None = None
    """The token that fills up short sequences, if there is one."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        sequence(shape, self.kind)
        tokens = Tokens(classes, self.embedding)
        lstm = nn.LSTM(self.embedding, self.hidden, self.layers, batch_first=True)
        output = nn.Linear(self.hidden, classes)
        if self.predict == "every":
            return Every(tokens, lstm, output)
        return Last(tokens, lstm, output, self.pad)


class Every(nn.Module):
    """An output for every position of the sequence."""

    def __init__(self, tokens: nn.Module, lstm: nn.LSTM, output: nn.Module) -> None:
        super().__init__()
        self.tokens, self.lstm, self.output = tokens, lstm, output

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.lstm(self.tokens(x))[0]
        return self.output(states)


class Last(nn.Module):
    """One output, at the last position that is not padding (the first, if all are)."""

    def __init__(self, tokens: nn.Module, lstm: nn.LSTM, output: nn.Module, pad: int | None) -> None:
        super().__init__()
        self.tokens, self.lstm, self.output, self.pad = tokens, lstm, output, pad

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.lstm(self.tokens(x))[0]
        if self.pad is None:
            return self.output(states[:, -1])
        last = ((x != self.pad) * torch.arange(x.shape[1], device=x.device)).amax(dim=1)
        return self.output(states[torch.arange(len(x), device=x.device), last])
