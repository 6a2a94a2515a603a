"""Which versions of Flower this package works with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from tardigrad.errors import ConfigError

OLDEST = (1, 28)
"""The oldest version of Flower that the tests cover."""
TESTED = (1, 42)
"""The newest version of Flower that was tested. Newer ones are not refused."""


def check_flower() -> None:
    """Raise a ConfigError if Flower is not installed, or too old."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise ConfigError("Flower is not installed; pip install 'flwr>=1.28'") from None
    if numbers(found) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigError(
            f"Flower {found} is too old: this package needs {oldest} or newer; pip install --upgrade "
            f"'flwr>={oldest}'"
        )


def numbers(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version.

    >>> numbers("1.28.0"), numbers("1.42.0.dev20260101"), numbers("2")
    ((1, 28), (1, 42), (2, 0))
    """
    parts = [int(part) if part.isdigit() else 0 for part in (*text.split("."), "0")[:2]]
    return parts[0], parts[1]
