"""Next-word prediction for each user: what the data sets chat and stackoverflow share."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from pydantic import PositiveInt

from tardigrad.data.by_user import Users, UserSource, federate
from tardigrad.data.clients import Federation
from tardigrad.data.lines import read_lines, read_table
from tardigrad.data.vocabulary import END, PAD, UNKNOWN, Corpus, TokenNumbers, Vocabulary
from tardigrad.errors import ConfigError
from tardigrad.learning.heads import NextToken

_WORD = re.compile(r"[\w'-]+|[^\w\s]")

Text = tuple[str, Sequence[str], bool]
"""The user, the words, and whether the text is in the publisher's test set."""


class NextWord(UserSource):
    """Settings that all data sets for next-word prediction share.

    A text becomes one example of `length` tokens: the begin token, then the words. Its labels are the same
    sequence shifted by one: the words, then the end token. Short texts are padded, long ones are cut off.
    """

    words: PositiveInt = 10_000
    """Size of the vocabulary (the most frequent words of the training texts), without the four special
    tokens."""
    length: PositiveInt = 20
    """Number of tokens that the model sees."""
    max_examples: PositiveInt = 1000
    """Maximum number of texts of one user; the first ones are taken."""

    def _build(self, texts: Iterator[Text], seed: int, vocabulary: Vocabulary | None) -> Federation:
        """Build the federation; without a vocabulary, it is made from the training texts."""
        corpus, of, test, names = Corpus(self.length), array("i"), array("b"), dict[str, int]()
        taken: Counter[tuple[str, bool]] = Counter()
        for user, words, in_test in texts:
            if words and taken[user, in_test] < self.max_examples:
                taken[user, in_test] += 1
                corpus.add(words)
                of.append(names.setdefault(user, len(names)))
                test.append(in_test)
        users, held = Users(np.array(of), list(names)), np.array(test, dtype=bool)
        if not held.any():
            held = users.aside(self.test, seed)
        vocabulary = vocabulary or corpus.most_frequent(self.words, ~held)
        rows = corpus.framed(vocabulary)
        clients, central = federate((rows[:, :-1], rows[:, 1:]), users, held, self, seed)
        head = NextToken(pad=PAD, unscored=(END, UNKNOWN))
        return Federation(clients, central, (self.length,), len(vocabulary), head, TokenNumbers())


def read_texts(file: Path) -> Iterator[Text]:
    """Yield the texts of a table with two columns (user, text) or three (user, timestamp, text)."""
    _, first = next(read_lines(file), (0, ""))
    columns = {2: ("user", "text"), 3: ("user", "timestamp", "text")}.get(first.count("\t") + 1)
    if columns is None:
        raise ConfigError(
            f"{file}, line 1: must have two tab-separated fields (user, text) or three (user, timestamp, "
            "text)"
        )
    for _, row in read_table(file, *columns):
        yield row[0], split_words(row[-1]), False


def split_words(text: str) -> list[str]:
    """Split a text into words and punctuation marks, in lower case.

    >>> split_words("Don't e-mail me!")
    ["don't", 'e-mail', 'me', '!']
    """
    return _WORD.findall(text.lower())
