"""A summary of a helper's folder, for its operator. It can be read while the helper runs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tardigrad.errors import ConfigError
from tardigrad.secure.helper_database import FILE
from tardigrad.secure.policy import Policy, read_policy


@dataclass(frozen=True)
class HelperSummary:
    """The run in a helper's folder. There is nothing secret in it."""

    policy: Policy
    version: int
    """The newest version with a receipt."""
    released: int
    """Batches."""
    abandoned: int
    admitted: int
    """Uploads."""
    refused: dict[str, int]
    """Uploads by reason."""
    clients: int
    """Clients whose uploads were admitted."""


def read_summary(folder: Path) -> HelperSummary | None:
    """Return what the folder holds; None if no run has begun there. Raise a ConfigError if it is not the
    folder of a helper."""
    file = (folder / FILE).absolute()
    if not file.exists():
        raise ConfigError(f"--out {folder}: is not the folder of a helper")
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
            row = database.execute("SELECT value FROM facts WHERE name = 'policy'").fetchone()
            if row is None:
                return None
            version, released, abandoned, admitted, clients = database.execute(
                "SELECT (SELECT max(version) FROM receipts), "
                "(SELECT count(*) FROM batches WHERE NOT abandoned), "
                "(SELECT count(*) FROM batches WHERE abandoned), count(*), count(DISTINCT client) "
                "FROM trips WHERE batch > 0"
            ).fetchone()
            refused = database.execute(
                "SELECT refusal, count(*) FROM trips WHERE batch = 0 GROUP BY refusal ORDER BY refusal"
            ).fetchall()
    except sqlite3.Error as error:
        raise ConfigError(f"{file} cannot be read ({error})") from None
    return HelperSummary(read_policy(row[0]), version, released, abandoned, admitted, dict(refused), clients)
