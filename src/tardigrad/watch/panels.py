"""The panels of the page as JSON: each function makes one from what is known of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import NamedTuple

from tardigrad.core.metric import Metric
from tardigrad.watch.client_list import LONGEST_REASON
from tardigrad.watch.log_lines import log_line
from tardigrad.watch.trip_panels import trips, uploads
from tardigrad.watch.watched_run import POINTS, WatchedRun

MOST_EXPLANATIONS = 4
LARGEST_NUMBER = 1e300
RULES = {"trips": "trips", "steps": "version", "virtual_time": "time"}
"""The stop rules whose end can be forecast, and what they count."""


def overview(run: WatchedRun) -> dict[str, object]:
    """Return the line of a run in the list of runs."""
    found = run.best_evaluations
    return {
        "name": run.name,
        "entry": run.entry,
        "seed": run.seed,
        "state": run.state(),
        "version": run.position.version,
        "trips": run.position.trips,
        "done": _left(run).done,
        "metric": str(run.metric),
        "percent": run.metric.percent,
        "value": _finite(found[-1].metric(run.metric.name)) if found else None,
    }


def facts(run: WatchedRun) -> dict[str, object]:
    """Return the numbers at the top of the page."""
    pace, status, found = run.pace(), run.status, run.best_evaluations
    told = not run.progress_only
    metrics = found[-1].metrics if found else {}
    names = sorted(metrics, key=lambda name: (name != run.metric.name, name != "loss"))
    return {
        "name": run.name,
        "seed": run.seed,
        "algorithm": _setting(run.config, "algorithm", "kind"),
        "state": run.state(),
        "reason": run.over or (status.over if status else ""),
        "problem": run.problem,
        "silence": math.floor(run.silence) if run.state() == "silent" else 0,
        "reading": run.reading,
        "damaged": run.damaged,
        "version": run.position.version,
        "trips": run.position.trips,
        "progress_only": run.progress_only,
        "accepted": run.accepted if told else None,
        "time": _finite(run.position.time),
        "bytes": run.position.bytes,
        "rate": pace["trips"] if pace else None,
        "left": _left(run)._asdict(),
        "fill": run.fill if told else None,
        "buffer": _setting(run.config, "buffer", "size"),
        "staleness": _staleness(run),
        "clients": len(run.clients) if told else None,
        "in_flight": status.in_flight if status else None,
        "waiting": status.waiting if status else None,
        "refused": _uploads_refused(run),
        "helper_away": status.helper_away if status else None,
        "metrics": {
            str(Metric.named(name)): [_finite(_number(metrics[name])), Metric.named(name).percent]
            for name in names[:8]
        },
        "served": status is not None,
        "explanations": _explanations(run),
    }


def curves(run: WatchedRun, most: int = POINTS) -> dict[str, object]:
    """Return the metrics of about `most` evaluations over trips, time and bytes."""
    found = run.best_evaluations
    found = found[-1 :: -max(1, len(found) // most)][::-1]  # with the last one
    names = [run.metric.name, *(n for n in ("loss",) if n != run.metric.name)]
    names += sorted({name for one in found for name in one.metrics} - {*names, "loss"})[:6]
    columns: dict[str, object] = {
        name: [_finite(one.metric(name)) for one in found]
        for name in names
        if any(one.metric(name) is not None for one in found)
    }
    return {
        "over": {
            "trips": [one.trips for one in found],
            "time": [one.time for one in found],
            "bytes": [one.bytes / 1e6 for one in found],
        },
        "version": [one.version for one in found],
        "metrics": columns,
        "words": {name: str(Metric.named(name)) for name in columns},
        "percent": [name for name in columns if Metric.named(name).percent],
        "by_clients": bool(found) and found[-1].federated,
    }


def steps(run: WatchedRun) -> dict[str, object]:
    """Return the numbers of the steps over versions: bytes sent, training loss, privacy spent."""
    found = run.steps.points()
    names = ["epsilon"] if any("epsilon" in one.metrics for one in found) else []
    return {
        "version": [one.version for one in found],
        "time": [one.time for one in found],
        "bytes": [one.bytes / 1e6 for one in found],
        "training_loss": [_finite(one.training_loss) for one in found],
        **{name: [_finite(one.metric(name)) for one in found] for name in names},
    }


def refusals(run: WatchedRun) -> dict[str, object]:
    """Return what was refused, by reason."""
    rows = [
        {"what": what, "reason": reason, "count": found.times, "last": found.last}
        for what, reasons in run.refused.items()
        for reason, found in reasons.items()
    ]
    if run.given_up:
        rows.append({"what": "trip", "reason": "given up", "count": run.given_up, "last": None})
    status = run.status
    if status is not None:
        known = {row["reason"] for row in rows if row["what"] == "upload"}
        told = [("upload", status.uploads_refused), ("request", status.requests_refused)]
        rows += [
            {"what": what, "reason": reason[:LONGEST_REASON], "count": count, "last": None}
            for what, counts in told
            for reason, count in counts.items()
            if what == "request" or reason not in known
        ]
    rows.sort(key=lambda row: -int(str(row["count"])))
    accepted = None if run.progress_only else run.accepted
    return {"rows": rows[:50], "accepted": accepted, "trips": run.position.trips}


def privacy(run: WatchedRun) -> dict[str, object]:
    """Return what was spent of the privacy budget; `private` is false if nothing is promised."""
    settings = run.config.get("privacy")
    last = next((one for one in reversed(run.steps.points()) if "epsilon" in one.metrics), None)
    settings = settings if isinstance(settings, dict) else {}
    shown = ("kind", "epsilon", "delta", "clip", "participations", "separation", "noise_multiplier")
    return {
        "private": last is not None or settings.get("kind", "none") != "none",
        "epsilon": _finite(last.metric("epsilon")) if last else None,
        "settings": {
            name: value for name in shown if (value := _setting(run.config, "privacy", name)) is not None
        },
        "known": bool(run.config),
    }


def network(run: WatchedRun) -> dict[str, object]:
    """Return bytes sent, their rate, where the time of trips goes, and the disk."""
    pace, parts = run.pace(), run.parts
    return {
        "bytes": run.position.bytes,
        "rate": pace["bytes"] if pace else None,
        "per_trip": run.position.bytes / run.position.trips if run.position.trips else None,
        "parts": {name: parts[name] / parts["trips"] for name in ("download", "compute", "upload")}
        if parts["trips"]
        else {},
        "disk": run.disk,
    }


def log(run: WatchedRun) -> list[list[object]]:
    """Return the last events as lines: time, whether it is a warning, text."""
    return [list(log_line(event)) for event in run.log]


PANELS: dict[str, Callable[[WatchedRun], object]] = {
    "facts": facts,
    "curves": curves,
    "steps": steps,
    "uploads": uploads,
    "trips": trips,
    "refusals": refusals,
    "privacy": privacy,
    "network": network,
    "log": log,
}
"""All panels of a run but the clients, of which a page is asked for."""


# -- parts -----------------------------------------------------------------------------------------


class _Left(NamedTuple):
    """How far a run is from the stop rule that comes first."""

    done: float | None = None
    """From 0 to 1; None if no rule is known."""
    seconds: float | None = None
    rule: str | None = None
    limit: float | None = None


def _left(run: WatchedRun) -> _Left:
    pace, first = run.pace(), _Left()
    for rule, counted in RULES.items():
        limit = _number(_setting(run.config, "stop", rule))
        if not limit:
            continue
        now: float = getattr(run.position, counted)
        seconds = (limit - now) / pace[counted] if pace and pace[counted] > 0 else None
        if first.done is None or now / limit > first.done:
            first = _Left(min(1.0, now / limit), seconds, rule.replace("_", " "), limit)
    return first._replace(done=1.0, seconds=0.0) if run.state() == "over" else first


def _explanations(run: WatchedRun) -> list[dict[str, object]]:
    """Return why a served run is where it is, with whole seconds."""
    if run.status is None:
        return []
    age = run.status.age
    found = run.status.explained()[:MOST_EXPLANATIONS]
    return [asdict(replace(one, since=one.since and math.floor(one.since + age))) for one in found]


def _uploads_refused(run: WatchedRun) -> int:
    if run.progress_only and run.status is not None:
        return sum(run.status.uploads_refused.values())
    return sum(one.times for one in run.refused.get("upload", {}).values())


def _staleness(run: WatchedRun) -> float | None:
    if run.accepted:
        return run.staleness_sum / run.accepted
    return None if run.status is None else run.status.staleness


def _setting(config: Mapping[str, object], section: str, name: str) -> str | float | None:
    found = config.get(section)
    value = found.get(name) if isinstance(found, dict) else None
    return value[:LONGEST_REASON] if isinstance(value, str) else _number(value)


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and abs(value) < LARGEST_NUMBER else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
