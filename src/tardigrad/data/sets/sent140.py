"""Sent140: the sentiment of tweets, positive or negative; every account is a client."""

from __future__ import annotations

import html
import re
from array import array
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from pydantic import PositiveInt

from tardigrad.data.by_user import Users, UserSource, federate
from tardigrad.data.clients import Federation
from tardigrad.data.folder import data_folder
from tardigrad.data.lines import read_table
from tardigrad.data.sets.leaf import read_leaf
from tardigrad.data.vocabulary import (
    Corpus,
    TokenNumbers,
    Vocabulary,
    glove_file,
    glove_matrix,
    glove_vocabulary,
)
from tardigrad.errors import ConfigError
from tardigrad.learning.heads import Binary

_WORD = re.compile(r"[\w']+|[.,!?;]")

_LABELS = {"0": 0, "1": 1, "4": 1}
"""Negative is 0; positive is 1 in LEAF's files and 4 in the original ones."""


class Sent140(UserSource):
    """Tweets by account, positive or negative: the first 25 words of each, in lower case, HTML unescaped."""

    kind: Literal["sent140"] = "sent140"
    format: Literal["leaf", "tsv"] = "leaf"
    """leaf (JSON of LEAF's preprocessing) or tsv (sent140/*.tsv, plain or .xz: user, label, text)."""
    words: PositiveInt = 10_000
    """Size of the vocabulary, without the four special tokens."""
    words_of: Literal["data", "glove"] = "data"
    """The vocabulary: the most frequent words of the training tweets, or the first of GloVe
    (glove.6B.300d.txt), whose vectors initialise the model."""
    length: PositiveInt = 25
    """Number of words of a tweet that the model sees."""

    def federation(self, seed: int) -> Federation:
        tweets = _Tweets(self, seed)
        clients, test = federate(
            (tweets.corpus.numbered(tweets.vocabulary), torch.tensor(tweets.labels, dtype=torch.uint8)),
            tweets.users,
            tweets.test,
            self,
            seed,
        )
        vectors = glove_matrix(glove_file(), tweets.vocabulary) if self.words_of == "glove" else None
        return Federation(clients, test, (self.length,), 1, Binary(), TokenNumbers(), vectors)


class _Tweets:
    """All tweets, with their labels, accounts and vocabulary."""

    def __init__(self, settings: Sent140, seed: int) -> None:
        self.corpus = Corpus(settings.length)
        self.labels, of, test = array("B"), array("i"), array("b")
        accounts: dict[str, int] = {}
        tweets = _read_leaf_tweets() if settings.format == "leaf" else _read_tsv_tweets()
        for where, account, label, text, in_test in tweets:
            number = _LABELS.get(str(label))
            if number is None:
                raise ConfigError(f"{where}: the label {label!r} is not 0 (negative), 1 or 4 (positive)")
            self.corpus.add(_WORD.findall(html.unescape(text).lower()))
            self.labels.append(number)
            of.append(accounts.setdefault(account, len(accounts)))
            test.append(in_test)
        self.users = Users(np.array(of), list(accounts))
        self.test = np.array(test, dtype=bool)
        if not self.test.any():
            self.test = self.users.aside(settings.test, seed)
        self.vocabulary: Vocabulary
        if settings.words_of == "glove":
            self.vocabulary = glove_vocabulary(glove_file(), settings.words)
        else:
            self.vocabulary = self.corpus.most_frequent(settings.words, ~self.test)


_Tweet = tuple[str, str, object, str, bool]
"""The location in its file, the account, label and text, and whether it is in the publisher's test set."""


def _read_leaf_tweets() -> Iterator[_Tweet]:
    for user in read_leaf("sent140", "; data.format = 'tsv' takes a table of user, label, text"):
        where = f"{user.file}, user {user.name}"
        for x, y in zip(user.x, user.y):
            if not isinstance(x, list) or len(x) < 5 or not isinstance(x[4], str):
                raise ConfigError(
                    f"{where}: {str(x)[:80]} is not a tweet of LEAF: id, date, query, user, text"
                )
            yield where, user.name, y, x[4], user.test


def _read_tsv_tweets() -> Iterator[_Tweet]:
    folder = data_folder() / "sent140"
    files = sorted([*folder.glob("*.tsv"), *folder.glob("*.tsv.xz")])
    if len(files) != 1:
        raise ConfigError(
            f"data: put one file *.tsv or *.tsv.xz (user, label, text) into {folder}; there are {len(files)}"
        )
    for line, (user, label, text) in read_table(files[0], "user", "label", "text"):
        yield f"{files[0]}, line {line}", user, label, text, False
