"""What several commands have in common."""

from __future__ import annotations

import os
from pathlib import Path


def look_in(data_dir: Path | None) -> None:
    """Have data sets looked for in this folder."""
    from tardigrad.data.folder import VARIABLE

    if data_dir is not None:
        os.environ[VARIABLE] = str(data_dir)
