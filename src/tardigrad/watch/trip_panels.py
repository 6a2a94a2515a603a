"""The panels of single uploads and trips: buffer, staleness, weights, and trips against versions."""

from __future__ import annotations

import math
from collections import Counter

from tardigrad.core.events import TripGivenUp, UploadReceived
from tardigrad.watch.watched_run import WatchedRun

BARS = 40
"""Bars of a histogram at most."""
FILLS = 150
"""Uploads over which the fill of the buffer is shown."""
FLYING = 32
"""Trips under way that are shown: those that began last."""
LONGEST_NAME = 100
UNDER_WAY = "under way"


def uploads(run: WatchedRun) -> dict[str, object]:
    """Return the buffer's fill and histograms of staleness and weights of the last thousand uploads."""
    counted = [one for one in run.uploads if one.accepted]
    stale = [one.staleness or 0 for one in counted]
    weights = [one.weight for one in counted if math.isfinite(one.weight)]
    fills = list(run.fills)[-FILLS:]
    return {
        "count": len(run.uploads),
        "counted": len(counted),
        "fill": {"trips": [one.trips for one in fills], "fill": [one.fill for one in fills]},
        "staleness": _whole_histogram(stale),
        "weights": _histogram(weights),
    }


def trips(run: WatchedRun) -> dict[str, object]:
    """Return the last trips by their ends, those under way on a server, and the steps made meanwhile."""
    shown = sorted(run.trips, key=lambda one: one.time)
    begin = min((one.start_time or 0.0 for one in shown), default=0.0)
    return {
        "trips": [
            {
                "trip": one.trip,
                "client": str(one.client)[:LONGEST_NAME],
                "start": one.start_time,
                "end": one.time,
                "from": one.start_version,
                "fate": _fate(one),
                "staleness": one.staleness if isinstance(one, UploadReceived) else None,
            }
            for one in shown
        ]
        + _under_way(run),
        "steps": [[when, version] for when, version in run.last_steps if when >= begin],
    }


def _under_way(run: WatchedRun) -> list[dict[str, object]]:
    """Return the trips under way that began last, as the server's status names them."""
    status = run.status
    if status is None or run.state() in ("over", "failed"):
        return []
    now, version = max(status.time, run.position.time), max(status.version, run.position.version)
    begun = sorted(status.started.items(), key=lambda one: one[1])[-FLYING:]
    return [
        {
            "trip": None,
            "client": client[:LONGEST_NAME],
            "start": start,
            "end": now,
            "from": status.at_work[client],
            "fate": UNDER_WAY,
            "staleness": max(0, version - status.at_work[client]),
        }
        for client, start in begun
        if client in status.at_work
    ]


def _whole_histogram(values: list[int]) -> dict[str, object]:
    if not values:
        return {"at": [], "share": [], "wide": 1}
    wide = max(values) // BARS + 1
    counts = Counter(value // wide for value in values)
    places = range(max(counts) + 1)
    return {
        "at": [place * wide + (wide - 1) / 2 for place in places],
        "share": [counts[place] / len(values) for place in places],
        "wide": wide,
    }


def _histogram(values: list[float]) -> dict[str, object]:
    high = max(values, default=0.0)
    if high <= 0:
        return {"at": [], "share": [], "wide": 1}
    bars = BARS // 2
    counts = Counter(min(bars - 1, int(bars * (max(0.0, value) / high))) for value in values)
    return {
        "at": [(place + 0.5) * (high / bars) for place in range(bars)],
        "share": [counts[place] / len(values) for place in range(bars)],
        "wide": high / bars,
    }


def _fate(trip: UploadReceived | TripGivenUp) -> str:
    if isinstance(trip, TripGivenUp):
        return "given up"
    return "counted" if trip.accepted else str(trip.reason)[:LONGEST_NAME]
