"""The numbers of a chart for the reader's browser, which draws it as the live page does.

`watch/static/charts.js` draws it. A chart without numbers stays the picture that it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NotRequired, TypedDict

from tardigrad.experiments.report.run_record import FloatArray

DASHES: tuple[list[int], ...] = ([], [6, 4], [8, 3, 2, 3], [2, 2], [8, 2], [4, 2, 2, 2])
"""As lines are dashed in the pictures."""
COLOURS = 7


class ChartLine(TypedDict):
    """One line or row of bars."""

    label: str
    x: list[float | None]
    y: list[float | None]
    low: NotRequired[list[float | None]]
    high: NotRequired[list[float | None]]
    """The band around it."""
    colour: int
    dash: NotRequired[list[int]]


class ChartLevel(TypedDict):
    """A horizontal line."""

    value: float
    text: str
    right: NotRequired[bool]
    """Whether the text is at the right end."""


ChartTrip = TypedDict(
    "ChartTrip",
    {
        "trip": int, "client": str, "start": float, "end": float, "from": int, "fate": str,
        "staleness": int | None,
    },
)  # fmt: skip
"""One trip in a chart of trips against versions."""


class ChartSpec(TypedDict):
    """One chart."""

    kind: Literal["lines", "bars", "trips"]
    x: str
    y: str
    percent: NotRequired[bool]
    whole: NotRequired[bool]
    """Whether the horizontal axis has whole numbers only."""
    zero: NotRequired[bool]
    """Whether the vertical axis begins at 0."""
    top: NotRequired[float]
    """Where the vertical axis ends at most."""
    stepped: NotRequired[bool]
    wide: NotRequired[float]
    """The width of a bar."""
    lines: NotRequired[list[ChartLine]]
    levels: NotRequired[list[ChartLevel]]
    trips: NotRequired[list[ChartTrip]]
    steps: NotRequired[list[tuple[float, float]]]
    """Times and versions."""


def line(label: str, number: int, x: FloatArray, values: FloatArray) -> ChartLine:
    """Return the line of entry `number`: the mean over rows of `values`, in a band if they are several."""
    found = ChartLine(
        label=label,
        x=short_numbers(x),
        y=short_numbers(values.mean(axis=0)),
        colour=number % COLOURS,
        dash=DASHES[(number + number // COLOURS) % len(DASHES)],
    )
    if len(values) > 1:
        found["low"], found["high"] = short_numbers(values.min(axis=0)), short_numbers(values.max(axis=0))
    return found


def short_numbers(values: Iterable[float]) -> list[float | None]:
    """Return numbers with six digits, which is more than a chart shows; None for those that are not finite.

    >>> short_numbers([1 / 3, 2.0, float("nan")])
    [0.333333, 2.0, None]
    """
    return [float(f"{value:.6g}") if abs(value) < float("inf") else None for value in values]
