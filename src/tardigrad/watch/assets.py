"""The files of the page, which come with the package: nothing is loaded from the network."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

TYPES = {
    "watch.html": "text/html",
    "watch.css": "text/css",
    "watch.js": "text/javascript",
    "charts.css": "text/css",
    "charts.js": "text/javascript",
    "uPlot.min.css": "text/css",
    "uPlot.iife.min.js": "text/javascript",
    "uPlot.LICENSE.txt": "text/plain",
}
"""The files of the live page, and their types."""


@cache
def asset(name: str) -> str:
    """Return the text of a file of the live page or of a report.

    >>> asset("uPlot.LICENSE.txt").splitlines()[0]
    'The MIT License (MIT)'
    """
    return files("tardigrad.watch").joinpath("static", name).read_text(encoding="utf-8")
