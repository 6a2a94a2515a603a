"""Shakespeare's plays: predict the next character from the 80 before it; every role is a client."""

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
from tardigrad.learning.heads import MultiClass, NextToken

LENGTH = 80
"""Number of characters that the model sees."""
LEAF_ALPHABET = Characters(
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
"""The 80 characters of LEAF, in its order."""
PRINTABLE = Characters("\n" + "".join(map(chr, range(32, 127))))
"""The line break and the 95 printable characters of ASCII."""

FOLGER = "shakespeare/folger_speeches.jsonl.xz"
TINY = "shakespeare/tinyshakespeare.txt"


class Shakespeare(UserSource):
    """Shakespeare's plays, a client for each role: predict the next character from the 80 before it.

    In the editions folger and tiny, the test set is the last part of each role's text, and no training window
    overlaps it. LEAF's own train and test folders are used unchanged.
    """

    kind: Literal["shakespeare"] = "shakespeare"
    edition: Literal["leaf", "folger", "tiny"] = "leaf"
    """leaf (JSON of LEAF's preprocessing), folger (JSON lines: play, role_id, text) or tiny (one text with
    ROLE: above each speech)."""
    predict: Literal["next", "every"] = "next"
    """next: predict the character after each window; windows overlap. every: predict the character after each
    character of a window; windows do not overlap (editions folger and tiny only)."""
    min_examples: PositiveInt = 64
    """Roles with fewer training windows are left out."""

    @model_validator(mode="after")
    def _leaf_has_one_label(self) -> Shakespeare:
        if self.edition == "leaf" and self.predict == "every":
            raise ValueError(
                "LEAF's files have one label for each window; for predict = 'every' use edition 'folger' "
                "or 'tiny'"
            )
        return self

    def federation(self, seed: int) -> Federation:
        windows = _Windows(LEAF_ALPHABET if self.edition == "leaf" else PRINTABLE)
        stride = LENGTH if self.predict == "every" else 1
        match self.edition:
            case "leaf":
                for user in read_leaf("shakespeare", "; data.edition = 'folger' or 'tiny' takes a text"):
                    windows.add_windows(user)
            case "folger":
                windows.add_roles(_read_folger(require(FOLGER, publisher="https://www.folger.edu")), stride)
            case "tiny":
                publisher = "https://github.com/karpathy/char-rnn (data/tinyshakespeare/input.txt)"
                windows.add_roles(_read_tiny(require(TINY, publisher=publisher)), stride)
        users = Users(np.array(windows.users), windows.names)
        test = np.array(windows.test, dtype=bool)
        if not test.any():
            test = users.last_aside(self.test, seed)
        text = torch.frombuffer(windows.text, dtype=torch.uint8)
        features = text.unfold(0, LENGTH, 1)
        labels = features[1:] if self.predict == "every" else text[LENGTH:]
        rows = np.array(windows.starts)
        clients, central = federate((features, labels), users, test, self, seed, rows=rows)
        # No character is padding, so every label counts.
        head = NextToken(pad=-1) if self.predict == "every" else MultiClass()
        return Federation(clients, central, (LENGTH,), len(windows.alphabet), head, TokenNumbers())


class _Windows:
    """The text of all roles in one array of character numbers, and the positions where windows start."""

    def __init__(self, alphabet: Characters) -> None:
        self.alphabet = alphabet
        self.text = bytearray()
        self.starts, self.users, self.test = array("i"), array("i"), array("b")
        self._roles: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """The roles, in the order of their numbers."""
        return list(self._roles)

    def add_windows(self, user: LeafUser) -> None:
        """Add LEAF's windows of one role. Overlapping characters of successive windows are stored once."""
        number = self._roles.setdefault(user.name, len(self._roles))
        pieces, size, last = [], len(self.text), ""
        for window, character in zip(user.x, user.y):
            if not (isinstance(window, str) and isinstance(character, str)) or (
                (len(window), len(character)) != (LENGTH, 1)
            ):
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
        """Add speeches, each with its role. All speeches of a role make one text, after 80 spaces."""
        speeches: dict[str, list[str]] = {}
        for role, speech in roles:
            plain = unicodedata.normalize("NFKD", speech).encode("ascii", "ignore").decode()
            speeches.setdefault(role, []).append(plain)
        for number, (role, parts) in enumerate(speeches.items()):
            self._roles[role] = number
            text = "\n".join(parts)
            # The first window is the one whose label (next) or first label (every) is the first character.
            first = len(self.text) + (LENGTH - 1 if stride > 1 else 0)
            starts = np.arange(first, first + len(text) - (stride - 1), stride, dtype=np.intc)
            self.text += self.alphabet.encode(" " * LENGTH + text).tobytes()
            self.starts.frombytes(starts.tobytes())
            self.users.frombytes(np.full_like(starts, number).tobytes())
            self.test.frombytes(bytes(len(starts)))


def _read_folger(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the role and the text of every speech."""
    for number, line in read_lines(file):
        speech = parse_json(line, f"{file}, line {number}")
        try:
            yield f"{speech['play']}/{speech['role_id']}", speech["text"]
        except (TypeError, KeyError):
            raise ConfigError(
                f"{file}, line {number}: not a speech; it must have play, role_id and text"
            ) from None


def _read_tiny(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the role and the text of every speech; a line ROLE: after an empty line begins a speech."""
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
