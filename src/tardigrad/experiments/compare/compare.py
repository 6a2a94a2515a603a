"""Compare algorithms on the same data, delays and evaluation over several seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pydantic import Field, ValidationError
from rich.console import Console

from tardigrad.core.files import write_text
from tardigrad.core.setting import Setting
from tardigrad.core.setting_errors import explain
from tardigrad.errors import ConfigError
from tardigrad.experiments.compare.outcome import Outcome, read_outcome
from tardigrad.experiments.compare.pool import PoolJob, fingerprint, locked_folder, run_all, run_here
from tardigrad.experiments.compare.tables import comma_separated, latex, markdown, show
from tardigrad.experiments.compare.tabulate import ComparisonTable, TuningTable, metric_of, tabulate
from tardigrad.experiments.compare.verbosity import Verbosity
from tardigrad.experiments.config.reading import parse_config, read_toml
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.in_memory import InMemory
from tardigrad.experiments.tune.search_space import Tune

Values = dict[str, object]
"""A config, or a part of it, as it is written in a TOML file."""


class Comparison(Setting):
    """A comparison file: the entries, and the seeds and targets by which they are judged."""

    title: str = "Comparison"
    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    """Every entry is run once with each seed."""
    targets: tuple[float, ...] = Field(default=(0.9,), min_length=1)
    """The accuracies to reach, or the values of evaluation.main or of the head's own metric."""
    base: Values = Field(default_factory=dict)
    """The config that all entries share."""
    entries: dict[str, Values] = Field(min_length=1)
    """By label: what each changes in `base`."""
    variants: dict[str, Values] = Field(default_factory=dict)
    """By label: what each changes in every entry. If there are any, every entry is run in every variant, as
    "entry, variant"."""
    tune: Tune | None = None
    """How `tardigrad tune` searches for better settings (docs/tuning.md)."""
    tuning: Path | None = None
    """A `tuning.json` with the cost of tuning these settings. Its path is relative to this file."""

    def table(self, outcomes: list[Outcome]) -> ComparisonTable:
        """Return the table of these outcomes."""
        return tabulate(self.title, self.seeds, self.targets, list(self.entries), outcomes)

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits that identify the settings of all entries as they were given, without
        defaults."""
        given = {label: merged(self.base, values) for label, values in self.entries.items()}
        return hashlib.sha256(json.dumps(given, sort_keys=True, default=str).encode()).hexdigest()[:8]

    def config(self, label: str, seed: int, source: str) -> Config:
        """Return the config of one run. `source` is named in errors."""
        values = merged(self.base, self.entries[label])
        if "seed" in values:
            raise ConfigError(f"{source}, entry {label!r}: seed is set by `seeds`, which every entry shares")
        config = parse_config(values | {"seed": seed}, f"{source}, entry {label!r}")
        if config.head is None and config.evaluation.main is None:
            for target in self.targets:
                if not 0 < target <= 1:
                    raise ConfigError(
                        f"{source}: targets: {target:g} is no accuracy, which is from 0 to 1; for another "
                        "metric, name it (evaluation.main) or the task (head)"
                    )
        return config


def compare(file: Path, out: Path, console: Console, verbosity: Verbosity = "normal") -> ComparisonTable:
    """Make all runs of a comparison file that are not there yet, show the table, and return it.

    >>> compare(Path("experiments/demo.toml"), Path("runs/demo"), Console())["rows"]  # doctest: +SKIP
    """
    table = run_comparison(load_comparison(file), file, out, console, verbosity)
    show(table, console)
    drawn = out / "comparison.png"
    if drawn.exists():
        console.print(f"picture: {drawn}", highlight=False, soft_wrap=True)
    return table


def run_comparison(
    comparison: Comparison,
    file: Path | None,
    out: Path,
    console: Console,
    verbosity: Verbosity = "normal",
    own: InMemory | None = None,
) -> ComparisonTable:
    """Make all runs that are not there yet, write the tables and the picture, and return the table.

    `file`: the comparison file, if there is one. `own`: the caller's own model, data and loss in Python.
    """
    source = "compare" if file is None else str(file)
    tuning = None
    if comparison.tuning is not None:
        tuning = _read_tuning((file or Path()).parent / comparison.tuning, source)
    jobs = {
        (label, seed): _job(comparison, label, seed, source, out)
        for label in comparison.entries
        for seed in comparison.seeds
    }
    with locked_folder(out):
        if own is not None and own.needed(*(job.config for job in jobs.values())):
            errors = run_here(jobs, own, console, verbosity)
        else:
            errors = run_all(jobs, console, verbosity)
        outcomes = [read_outcome(*key, job.folder, errors.get(key)) for key, job in jobs.items()]
        table = comparison.table(outcomes)
        if tuning is not None:
            table["tuning"] = tuning
            write_text(out / "tuning.json", json.dumps(tuning, indent=2) + "\n")
        write_tables(table, out)
        (out / "comparison.png").unlink(missing_ok=True)
        picture(table, outcomes, out / "comparison.png")
    return table


def write_tables(table: ComparisonTable, out: Path) -> None:
    """Write the table as JSON, Markdown, CSV and LaTeX."""
    for name, text in (
        ("comparison.json", json.dumps(table, indent=2) + "\n"),
        ("comparison.md", markdown(table)),
        ("comparison.csv", comma_separated(table)),
        ("comparison.tex", latex(table)),
    ):
        write_text(out / name, text)


def load_comparison(file: Path) -> Comparison:
    """Read and check a comparison file."""
    values = read_toml(file, f"`tardigrad init {file} --example demo` writes one")
    if "entries" not in values:
        raise ConfigError(
            f"{file}: has no [entries.NAME] table, so that it is no comparison; `tardigrad run {file}` makes "
            "a single run, and docs/guide.md shows a comparison"
        )
    return checked(values, str(file))


def checked(values: Mapping[str, object], source: str) -> Comparison:
    """Return the comparison of these values, or raise a ConfigError that names `source`."""
    try:
        comparison = Comparison.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{source}: {line}" for line in explain(error, Comparison))) from None
    if len(set(comparison.seeds)) < len(comparison.seeds):
        raise ConfigError(f"{source}: seeds: the same seed twice is the same run twice")
    for table, named in (("entries", comparison.entries), ("variants", comparison.variants)):
        if "" in named:
            raise ConfigError(f"{source}: {table}: each of them needs a name")
    if comparison.variants:
        comparison = _in_every_variant(comparison, source)
    labels: dict[str, str] = {}
    for label in comparison.entries:
        other = labels.setdefault(_file_name(label), label)
        if other != label:
            raise ConfigError(f"{source}: {label!r} and {other!r} would share a folder; rename one of them")
    return comparison


def _in_every_variant(comparison: Comparison, source: str) -> Comparison:
    """Return the comparison with an entry for every entry and variant, which has the whole config."""
    entries: dict[str, Values] = {}
    for variant, changes in comparison.variants.items():
        for label, entry in comparison.entries.items():
            both = f"{label}, {variant}"
            if both in entries:
                raise ConfigError(
                    f"{source}: variants: {both!r} could be two entries in two variants; rename one"
                )
            entries[both] = merged(merged(comparison.base, entry), changes)
    return comparison.model_copy(update={"base": {}, "entries": entries, "variants": {}})


def _read_tuning(place: Path, file: str) -> TuningTable:
    """Read the cost of tuning that `tardigrad tune` wrote."""
    try:
        tuning = json.loads(place.read_text())
        trials, spent = tuning["trials"], [one["trips"] for one in tuning["per_entry"].values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{file}: tuning: {place} is no tuning.json of `tardigrad tune` ({error})"
        ) from None
    if not all(isinstance(number, int) for number in (trials, *spent)):
        raise ConfigError(f"{file}: tuning: {place}: trials and trips must be whole numbers")
    return cast(TuningTable, tuning)


def _job(comparison: Comparison, label: str, seed: int, source: str, out: Path) -> PoolJob:
    config = comparison.config(label, seed, source)
    return PoolJob(config, out / f"{_file_name(label)}-seed{seed}-{fingerprint(config)}")


def _file_name(label: str) -> str:
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in label)
    return name.encode()[:80].decode(errors="ignore")  # file systems limit the number of bytes


def merged(base: Values, changes: Values) -> Values:
    """Return `base` with `changes`. Tables are merged; a table of another kind replaces the whole table.
    "fedbuff" is short for { kind = "fedbuff" }."""
    both = dict(base)
    for name, value in changes.items():
        old = both.get(name)
        if isinstance(old, str) and isinstance(value, dict):
            old = {"kind": old}
        if isinstance(old, dict) and "kind" in old and isinstance(value, str):
            value = {"kind": value}
        both[name] = value
        if isinstance(old, dict) and isinstance(value, dict):
            kind = old.get("kind")
            if kind is None or value.get("kind", kind) == kind:
                both[name] = merged(old, value)
    return both


def picture(table: ComparisonTable, outcomes: list[Outcome], file: Path) -> bool:
    """Draw the curves, and return whether there were any."""
    from tardigrad.experiments.compare.plot import Curve, draw_comparison

    curves = []
    for label in dict.fromkeys(outcome.label for outcome in outcomes):
        runs = [
            [(point.trips, point.time, point.value) for point in outcome.curve]
            for outcome in outcomes
            if outcome.label == label and outcome.curve
        ]
        if runs:
            curves.append(Curve(label, runs))
    if curves:
        row = table.get("baseline")
        line = None if row is None else (row["says"], row["value"]["mean"])
        draw_comparison(curves, table["targets"], table["title"], file, metric_of(table), line)
    return bool(curves)
