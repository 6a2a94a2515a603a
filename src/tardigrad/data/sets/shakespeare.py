"""Shakespeare by role: guess the next character from the 80 before it; every role of a play is a client."""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import PositiveInt, model_validator

from tardigrad.data.by_user import Users, UserSource, federate
from tardigrad.data.clients import Federation
from tardigrad.data.folder import require
from tardigrad.data.lines import parse_json, read_lines
from tardigrad.data.sets.leaf import LeafUser, read_leaf
from tardigrad.data.vocabulary import Characters, TokenNumbers
from tardigrad.errors import ConfigError
from tardigrad.learning.head import MultiClass, NextToken

LENGTH = 80
"""Characters that the model sees."""
LEAF_ALPHABET = Characters(
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
"""The 80 characters of LEAF, in its order."""
PRINTABLE = Characters("\n" + "".join(map(chr, range(32, 127))))
"""The line break and the 95 printable characters of ASCII."""

FOLGER = "shakespeare/folger_speeches.jsonl.xz"
TINY = "shakespeare/tinyshakespeare.txt"


class Shakespeare(UserSource):
    """Shakespeare's plays, a client for each role: the next character from the 80 before it.

    Of the texts (folger, tiny) the last part of what a role says is the test set: no window that is
    trained on reaches into it. LEAF's train and test folders are taken as they are.
    """

    kind: Literal["shakespeare"] = "shakespeare"
    edition: Literal["leaf", "folger", "tiny"] = "leaf"
    """leaf (JSON of LEAF's preprocessing), folger (JSON lines: play, role_id, text) or tiny (one text with
    ROLE: above each speech)."""
    predict: Literal["next", "every"] = "next"
    """next: one character after each window, windows overlap; every: all characters of a window, windows
    follow each other (only for the texts)."""
    min_examples: PositiveInt = 64
    """Roles with fewer windows to train on are left out."""

    @model_validator(mode="after")
    def _leaf_has_one_label(self) -> Shakespeare:
        if self.edition == "leaf" and self.predict == "every":
            raise ValueError(
                "LEAF's files have one label for each window; for predict = 'every' use edition 'folger' "
                "or 'tiny'"
            )
        return self

    def federation(self, seed: int) -> Federation:
        """A function of the data and the seed."""
        said = _Said(LEAF_ALPHABET if self.edition == "leaf" else PRINTABLE)
        stride = LENGTH if self.predict == "every" else 1
        match self.edition:
            case "leaf":
                for user in read_leaf("shakespeare", "; data.edition = 'folger' or 'tiny' takes a text"):
                    said.add_windows(user)
            case "folger":
                said.add_roles(_folger(require(FOLGER, publisher="https://www.folger.edu")), stride)
            case "tiny":
                publisher = "https://github.com/karpathy/char-rnn (data/tinyshakespeare/input.txt)"
                said.add_roles(_tiny(require(TINY, publisher=publisher)), stride)
        users = Users(np.array(said.users), said.names)
        test = np.array(said.test, dtype=bool)
        if not test.any():
            test = users.last_aside(self.test, seed)
        text = torch.frombuffer(said.text, dtype=torch.uint8)
        windows = text.unfold(0, LENGTH, 1)
        labels = windows[1:] if self.predict == "every" else text[LENGTH:]
        clients, central = federate((windows, labels), users, test, self, seed, rows=np.array(said.starts))
        # every label counts: no character is padding
        head = NextToken(pad=-1) if self.predict == "every" else MultiClass()
        return Federation(clients, central, (LENGTH,), len(said.alphabet), head, TokenNumbers())


class _Said:
    """All that is said, in one array of character numbers, and the places where the windows start."""

    def __init__(self, alphabet: Characters) -> None:
        self.alphabet = alphabet
        self.text = bytearray()
        self.starts, self.users, self.test = array("i"), array("i"), array("b")
        self._roles: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        return list(self._roles)

    def add_windows(self, user: LeafUser) -> None:
        """LEAF's windows. Where one continues that before it, only its new character is stored."""
        number = self._roles.setdefault(user.name, len(self._roles))
        pieces, size, last = [], len(self.text), ""
        for window, character in zip(user.x, user.y):
            if len(str(window)) != LENGTH or len(str(character)) != 1:
                raise ConfigError(
                    f"{user.file}, user {user.name}: {str(window)[:LENGTH]!r} and {str(character)[:9]!r} are "
                    f"not a window of {LENGTH} characters and the one after it"
                )
            if window != last:
                pieces.append(window)
                size += LENGTH
            self.starts.append(size - LENGTH)
            pieces.append(character)
            size += 1
            last = window[1:] + character
        self.text += self.alphabet.encode("".join(pieces)).tobytes()
        self.users.extend([number] * len(user.y))
        self.test.extend([user.test] * len(user.y))

    def add_roles(self, roles: Iterator[tuple[str, str]], stride: int) -> None:
        """Speeches, each with its role. What a role says in one play is one text, after 80 spaces."""
        speeches: dict[str, list[str]] = {}
        for role, speech in roles:
            plain = unicodedata.normalize("NFKD", speech).encode("ascii", "ignore").decode()
            speeches.setdefault(role, []).append(plain)
        for number, (role, parts) in enumerate(speeches.items()):
            self._roles[role] = number
            text = "\n".join(parts)
            # the window that starts here has the text's first character as its label: the only one (next)
            # or the first of all (every)
            first = len(self.text) + (LENGTH - 1 if stride > 1 else 0)
            starts = np.arange(first, first + len(text) - (stride - 1), stride, dtype=np.intc)
            self.text += self.alphabet.encode(" " * LENGTH + text).tobytes()
            self.starts.frombytes(starts.tobytes())
            self.users.frombytes(np.full_like(starts, number).tobytes())
            self.test.frombytes(bytes(len(starts)))


def _folger(file: Path) -> Iterator[tuple[str, str]]:
    for number, line in read_lines(file):
        speech = parse_json(line, f"{file}, line {number}")
        try:
            yield f"{speech['play']}/{speech['role_id']}", speech["text"]
        except (TypeError, KeyError):
            raise ConfigError(
                f"{file}, line {number}: not a speech; it must have play, role_id and text"
            ) from None


def _tiny(file: Path) -> Iterator[tuple[str, str]]:
    role, blank = "", True
    speech: list[str] = []
    for number, line in read_lines(file):
        if blank and line.endswith(":"):
            if speech:
                yield role, "\n".join(speech)
            role, speech = line[:-1], []
        elif line and not role:
            raise ConfigError(f"{file}, line {number}: {line[:40]!r} comes before any line with ROLE:")
        elif line:
            speech.append(line)
        blank = not line
    if speech:
        yield role, "\n".join(speech)
