"""Chat messages, or any table of users and texts, for next-word prediction; every user is a client."""

from __future__ import annotations

from typing import Literal

from tardigrad.data.clients import Federation
from tardigrad.data.folder import require
from tardigrad.data.next_word import NextWord, read_texts


class Chat(NextWord):
    """Chat messages by user (or any table of users and texts): predict the next word."""

    kind: Literal["chat"] = "chat"
    file: str = "chitchat/messages.tsv.xz"
    """In the data folder: a tab-separated table of user, text or user, timestamp, text; plain or .xz."""

    def federation(self, seed: int) -> Federation:
        file = require(self.file, publisher="https://github.com/BYU-PCCL/chitchat-dataset")
        return self._build(read_texts(file), seed, None)
