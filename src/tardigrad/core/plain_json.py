"""JSON that every reader accepts: numbers that are not finite are written as null.

>>> plain_json({"loss": float("nan"), "norms": [1.0, float("inf")]})
'{"loss": null, "norms": [1.0, null]}'
"""

from __future__ import annotations

import json
import math


def plain_json(value: object, indent: int | None = None) -> str:
    """Return the value as JSON, which has neither NaN nor Infinity."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
