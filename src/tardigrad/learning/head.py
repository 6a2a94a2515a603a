"""The former place of `tardigrad.learning.heads`, whose names can still be imported from here."""

from tardigrad.learning.heads import (
    BUILT_IN,
    Binary,
    Head,
    MultiClass,
    MultiLabel,
    NextToken,
    Outputs,
    average_precision,
)

__all__ = [
    "BUILT_IN",
    "Binary",
    "Head",
    "MultiClass",
    "MultiLabel",
    "NextToken",
    "Outputs",
    "average_precision",
]
