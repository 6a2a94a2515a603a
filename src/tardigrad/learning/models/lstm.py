"""The recurrent networks of the papers, for sequences of tokens."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from tardigrad.learning.models.architecture import MOST_LAYERS, Architecture, Shape, sequence
from tardigrad.learning.models.building_blocks import Tokens


class FedBuffLSTM(Architecture):
    """FedBuff's sentiment classifier for Sent140: 300-dimensional embeddings of 10,000 words, two LSTM
    layers of 100, a linear layer of 128, dropout 0.1 and the output layer.

    3,255,986 parameters with 2 classes; 3,001,200 of them are the embedding, which is not trained if it is
    initialised with GloVe vectors (`words_of = "glove"` of the data set sent140). As in LEAF, there is no
    activation between the two linear layers. The output is read at the last token that is not padding.
    """

    kind: Literal["fedbuff_lstm"] = "fedbuff_lstm"
    vocabulary: PositiveInt = 10_004
    """Number of tokens: words, and the special tokens for padding, begin, end and unknown."""
    embedding: PositiveInt = 300
    """Width of the embedding."""
    hidden: PositiveInt = 100
    """Width of the two LSTM layers."""
    linear: PositiveInt = 128
    """Width of the linear layer."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout probability between the LSTM layers and before the output layer."""
    pad: NonNegativeInt | None = 0
    """The padding token, if there is one."""
    train_vectors: bool = False
    """Whether given word vectors are trained. Without given vectors, the embedding is always trained."""

    def build(self, shape: Shape, classes: int, vectors: Tensor | None = None) -> nn.Module:
        """Build the module; `vectors`, with one row for each token, replaces `vocabulary` and `embedding`."""
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

    822,570 parameters with 90 characters. TensorFlow counts 2,048 fewer, because its LSTM has one bias where
    PyTorch's has two.
    """

    kind: Literal["char_lstm"] = "char_lstm"
    embedding: PositiveInt = 8
    """Width of the embedding."""
    hidden: PositiveInt = 256
    """Width of the LSTM layers."""
    layers: int = Field(default=2, gt=0, le=MOST_LAYERS)
    """Number of LSTM layers."""
    predict: Literal["next", "every"] = "next"
    """next: the character after the whole sequence (LEAF's labels). every: that after each character."""
    pad: NonNegativeInt | None = None
    """The padding token, if there is one."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        sequence(shape, self.kind)
        tokens = Tokens(classes, self.embedding)
        lstm = nn.LSTM(self.embedding, self.hidden, self.layers, batch_first=True)
        output = nn.Linear(self.hidden, classes)
        if self.predict == "every":
            return Every(tokens, lstm, output)
        return Last(tokens, lstm, output, self.pad)


class Every(nn.Module):
    """Returns an output for every position of the sequence."""

    def __init__(self, tokens: nn.Module, lstm: nn.LSTM, output: nn.Module) -> None:
        super().__init__()
        self.tokens, self.lstm, self.output = tokens, lstm, output

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.lstm(self.tokens(x))[0]
        return self.output(states)


class Last(nn.Module):
    """Returns one output, at the last position that is not padding (at the first, if all are)."""

    def __init__(self, tokens: nn.Module, lstm: nn.LSTM, output: nn.Module, pad: int | None) -> None:
        super().__init__()
        self.tokens, self.lstm, self.output, self.pad = tokens, lstm, output, pad

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.lstm(self.tokens(x))[0]
        if self.pad is None:
            return self.output(states[:, -1])
        last = ((x != self.pad) * torch.arange(x.shape[1], device=x.device)).amax(dim=1)
        return self.output(states[torch.arange(len(x), device=x.device), last])
