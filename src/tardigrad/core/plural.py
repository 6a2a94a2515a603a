"""Numbers with their nouns in generated sentences."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun, in the plural unless the number is 1.

    >>> counted(1, "client"), counted(2000, "client"), counted(2, "entry", "entries")
    ('1 client', '2,000 clients', '2 entries')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
