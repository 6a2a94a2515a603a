"""Words and characters as numbers, and GloVe's vectors for them."""

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
"""What stands before the words in every vocabulary."""
SPECIAL = 4


class TokenNumbers(Transform):
    """Token numbers, held in few bytes, as the whole numbers that an embedding takes."""

    def evaluate(self, features: Tensor) -> Tensor:
        return features.long()


class Characters:
    """A fixed alphabet (of ASCII); a character that is not in it counts as a space.

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
        """The numbers of a text's characters."""
        codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        return self._numbers[np.minimum(codes, 255)]


class Vocabulary:
    """Words by number, after the special tokens.

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
        """The number of a word, or UNKNOWN."""
        return self._numbers.get(word, UNKNOWN)


class Corpus:
    """Texts of at most `length` words each (what follows is cut off), in one array with offsets."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._ids: dict[str, int] = {}
        self._tokens = array("i")
        self._lengths = array("i")

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, words: Sequence[str]) -> None:
        """The next text."""
        ids = self._ids
        words = words[: self._length]
        self._tokens.extend([ids.setdefault(word, len(ids)) for word in words])
        self._lengths.append(len(words))

    def most_frequent(self, size: int, texts: np.ndarray) -> Vocabulary:
        """The words that occur most often in the texts of this mask; the alphabet decides among equals."""
        tokens = np.frombuffer(self._tokens, dtype=np.intc)
        counts = np.bincount(tokens[np.repeat(texts, self._lengths)], minlength=len(self._ids)).tolist()
        seen = [(-counts[i], word) for word, i in self._ids.items() if counts[i]]
        return Vocabulary([word for _, word in sorted(seen)[:size]])

    def numbered(self, vocabulary: Vocabulary) -> Tensor:
        """Every text as `length` numbers, padded at its end."""
        return self._filled(vocabulary, self._length, first=0)

    def framed(self, vocabulary: Vocabulary) -> Tensor:
        """Every text as `length` + 1 numbers: BEGIN, the words, END if there is room, padding."""
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
    """GloVe's 300-dimensional vectors in the data folder."""
    return require(
        "glove.6B.300d.txt",
        "glove/glove.6B.300d.txt",
        publisher="https://nlp.stanford.edu/projects/glove (glove.6B.zip)",
    )


def glove_vocabulary(file: Path, size: int) -> Vocabulary:
    """GloVe's first words, which are its most frequent."""
    words = [word for _, (word, _) in zip(range(size), _glove(file))]
    if len(words) < size:
        raise ConfigError(f"{file}: has {len(words)} words, not {size}; ask for fewer, or get it again")
    return Vocabulary(words)


def glove_matrix(file: Path, vocabulary: Vocabulary) -> Tensor:
    """A row for each number of the vocabulary. Words that GloVe does not have, and the unknown word, get the
    mean of the others; padding, begin and end are zero."""
    found: dict[int, np.ndarray] = {}
    for word, values in _glove(file):
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


def _glove(file: Path) -> Iterable[tuple[str, str]]:
    """Word and vector, as text, of every line; all vectors must have the first one's length."""
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
