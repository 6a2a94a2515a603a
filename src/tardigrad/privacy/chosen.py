"""The noise that was chosen when a private run began, kept in the run's folder.

A resumed run must add the same noise, although an upgrade may have changed the table of BLT constants or the
accountant. Other constants would make other noise from the same keys.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from tardigrad.core.files import write_text
from tardigrad.errors import RunError
from tardigrad.privacy.blt import Toeplitz

CHOSEN = "privacy.json"
"""The name of the file in the run's folder."""


class Chosen(NamedTuple):
    """The noise of a run: its multiplier, the number of allowed steps, and the constants of BLT noise."""

    noise_multiplier: float
    allowed: int
    toeplitz: Toeplitz | None = None

    def write(self, file: Path) -> None:
        """Write the file atomically."""
        document = self._asdict() | {"toeplitz": self.toeplitz and self.toeplitz._asdict()}
        write_text(file, json.dumps(document | {"sha256": _checksum(document)}, indent=2) + "\n")

    @staticmethod
    def read(file: Path) -> Chosen | None:
        """Return what a run began with, or None if it has not begun. A damaged file is a RunError."""
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


def _checksum(document: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
