"""Vocabularies of words and characters, and GloVe's word vectors."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tardigrad.data.folder import require
from tardigrad.data.lines import read_lines
from tardigrad.errors import ConfigError
from tardigrad.learning.transform import Transform

PAD, BEGIN, END, UNKNOWN = range(4)
"""The special tokens, which come before the words in every vocabulary."""
SPECIAL = 4
"""Number of special tokens."""


class TokenNumbers(Transform):
    """Converts token numbers, which are stored in few bytes, to the int64 that an embedding takes."""

    def evaluate(self, features: Tensor) -> Tensor:
        return features.long()


class Characters:
    """A fixed alphabet of ASCII characters; any other character is encoded as a space.

    >>> Characters(" ab").encode("ba?").tolist()
    [2, 1, 0]
    """

    def __init__(self, alphabet: str) -> None:
        self.alphabet = alphabet
        self._numbers = np.full(256, alphabet.index(" "), dtype=np.uint8)
        self._numbers[[ord(character) for character in alphabet]] = np.arange(len(alphabet))

    def __len__(self) -> int:
        return len(self.alphabet)

    def encode(self, text: str) -> np.ndarray:
        """Return the number of each character of a text."""
        codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        return self._numbers[np.minimum(codes, 255)]


class Vocabulary:
    """Words, numbered after the special tokens.

    >>> v = Vocabulary(["the", "a"])
    >>> len(v), v.number("a"), v.number("zebra") == UNKNOWN
    (6, 5, True)
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self._numbers = {word: SPECIAL + i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return SPECIAL + len(self.words)

    def number(self, word: str) -> int:
        """Return the number of a word, or UNKNOWN."""
        return self._numbers.get(word, UNKNOWN)


class Corpus:
    """Texts of at most `length` words each, in one array; longer texts are cut off."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._ids: dict[str, int] = {}
        self._tokens = array("i")
        self._lengths = array("i")

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, words: Sequence[str]) -> None:
        """Append a text."""
        ids = self._ids
        words = words[: self._length]
        self._tokens.extend([ids.setdefault(word, len(ids)) for word in words])
        self._lengths.append(len(words))

    def most_frequent(self, size: int, texts: np.ndarray) -> Vocabulary:
        """Return the most frequent words of the texts in this mask; ties are in alphabetical order."""
        tokens = np.frombuffer(self._tokens, dtype=np.intc)
        counts = np.bincount(tokens[np.repeat(texts, self._lengths)], minlength=len(self._ids)).tolist()
        seen = [(-counts[i], word) for word, i in self._ids.items() if counts[i]]
        return Vocabulary([word for _, word in sorted(seen)[:size]])

    def numbered(self, vocabulary: Vocabulary) -> Tensor:
        """Return every text as `length` numbers, padded at the end."""
        return self._filled(vocabulary, self._length, first=0)

    def framed(self, vocabulary: Vocabulary) -> Tensor:
        """Return every text as `length` + 1 numbers: BEGIN, the words, END if it fits, and padding."""
        rows = self._filled(vocabulary, self._length + 1, first=1)
        rows[:, 0] = BEGIN
        lengths = torch.frombuffer(self._lengths, dtype=torch.int32).long()
        short = (lengths < self._length).nonzero().squeeze(1)
        rows[short, lengths[short] + 1] = END
        return rows

    def _filled(self, vocabulary: Vocabulary, width: int, first: int) -> Tensor:
        number_of = np.array(
            [vocabulary.number(word) for word in self._ids],
            dtype=np.int16 if len(vocabulary) <= np.iinfo(np.int16).max else np.int32,
        )
        rows = np.full((len(self), width), PAD, dtype=number_of.dtype)
        lengths = np.frombuffer(self._lengths, dtype=np.intc)[:, None]
        column = np.arange(width) - first
        rows[(column >= 0) & (column < lengths)] = number_of[np.frombuffer(self._tokens, dtype=np.intc)]
        return torch.from_numpy(rows)


def glove_file() -> Path:
    """Return the path of GloVe's 300-dimensional vectors in the data folder."""
    return require(
        "glove.6B.300d.txt",
        "glove/glove.6B.300d.txt",
        publisher="https://nlp.stanford.edu/projects/glove (glove.6B.zip)",
    )


def glove_vocabulary(file: Path, size: int) -> Vocabulary:
    """Return GloVe's first words, which are its most frequent ones."""
    words = [word for _, (word, _) in zip(range(size), _read_glove(file))]
    if len(words) < size:
        raise ConfigError(f"{file}: has {len(words)} words, not {size}; ask for fewer, or get it again")
    return Vocabulary(words)


def glove_matrix(file: Path, vocabulary: Vocabulary) -> Tensor:
    """Return a matrix with the vector of each number of the vocabulary.

    The unknown word, and words that GloVe does not have, get the mean of the other vectors; padding, begin
    and end are zero.
    """
    found: dict[int, np.ndarray] = {}
    for word, values in _read_glove(file):
        number = vocabulary.number(word)
        if number != UNKNOWN and number not in found:
            try:
                found[number] = np.array(values.split(" "), dtype=np.float32)
            except ValueError:
                raise ConfigError(f"{file}, word {word!r}: its vector is not all numbers") from None
    if not found:
        raise ConfigError(f"{file}: has none of the vocabulary's {len(vocabulary.words)} words")
    vectors = np.stack(list(found.values()))
    matrix = np.tile(vectors.mean(axis=0), (len(vocabulary), 1))
    matrix[[PAD, BEGIN, END]] = 0
    matrix[list(found)] = vectors
    return torch.from_numpy(matrix)


def _read_glove(file: Path) -> Iterable[tuple[str, str]]:
    """Yield the word and the vector (as text) of every line; all vectors must have the same length."""
    expected = None
    for number, line in read_lines(file):
        word, _, values = line.partition(" ")
        size = values.count(" ") + 1
        expected = expected or size
        if size != expected or not values:
            raise ConfigError(
                f"{file}, line {number}: a vector of {size} numbers, but the first line's has {expected}; "
                "the file is damaged or not GloVe's"
            )
        yield word, values
