"""Commands that install optional packages, for error messages."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires


def pip_install(extra: str) -> str:
    """Return the commands that install the packages of an extra: in a clone, and beside an installed wheel.

    They do not name this package, because a package of this name on an index may be another project's.

    >>> pip_install("tune")
    "pip install -c constraints.txt -e '.[tune]' in a clone, or pip install 'optuna>=3.6'"
    """
    clone = f"pip install -c constraints.txt -e '.[{extra}]' in a clone"
    try:
        listed = requires("tardigrad") or []
    except PackageNotFoundError:
        return clone
    parts = [one.partition(";") for one in listed]
    names = [name.strip() for name, _, marker in parts if f'extra == "{extra}"' in marker.replace("'", '"')]
    return f"{clone}, or pip install " + " ".join(f"'{name}'" for name in names) if names else clone
