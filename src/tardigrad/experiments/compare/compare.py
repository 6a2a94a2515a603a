"""Compare algorithms: the same data, delays and evaluation, several seeds, one table and one picture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError
from rich.console import Console

from tardigrad.core.files import write_text
from tardigrad.core.setting import Setting
from tardigrad.errors import ConfigError
from tardigrad.experiments.compare.outcome import COSTS, Outcome, Point, read_outcome
from tardigrad.experiments.compare.pool import PoolJob, alone, fingerprint, run_all
from tardigrad.experiments.compare.statistics import MeanAndDeviation, paired
from tardigrad.experiments.compare.tables import comma_separated, latex, markdown, show
from tardigrad.experiments.config.reading import explain, parse_config, read_toml
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.tune.search_space import Tune

Share = Annotated[float, Field(gt=0, le=1)]


class Comparison(Setting):
    """What is compared, and how it is judged."""

    title: str = "Comparison"
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    """Every entry is run once with each."""
    targets: tuple[Share, ...] = Field((0.9,), min_length=1)
    """The accuracies to reach."""
    base: dict[str, Any] = Field(default_factory=dict)
    """The config that all entries share."""
    entries: dict[str, dict[str, Any]] = Field(min_length=1)
    """By label: what each changes in `base`."""
    tune: Tune | None = None
    """How `tardigrad tune` searches for better settings (docs/tuning.md)."""
    tuning: Path | None = None
    """What tuning these settings has cost: a `tuning.json`, relative to this file."""

    def config(self, label: str, seed: int, source: str) -> Config:
        """The config of one run; `source` is named in errors."""
        values = merged(self.base, self.entries[label])
        if "seed" in values:
            raise ConfigError(f"{source}, entry {label!r}: seed is set by `seeds`, which every entry shares")
        return parse_config(values | {"seed": seed}, f"{source}, entry {label!r}")


def compare(file: Path, out: Path, console: Console) -> dict[str, Any]:
    """Run everything that is not there yet, show the table, draw the picture. Returns the table."""
    comparison = load_comparison(file)
    tuning = None if comparison.tuning is None else _read_tuning(file.parent / comparison.tuning, file)
    jobs = {
        (label, seed): _job(comparison, label, seed, str(file), out)
        for label in comparison.entries
        for seed in comparison.seeds
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be made ({error})") from None
    with alone(out):
        errors = run_all(jobs, console)
        outcomes = [read_outcome(*key, job.folder, errors.get(key)) for key, job in jobs.items()]
        table = tabulate(comparison, outcomes)
        if tuning is not None:
            table |= {"tuning": tuning}
            write_text(out / "tuning.json", json.dumps(tuning, indent=2) + "\n")
        write_tables(table, out)
        drawn = picture(comparison, outcomes, out / "comparison.png")
    show(table, console)
    if drawn:
        console.print(f"picture: {out / 'comparison.png'}", highlight=False, soft_wrap=True)
    return table


def write_tables(table: dict[str, Any], out: Path) -> None:
    """In every form."""
    for name, text in (
        ("comparison.json", json.dumps(table, indent=2) + "\n"),
        ("comparison.md", markdown(table)),
        ("comparison.csv", comma_separated(table)),
        ("comparison.tex", latex(table)),
    ):
        write_text(out / name, text)


def load_comparison(file: Path) -> Comparison:
    """Read and check a comparison file."""
    try:
        comparison = Comparison.model_validate(read_toml(file, "experiments/demo.toml is an example"))
    except ValidationError as error:
        raise ConfigError("\n".join(f"{file}: {line}" for line in explain(error, Comparison))) from None
    if len(set(comparison.seeds)) < len(comparison.seeds):
        raise ConfigError(f"{file}: seeds: the same seed twice is the same run twice")
    if "" in comparison.entries:
        raise ConfigError(f"{file}: entries: an entry needs a name")
    labels: dict[str, str] = {}
    for label in comparison.entries:
        other = labels.setdefault(_file_name(label), label)
        if other != label:
            raise ConfigError(f"{file}: {label!r} and {other!r} would share a folder; rename one of them")
    return comparison


def _read_tuning(place: Path, file: Path) -> dict[str, Any]:
    """What tuning has cost, as `tardigrad tune` wrote it."""
    try:
        tuning = json.loads(place.read_text())
        trials, spent = tuning["trials"], [one["trips"] for one in tuning["per_entry"].values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{file}: tuning: {place} is no tuning.json of `tardigrad tune` ({error})"
        ) from None
    if not all(isinstance(number, int) for number in (trials, *spent)):
        raise ConfigError(f"{file}: tuning: {place}: trials and trips must be whole numbers")
    found: dict[str, Any] = tuning
    return found


def _job(comparison: Comparison, label: str, seed: int, source: str, out: Path) -> PoolJob:
    config = comparison.config(label, seed, source)
    return PoolJob(config, out / f"{_file_name(label)}-seed{seed}-{fingerprint(config)}")


def _file_name(label: str) -> str:
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in label)
    return name.encode()[:80].decode(errors="ignore")  # file systems count bytes


def tabulate(comparison: Comparison, outcomes: list[Outcome]) -> dict[str, Any]:
    """Everything that the tables say, as JSON."""
    rows = list(_rows(comparison, outcomes))
    return {
        "title": comparison.title,
        "targets": list(comparison.targets),
        "seeds": list(comparison.seeds),
        "rows": rows,
        "sentences": {
            str(target): list(_sentences(comparison, outcomes, target)) for target in comparison.targets
        },
        "folders": {f"{o.label} (seed {o.seed})": str(o.folder) for o in outcomes},
    }


def _rows(comparison: Comparison, outcomes: list[Outcome]) -> Iterator[dict[str, Any]]:
    for label in comparison.entries:
        own = [outcome for outcome in outcomes if outcome.label == label]
        errors = [outcome.error for outcome in own if outcome.error]
        oracle = any(outcome.summary["oracle"] for outcome in own if outcome.summary)
        row: dict[str, Any] = {"entry": label + (" (oracle)" if oracle else ""), "failed": errors}
        if not errors:
            ends = [outcome.curve[-1] for outcome in own if outcome.curve]
            row["targets"] = {str(target): _at(own, target) for target in comparison.targets}
            row["budget"] = {name: max((end.cost(name) for end in ends), default=0) for name in COSTS}
            row["accuracy"] = _spread([end.accuracy for end in ends])
            row["staleness"] = _spread([outcome.mean_staleness for outcome in own])
        yield row


def _at(own: list[Outcome], target: float) -> dict[str, Any]:
    """What it cost to reach a target; nothing unless every seed did."""
    reached = [point for outcome in own if (point := outcome.reached(target)) is not None]
    everywhere = reached if len(reached) == len(own) else []
    costs = {name: _spread([point.cost(name) for point in everywhere]) for name in COSTS}
    return {"reached": len(reached)} | costs


def _spread(values: list[float]) -> dict[str, float] | None:
    spread = MeanAndDeviation.of(values)
    return None if spread is None else asdict(spread)


def _sentences(comparison: Comparison, outcomes: list[Outcome], target: float) -> Iterator[str]:
    """The fastest against the others, paired over the seeds."""
    reached: dict[str, list[Point]] = {}
    for label in comparison.entries:
        points = [outcome.reached(target) for outcome in outcomes if outcome.label == label]
        if points and all(point is not None for point in points):
            reached[label] = [point for point in points if point is not None]
    for name, unit in (("trips", "client trips"), ("time", "virtual time")):
        ranked = sorted(reached, key=lambda label: sum(point.cost(name) for point in reached[label]))
        for other in ranked[1:]:
            first = ranked[0]
            difference = paired(
                [point.cost(name) for point in reached[first]], [point.cost(name) for point in reached[other]]
            )
            if difference is None:
                continue
            chance = f"p = {difference.p:.2g}" if difference.p >= 0.001 else "p < 0.001"
            verdict = "" if difference.p < 0.05 else ": could be chance"
            interval = "the same with every seed"
            if difference.low is not None:
                interval = f"95 % interval {difference.low:.2f} to {difference.high:.2f}"
            yield (
                f"{first} takes {difference.ratio:.2f} times the {unit} of {other} "
                f"({interval}, {chance}, {difference.seeds} seeds){verdict}"
            )


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes`; a table of another kind replaces the whole table."""
    both = dict(base)
    for name, value in changes.items():
        old: Any = both.get(name)
        tables = isinstance(old, dict) and isinstance(value, dict)
        if tables and ("kind" not in old or value.get("kind", old["kind"]) == old["kind"]):
            both[name] = merged(old, value)
        else:
            both[name] = value
    return both


def picture(comparison: Comparison, outcomes: list[Outcome], file: Path) -> bool:
    """Draw the curves; whether there were any."""
    from tardigrad.experiments.compare.plot import Curve, draw_comparison

    curves = []
    for label in comparison.entries:
        runs = [
            [(point.trips, point.time, point.accuracy) for point in outcome.curve]
            for outcome in outcomes
            if outcome.label == label and outcome.curve
        ]
        if runs:
            curves.append(Curve(label, runs))
    if curves:
        draw_comparison(curves, comparison.targets, comparison.title, file)
    return bool(curves)
