"""The experiments that are part of the package: the demo, the papers' tables and figures, and others."""

from __future__ import annotations

from pathlib import Path

from tardigrad.errors import ConfigError

LIBRARY = Path(__file__).parent


def packaged(name: str) -> Path:
    """Return the file of an experiment of the package, such as "demo" or "fedbuff/table1".

    >>> packaged("fedbuff/table1").name
    'table1.toml'
    """
    there = {str(file.relative_to(LIBRARY).with_suffix("")): file for file in sorted(LIBRARY.rglob("*.toml"))}
    if name not in there:
        raise ConfigError(f"{name}: there is no such experiment; there are: {', '.join(there)}")
    return there[name]
