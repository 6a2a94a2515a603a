"""StackOverflow: predict the next word of questions and answers; every user is a client."""

from __future__ import annotations

import random
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any, Literal, Protocol

from pydantic import PositiveInt

from tardigrad.core.extras import pip_install
from tardigrad.data.clients import Federation
from tardigrad.data.folder import require
from tardigrad.data.lines import read_lines
from tardigrad.data.next_word import NextWord, Text, read_texts
from tardigrad.data.vocabulary import Vocabulary
from tardigrad.errors import ConfigError

PUBLISHER = "https://storage.googleapis.com/tff-datasets-public/"


class StackOverflow(NextWord):
    """StackOverflow by user, as TensorFlow Federated publishes it: predict the next word.

    The test set is a sample of the publisher's: all texts of users in random order, until there are
    `test_examples`.
    """

    kind: Literal["stackoverflow"] = "stackoverflow"
    format: Literal["sqlite", "hdf5", "tsv"] = "sqlite"
    """In the data folder's stackoverflow/: sqlite (stackoverflow.sqlite), hdf5 (stackoverflow_train.h5 and
    _test.h5) or tsv (stackoverflow.tsv, plain or .xz: user, text)."""
    words_of: Literal["data", "publisher"] = "data"
    """The vocabulary: the most frequent words of the training texts, or the publisher's list
    (stackoverflow.word_count)."""
    max_clients: PositiveInt | None = None
    """Read only this many users, in the order of their ids (default: all)."""

    def federation(self, seed: int) -> Federation:
        vocabulary = _publishers_words(self.words) if self.words_of == "publisher" else None
        return self._build(self._texts(seed), seed, vocabulary)

    def _texts(self, seed: int) -> Iterator[Text]:
        if self.format == "tsv":
            choices = ("stackoverflow/stackoverflow.tsv", "stackoverflow/stackoverflow.tsv.xz")
            yield from read_texts(require(*choices, publisher=PUBLISHER))
            return
        with closing(_SQLite() if self.format == "sqlite" else _HDF5()) as store:
            for user in islice(store.users("train"), self.max_clients):
                for text in store.texts("train", user, self.max_examples):
                    yield user, text.decode("utf-8", "replace").split(), False
            wanted = self.test_examples or sys.maxsize
            users = list(store.users("test"))
            for user in random.Random(seed).sample(users, len(users)):
                for text in store.texts("test", user, min(self.max_examples, wanted)):
                    yield user, text.decode("utf-8", "replace").split(), True
                    wanted -= 1
                if wanted <= 0:
                    return


class _Store(Protocol):
    """One of the formats in which the data is published."""

    def users(self, split: str) -> Iterator[str]:
        """Yield the ids of the users that have texts in this split, in order."""

    def texts(self, split: str, user: str, at_most: int) -> list[bytes]:
        """Return the first texts of a user: words separated by spaces."""

    def close(self) -> None:
        """Close the files."""


class _HDF5:
    """Two HDF5 files with a group examples/USER/ of columns, one of them `tokens`."""

    def __init__(self) -> None:
        try:
            import h5py
        except ImportError:
            raise ConfigError(
                f"data.format 'hdf5' needs h5py (or use 'sqlite'): {pip_install('data')}"
            ) from None
        self._files = {}
        for split in ("train", "test"):
            file = require(
                f"stackoverflow/stackoverflow_{split}.h5", publisher=f"{PUBLISHER}stackoverflow.tar.bz2"
            )
            try:
                self._files[split] = h5py.File(file, "r")
            except OSError as error:
                raise ConfigError(f"{file}: not a whole HDF5 file ({error}); get it again") from None
            if "examples" not in self._files[split]:
                raise ConfigError(f"{file}: has no group 'examples'; it is not the publisher's file")

    def users(self, split: str) -> Iterator[str]:
        return iter(self._files[split]["examples"])

    def texts(self, split: str, user: str, at_most: int) -> list[bytes]:
        file = self._files[split]
        try:
            return list(file["examples"][user]["tokens"][:at_most])
        except (KeyError, OSError) as error:
            raise ConfigError(
                f"{file.filename}, examples/{user}/tokens: {error}; get the file again"
            ) from None

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class _SQLite:
    """One SQLite database with a row for each text: a serialized tf.train.Example with a feature `tokens`."""

    def __init__(self) -> None:
        self._file = require(
            "stackoverflow/stackoverflow.sqlite", publisher=f"{PUBLISHER}stackoverflow.sqlite.lzma"
        )
        with self._file.open("rb") as content:
            header = content.read(100)
        # The page size and the number of pages: see https://www.sqlite.org/fileformat.html
        page, pages = int.from_bytes(header[16:18]), int.from_bytes(header[28:32])
        size = (65536 if page == 1 else page) * pages
        if not header.startswith(b"SQLite format 3\0") or self._file.stat().st_size < size:
            raise ConfigError(
                f"{self._file}: not a whole SQLite database; get it again and unpack it (.lzma)"
            )
        self._connection = sqlite3.connect(f"{self._file.absolute().as_uri()}?mode=ro", uri=True)
        self._counts: dict[tuple[str, str], int] = {}

    def users(self, split: str) -> Iterator[str]:
        for user, count in self._rows(
            "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ? ORDER BY client_id",
            split,
        ):
            self._counts[split, user] = count
            yield user

    def texts(self, split: str, user: str, at_most: int) -> list[bytes]:
        rows = self._rows(
            "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? "
            "ORDER BY rowid LIMIT ?",
            split,
            user,
            at_most,
        )
        try:
            texts = [_feature(example, b"tokens") for (example,) in rows]
        except (KeyError, IndexError, TypeError):
            raise ConfigError(f"{self._file}, user {user}: an example has no text 'tokens'") from None
        if len(texts) != min(at_most, self._counts[split, user]):
            raise ConfigError(
                f"{self._file}, user {user}: {len(texts)} texts in {split!r}, but client_metadata counts "
                f"{self._counts[split, user]}; get the file again"
            )
        return texts

    def _rows(self, query: str, *values: str | int) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise ConfigError(f"{self._file}: not the publisher's database ({error})") from None

    def close(self) -> None:
        self._connection.close()


def _feature(example: bytes, name: bytes) -> bytes:
    """Return the first value of a bytes feature in a serialized tf.train.Example."""
    for entry in _fields(_fields(example)[1][0])[1]:  # Example.features.feature: a map of name to Feature
        parts = _fields(entry)
        if parts[1][0] == name:
            return _fields(_fields(parts[2][0])[1][0])[1][0]  # Feature.bytes_list.value
    raise KeyError(name)


def _fields(message: bytes) -> dict[int, list[bytes]]:
    """Return the length-delimited fields of a protocol buffer message by number.

    A truncated message raises an IndexError. A tf.train.Example has fields of other types only inside
    Int64List and FloatList, which are not read.
    """
    fields: dict[int, list[bytes]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        number, wire_type = divmod(varint(), 8)
        size = varint()
        if wire_type != 2 or at + size > len(message):
            raise IndexError(at)
        fields.setdefault(number, []).append(message[at : at + size])
        at += size
    return fields


def _publishers_words(size: int) -> Vocabulary:
    """Return the first words of the publisher's list, which is sorted by frequency."""
    file = require(
        "stackoverflow/stackoverflow.word_count", publisher=f"{PUBLISHER}stackoverflow.word_count.tar.bz2"
    )
    words = []
    for number, line in islice(read_lines(file), size):
        match line.split():
            case [word, count] if count.isdigit():
                words.append(word)
            case _:
                raise ConfigError(f"{file}, line {number}: not a word and how many users have it")
    if len(words) < size:
        raise ConfigError(f"{file}: has {len(words)} words, not {size}; ask for fewer, or get it again")
    return Vocabulary(words)
