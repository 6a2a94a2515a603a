"""What was worked out when a private run began, kept in its folder.

A run that is resumed must add the same noise, although the table of BLT constants or the accountant may have
changed with the installed version: other constants would make other noise of the same keys.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from tardigrad.core.files import write_text
from tardigrad.errors import RunError
from tardigrad.privacy.blt import Toeplitz

CHOSEN = "privacy.json"
"""In a run's folder."""


class Chosen(NamedTuple):
    """The noise of a run: how much of it, for how many steps, and the constants of BLT noise."""

    noise_multiplier: float
    allowed: int
    toeplitz: Toeplitz | None = None

    def write(self, file: Path) -> None:
        """Write it, whole or not at all."""
        document = self._asdict() | {"toeplitz": self.toeplitz and self.toeplitz._asdict()}
        write_text(file, json.dumps(document | {"sha256": _checksum(document)}, indent=2) + "\n")

    @staticmethod
    def read(file: Path) -> Chosen | None:
        """What a run began with, or None if it has not begun."""
        if not file.exists():
            return None
        try:
            document = json.loads(file.read_text())
            if document.pop("sha256") != _checksum(document):
                raise ValueError("its checksum does not match")
            given = document["toeplitz"]
            toeplitz = None
            if given is not None:
                decay, scale = given["inverse_decay"], given["inverse_scale"]
                toeplitz = Toeplitz(tuple(map(float, decay)), tuple(map(float, scale)))
            return Chosen(float(document["noise_multiplier"]), int(document["allowed"]), toeplitz)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(
                f"{file} is damaged ({error}); put it back from a backup, or start a new run"
            ) from None


def _checksum(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
