"""The runs of a report: the folders that were named, as entries with one run for each seed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

from tardigrad.core.metric import Metric
from tardigrad.errors import ConfigError, RunError
from tardigrad.experiments.compare.tabulate import ComparisonTable, TuningTable, metric_of
from tardigrad.experiments.config.reading import read_toml
from tardigrad.experiments.report.run_record import RunRecord, read_record
from tardigrad.experiments.runs.run_folder import SERVER_FILES, RunFolder

SEED = re.compile(r"(?P<label>.*) \(seed (?P<seed>\d+)\)", re.DOTALL)


@dataclass(frozen=True)
class RunSource:
    """One run's folder."""

    folder: Path
    record: RunRecord
    settings: dict[str, Any]
    """The content of config.toml."""
    summary: dict[str, Any] | None
    """None if the run is not finished."""
    privacy: str
    """The content of privacy.md; empty if there is none."""

    @property
    def served(self) -> bool:
        """Whether it is of a server: times are seconds, and the config does not say what clients hold."""
        return any((self.folder / name).exists() for name in SERVER_FILES)


@dataclass(frozen=True)
class Series:
    """An entry, with one line in the charts: an algorithm with its settings, run with some seeds."""

    label: str
    runs: list[RunSource]

    @property
    def metric(self) -> Metric:
        """The metric that its runs are judged by."""
        return self.first.record.metric

    @property
    def first(self) -> RunSource:
        """The run of the first seed, for charts that show only one run."""
        return self.runs[0]

    @property
    def time(self) -> str:
        """What its times are, on the axis of a chart."""
        return "seconds" if self.first.served else "virtual time"

    @property
    def finished(self) -> bool:
        """Whether all its runs are finished."""
        return all(run.summary is not None for run in self.runs)


def time_of(entries: list[Series]) -> str:
    """Return what the times of these entries are together."""
    kinds = {entry.time for entry in entries}
    return kinds.pop() if len(kinds) == 1 else "time"


@dataclass
class Sources:
    """All runs and comparisons that were named."""

    entries: list[Series] = field(default_factory=list)
    comparisons: list[ComparisonTable] = field(default_factory=list)
    """The content of each comparison.json."""
    alone: list[Series] = field(default_factory=list)
    """The entries that are part of no comparison."""
    tuning: dict[str, TuningTable] = field(default_factory=dict)
    """The content of each tuning.json, by the folder's name."""
    missing: list[str] = field(default_factory=list)
    """Sentences on runs of comparisons that have no folder or are not finished."""

    @property
    def targets(self) -> dict[str, list[float]]:
        """The targets of all comparisons, by the name of the metric that they are about."""
        found: dict[str, set[float]] = {}
        for table in self.comparisons:
            found.setdefault(metric_of(table).name, set()).update(table["targets"])
        return {name: sorted(own) for name, own in found.items()}


def read_sources(folders: list[Path]) -> Sources:
    """Read run folders and comparison folders. Raise a ConfigError for a folder that is neither."""
    sources = Sources()
    alone: list[RunSource] = []
    for folder in dict.fromkeys(folders):
        if not folder.is_dir():
            raise ConfigError(f"{folder}: there is no such folder")
        if (folder / "comparison.json").exists():
            _read_comparison(folder, sources)
        elif (folder / "events.jsonl").exists():
            alone.append(_read_run(folder))
        else:
            raise ConfigError(
                f"{folder}: holds neither a run (events.jsonl) nor a comparison (comparison.json); "
                "`tardigrad run` and `tardigrad compare` make them with --out"
            )
        if (folder / "tuning.json").exists():
            sources.tuning[_name(folder)] = _read_tuning(folder / "tuning.json")
    for runs in _by_settings(alone):
        entry = Series(_free(_shared_name(runs), runs[0].folder, sources), runs)
        sources.entries.append(entry)
        sources.alone.append(entry)
    if not sources.entries:
        raise RunError(f"{', '.join(map(str, folders))}: every run has failed, so there is nothing to report")
    return sources


def _read_comparison(folder: Path, sources: Sources) -> None:
    file = folder / "comparison.json"
    read = _read_json(file)
    for name in ("title", "targets", "seeds", "rows", "sentences", "folders"):
        if name not in read:
            raise RunError(f"{file} is damaged (it has no {name!r}); run `tardigrad compare` again")
    table = cast(ComparisonTable, read)
    runs: dict[str, list[RunSource]] = {}
    for name, place in table["folders"].items():
        found = SEED.fullmatch(name)
        label = found["label"] if found else name
        own = folder / Path(place).name  # a comparison may have been moved
        own = own if own.is_dir() else Path(place)
        if not (own / "events.jsonl").exists():
            sources.missing.append(f"{name}: there is no run in {own}")
        elif RunFolder(own).summary is None:
            sources.missing.append(f"{name}: not finished")
        else:
            runs.setdefault(label, []).append(_read_run(own))
    sources.entries += [Series(_free(label, folder, sources), own) for label, own in runs.items()]
    sources.comparisons.append(table)


def _by_settings(runs: list[RunSource]) -> list[list[RunSource]]:
    """Group the runs that differ only in their seeds."""
    groups: dict[str, list[RunSource]] = {}
    for run in runs:
        settings = repr({name: value for name, value in run.settings.items() if name != "seed"})
        seeds = {one.settings.get("seed") for one in groups.get(settings, [])}
        groups.setdefault(settings if run.settings.get("seed") not in seeds else str(run.folder), []).append(
            run
        )
    return list(groups.values())


def _shared_name(runs: list[RunSource]) -> str:
    """Return the common beginning of the names of their folders."""
    names = [_name(run.folder) for run in runs]
    if len(names) == 1:
        return names[0]
    shared = "".join(c[0] for c in takewhile(lambda c: len(set(c)) == 1, zip(*names)))
    return re.sub(r"[-_. ]*(seed)?[-_. =]*$", "", shared) or names[0]


def _read_run(folder: Path) -> RunSource:
    privacy = folder / "privacy.md"
    return RunSource(
        folder,
        read_record(folder / "events.jsonl"),
        read_toml(folder / "config.toml") if (folder / "config.toml").exists() else {},
        RunFolder(folder).summary,
        privacy.read_text(encoding="utf-8") if privacy.exists() else "",
    )


def _read_tuning(file: Path) -> TuningTable:
    tuning = _read_json(file)
    if not isinstance(tuning.get("per_entry"), dict):
        raise RunError(f"{file} is damaged (it has no 'per_entry'); delete it, or run `tardigrad tune` again")
    return cast(TuningTable, tuning)


def _read_json(file: Path) -> dict[str, object]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{file} is damaged ({error})") from None
    if not isinstance(found, dict):
        raise RunError(f"{file} is damaged (it is not a JSON object)")
    return found


def _name(folder: Path) -> str:
    return folder.resolve().name or str(folder)


def _free(label: str, folder: Path, sources: Sources) -> str:
    """Return the label; with the folder's name or a number if another entry has the same label."""
    taken = {entry.label for entry in sources.entries}
    if label not in taken:
        return label
    longer = (
        f"{folder.resolve().parent.name}/{label}" if label == _name(folder) else f"{label}, {_name(folder)}"
    )
    number = 2
    while longer in taken:
        longer, number = f"{label} ({number})", number + 1
    return longer
