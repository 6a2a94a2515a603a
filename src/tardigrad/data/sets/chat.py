"""Next-word prediction by user: chat messages, or any table of users and texts."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import PositiveInt

from tardigrad.data.by_user import Users, UserSource, federate
from tardigrad.data.clients import Federation
from tardigrad.data.folder import require
from tardigrad.data.lines import read_lines, read_table
from tardigrad.data.vocabulary import END, PAD, UNKNOWN, Corpus, TokenNumbers, Vocabulary
from tardigrad.errors import ConfigError
from tardigrad.learning.head import NextToken

_WORD = re.compile(r"[\w'-]+|[^\w\s]")

Text = tuple[str, Sequence[str], bool]
"""User, words, and whether it is in the publisher's test set."""


class NextWord(UserSource):
    """Settings of all data sets for next-word prediction.

    A text of w words is an example of `length` tokens: begin and the words; its labels are the words and
    the end, one place earlier. What is missing is padded, what is too long is cut off.
    """

    words: PositiveInt = 10_000
    """Size of the vocabulary (the most frequent words of the training texts), without the four special
    tokens."""
    length: PositiveInt = 20
    """Tokens that the model sees."""
    max_examples: PositiveInt = 1000
    """Of a user with more texts, the first so many are taken."""

    def _federation(self, texts: Iterator[Text], seed: int, vocabulary: Vocabulary | None) -> Federation:
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


class Chat(NextWord):
    """Chat messages by user (or any table of users and texts): the next word from those before it."""

    kind: Literal["chat"] = "chat"
    file: str = "chitchat/messages.tsv.xz"
    """In the data folder: a tab-separated table of user, text or user, timestamp, text; plain or .xz."""

    def federation(self, seed: int) -> Federation:
        """A function of the data and the seed."""
        file = require(self.file, publisher="https://github.com/BYU-PCCL/chitchat-dataset")
        return self._federation(read_texts(file), seed, None)


def read_texts(file: Path) -> Iterator[Text]:
    """Users and texts of a table with two columns (user, text) or three (user, timestamp, text)."""
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
    """Words (with their apostrophes and hyphens) and punctuation marks, in lower case."""
    return _WORD.findall(text.lower())
