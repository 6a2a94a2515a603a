"""The table of a comparison as JSON: what each entry cost to reach the targets, in numbers and words."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NotRequired, TypedDict

from tardigrad.core.metric import ACCURACY, Metric
from tardigrad.data.trigger import ATTACK_SUCCESS
from tardigrad.errors import ConfigError
from tardigrad.experiments.compare.outcome import COSTS, Cost, Outcome
from tardigrad.experiments.compare.statistics import Difference, MeanAndDeviation, paired
from tardigrad.experiments.compare.time_split import TimeSplit

LEAST_SEEDS = 3
"""With fewer, a comparison says that there are too few to tell."""
LAST_PART = 0.25
"""The share of a run's evaluations, at its end, that tells whether it still becomes better."""
RISE = 0.005
"""A run still becomes better if it gains more than this share of its whole gain, or of 1, in that part."""


class MeanAndSd(TypedDict):
    """Mean and standard deviation over seeds."""

    mean: float
    sd: float


class TargetRow(TypedDict):
    """The cost of an entry to reach one target; None unless every seed reached it."""

    reached: int
    """Number of seeds that reached it."""
    trips: MeanAndSd | None
    steps: MeanAndSd | None
    time: MeanAndSd | None
    bytes: MeanAndSd | None
    bytes_up: NotRequired[MeanAndSd | None]
    """The bytes of uploads; None in runs of earlier versions."""


class ComparisonRow(TypedDict):
    """One entry of a comparison; an entry with a failed run has only a name and errors."""

    entry: str
    failed: list[str]
    targets: NotRequired[dict[str, TargetRow]]
    budget: NotRequired[dict[str, float]]
    accuracy: NotRequired[MeanAndSd | None]
    """At the end: of the comparison's metric, whatever it is."""
    staleness: NotRequired[MeanAndSd | None]
    time_split: NotRequired[TimeSplit]
    """Where the time of trips went, if there is a simulated network."""
    attack_success: NotRequired[MeanAndSd | None]
    """At the end, if adversaries try a backdoor."""


class EntryTuning(TypedDict):
    """The settings that tuning found for one entry, and its cost."""

    trials: int
    pruned: int
    failed: int
    trips: int
    best: dict[str, bool | int | float | str]
    value: float | None
    reached: bool
    nearest: NotRequired[float | None]
    metric: NotRequired[str]
    lower_is_better: NotRequired[bool]


class TuningTable(TypedDict):
    """The content of tuning.json."""

    trials: int
    per_entry: dict[str, EntryTuning]


class ComparisonTable(TypedDict):
    """The content of comparison.json."""

    title: str
    targets: list[float]
    seeds: list[int]
    rows: list[ComparisonRow]
    sentences: dict[str, list[str]]
    """By target: the fastest entry against the others."""
    missed: NotRequired[dict[str, list[str]]]
    """By target: the entries that missed it, how near they came, what to try. Older files lack it."""
    folders: dict[str, str]
    tuning: NotRequired[TuningTable]
    metric: NotRequired[str]
    """The metric that the runs are judged by; missing if it is accuracy."""
    lower_is_better: NotRequired[bool]
    baseline: NotRequired[BaselineRow]


class BaselineRow(TypedDict):
    """The metrics of a model that ignores its input, on the test set."""

    says: str
    of: str
    """The labels that this was learned from."""
    value: MeanAndSd


def metric_of(table: ComparisonTable) -> Metric:
    """Return what the runs of a comparison are judged by."""
    return Metric(table.get("metric", "accuracy"), table.get("lower_is_better", False))


def tabulate(
    title: str, seeds: Sequence[int], targets: Sequence[float], labels: Sequence[str], outcomes: list[Outcome]
) -> ComparisonTable:
    """Return everything that the tables show."""
    by_label = {label: [outcome for outcome in outcomes if outcome.label == label] for label in labels}
    metric = _shared_metric(outcomes)
    table: ComparisonTable = {
        "title": title,
        "targets": list(targets),
        "seeds": list(seeds),
        "rows": [_row(label, own, targets) for label, own in by_label.items()],
        "sentences": {str(target): list(_differences(by_label, target)) for target in targets},
        "missed": {str(target): list(_misses(by_label, target)) for target in targets},
        "folders": {f"{o.label} (seed {o.seed})": str(o.folder) for o in outcomes},
    }
    if metric != ACCURACY:
        table["metric"], table["lower_is_better"] = metric.name, metric.lower_is_better
    found = [o.baseline for o in outcomes if o.baseline and metric.name in o.baseline["metrics"]]
    spread = _spread([one["metrics"][metric.name] for one in found])
    if spread is not None:
        table["baseline"] = {"says": found[0]["says"], "of": found[0]["of"], "value": spread}
        _warn_of_low_targets(table)
    return table


def _shared_metric(outcomes: list[Outcome]) -> Metric:
    """Return what all runs are judged by, or raise a ConfigError if they do not agree."""
    metrics = {outcome.metric for outcome in outcomes if not outcome.error}
    if len(metrics) > 1:
        names = ", ".join(sorted(metric.name for metric in metrics))
        raise ConfigError(
            f"the entries are judged by different metrics ({names}); set evaluation.main in base to one"
        )
    return metrics.pop() if metrics else ACCURACY


def _warn_of_low_targets(table: ComparisonTable) -> None:
    """Say of each target that a model which ignores its input would reach it, if so."""
    metric, row = metric_of(table), table["baseline"]
    for target in table["targets"]:
        if metric.reached(row["value"]["mean"], target):
            table["sentences"][str(target)].append(
                f"This target means little: {row['says']} gets {metric.shown(row['value']['mean'])}"
            )


def _row(label: str, own: list[Outcome], targets: Sequence[float]) -> ComparisonRow:
    oracle = any(outcome.summary["oracle"] for outcome in own if outcome.summary)
    row: ComparisonRow = {
        "entry": label + (" (oracle)" if oracle else ""),
        "failed": [outcome.error for outcome in own if outcome.error],
    }
    if not row["failed"]:
        ends = [outcome.curve[-1] for outcome in own if outcome.curve]
        row["targets"] = {str(target): _target_row(own, target) for target in targets}
        row["budget"] = {name: max((end.cost(name) for end in ends), default=0) for name in COSTS}
        row["accuracy"] = _spread([end.value for end in ends])
        row["staleness"] = _spread([outcome.mean_staleness for outcome in own])
        splits = [outcome.split for outcome in own if outcome.split is not None]
        if splits:
            row["time_split"] = TimeSplit.mean(splits)
        metrics = [outcome.summary.get("metrics", {}) for outcome in own if outcome.summary]
        successes = [one[ATTACK_SUCCESS] for one in metrics if ATTACK_SUCCESS in one]
        if successes:
            row["attack_success"] = _spread(successes)
    return row


def _target_row(own: list[Outcome], target: float) -> TargetRow:
    reached = [point for outcome in own if (point := outcome.reached(target)) is not None]
    everywhere = reached if len(reached) == len(own) else []
    return {
        "reached": len(reached),
        "trips": _spread([point.trips for point in everywhere]),
        "steps": _spread([point.steps for point in everywhere]),
        "time": _spread([point.time for point in everywhere]),
        "bytes": _spread([point.bytes for point in everywhere]),
        "bytes_up": _spread([point.bytes_up for point in everywhere if point.bytes_up is not None]),
    }


def _spread(values: list[float]) -> MeanAndSd | None:
    spread = MeanAndDeviation.of(values)
    return None if spread is None else {"mean": spread.mean, "sd": spread.sd}


def _differences(by_label: dict[str, list[Outcome]], target: float) -> Iterator[str]:
    """Compare the fastest entry with each of the others, paired over the seeds."""
    reached = {label: own for label, own in by_label.items() if own and all(o.reached(target) for o in own)}
    units: dict[Cost, str] = {"trips": "client trips", "time": "virtual time"}
    for name, unit in units.items():
        costs = {label: _costs(own, target, name) for label, own in reached.items()}
        steps = {label: [o.resolution(target, name) for o in own] for label, own in reached.items()}
        ranked = sorted(costs, key=lambda label: sum(costs[label]))
        for other in ranked[1:]:
            first = ranked[0]
            difference = paired(costs[first], costs[other], steps[first], steps[other])
            if difference is not None:
                ratio = f"{first} takes {difference.ratio:.2f} times the {unit} of {other}"
                yield f"{ratio} {_chance(difference)}"


def _costs(own: list[Outcome], target: float, name: Cost) -> list[float]:
    return [point.cost(name) for outcome in own if (point := outcome.reached(target)) is not None]


def _chance(difference: Difference) -> str:
    """Return the interval, the probability and the number of seeds, and what follows from them."""
    interval = "the same with every seed"
    if difference.low is not None:
        assert difference.high is not None
        digits = 2
        while digits < 6 and f"{difference.low:.{digits}f}" == f"{difference.high:.{digits}f}":
            digits += 1  # an interval is never shown as a point
        interval = f"95 % interval {difference.low:.{digits}f} to {difference.high:.{digits}f}"
    chance = f"p = {difference.p:.2g}" if difference.p >= 0.001 else "p < 0.001"
    verdicts = ["could be chance"] if difference.p >= 0.05 else []
    if difference.seeds < LEAST_SEEDS:
        verdicts.append(f"{difference.seeds} seeds are too few to tell")
    verdict = f": {'; '.join(verdicts)}" if verdicts else ""
    return f"({interval}, {chance}, {difference.seeds} seeds){verdict}"


def _misses(by_label: dict[str, list[Outcome]], target: float) -> Iterator[str]:
    """Say of each entry that missed the target how near it came, and what to try."""
    for label, own in by_label.items():
        missed = [o for o in own if not o.error and o.curve and o.reached(target) is None]
        if not missed:
            continue
        metric = missed[0].metric
        near = metric.best(outcome.best for outcome in missed)
        seeds = "with every seed" if len(missed) == len(own) else f"with {len(missed)} of {len(own)} seeds"
        if len(own) == 1:
            seeds = f"with seed {own[0].seed}"
        if statistics.fmean(map(_late_rise, missed)) > RISE:
            advice = "it was still improving, so try a larger budget (`stop`)"
        else:
            advice = "it had stopped improving, so try another `local.lr` (`tardigrad tune` searches for it)"
        came = (
            f"{near:.3f}, {target - near:.3f} short"
            if metric == ACCURACY
            else (f"{metric.shown(near)}, {metric.short_of(near, target)}")
        )
        yield f"{label} missed {target:.3g} {seeds}: the nearest came to {came}; {advice}"


def _late_rise(outcome: Outcome) -> float:
    """Return by how much a run became better in its last part: for a share as it is, for other metrics as a
    part of all that it gained."""
    metric, values = outcome.metric, [point.value for point in outcome.curve]
    early = values[: max(1, round(len(values) * (1 - LAST_PART)))]
    late = metric.gain(metric.best(early), metric.best(values))
    whole = 1.0 if metric.percent else metric.gain(values[0], metric.best(values))
    return late / whole if whole > 0 else 0.0
