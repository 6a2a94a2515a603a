"""What several commands have in common."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

Guard = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Of a private run: a file outside DIR that notices a folder from a backup."
    ),
]
Moved = Annotated[
    bool, typer.Option("--moved", help="Of a private run: DIR was moved here, and the original is not used.")
]


def look_in(data_dir: Path | None) -> None:
    """Have data sets looked for in this folder."""
    from tardigrad.data.folder import VARIABLE

    if data_dir is not None:
        os.environ[VARIABLE] = str(data_dir)
