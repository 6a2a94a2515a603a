"""How a helper refuses calls of a server and uploads of clients."""

from __future__ import annotations

from enum import StrEnum
from typing import NoReturn

RESEAL = "sealed to an old key"
"""The refusal of an upload whose client must ask for the present key, seal again and deliver again. All other
refusals of uploads are final."""


class RefusalKind(StrEnum):
    """Why a call was refused; the server acts on it."""

    TOO_FEW = "too few clients"
    """The batch can only be abandoned."""
    HISTORY = "another history"
    """A side was put back from a backup, or there would be two histories."""
    ORDER = "not now"
    """The call does not fit what has happened so far."""
    POLICY = "policy"
    """The policy is not acceptable, or not the one that the run began with."""
    BUDGET = "budget used up"
    """The noise allows no further step."""


class HelperRefusal(Exception):
    """A call that was refused, with one sentence for the server's operator. It has changed nothing."""

    def __init__(self, kind: RefusalKind, sentence: str) -> None:
        super().__init__(sentence)
        self.kind, self.sentence = kind, sentence


def refuse(kind: RefusalKind, sentence: str) -> NoReturn:
    """Refuse a call."""
    raise HelperRefusal(kind, sentence)
