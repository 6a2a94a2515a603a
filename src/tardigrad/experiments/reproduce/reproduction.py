"""The file of a reproduction: a paper's table or figure, its entries and claims, at several scales."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from tardigrad.core.setting import Setting
from tardigrad.core.setting_errors import explain
from tardigrad.errors import ConfigError
from tardigrad.experiments.compare.compare import Comparison, Values, merged
from tardigrad.experiments.config.reading import read_toml
from tardigrad.experiments.library import LIBRARY
from tardigrad.experiments.reproduce.claims import Claim, Shown
from tardigrad.experiments.reproduce.measures import MEASURES
from tardigrad.experiments.reproduce.tuning_grid import TuningGrid

Size = Literal["smoke", "small", "protocol", "paper"]
SIZES: tuple[Size, ...] = get_args(Size)

Share = Annotated[float, Field(gt=0, le=1)]


class Problem(Setting):
    """A problem on which all entries are run: a data set, a delay law, a number of clients."""

    targets: tuple[Share, ...] = ()
    """Default: the scale's."""
    base: Values = Field(default_factory=dict)
    """Its changes to the base config."""
    entries: dict[str, Values] = Field(default_factory=dict)
    """Its changes to single entries, such as a step size that was tuned for it."""


class Scale(Setting):
    """The size of the experiment."""

    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    targets: tuple[Share, ...] = Field(default=(0.8,), min_length=1)
    """The accuracies to reach; claims are about the first."""
    base: Values = Field(default_factory=dict)
    """Its changes to the base config."""
    entries: dict[str, Values] = Field(default_factory=dict)
    """Its changes to single entries."""
    tasks: dict[str, Problem] = Field(default_factory=dict)
    """Its changes to the tasks. If it names any, only these are run."""
    omit: tuple[str, ...] = ()
    """Entries that are left out."""
    tuning: str = ""
    """How the settings were found, and what that cost, in words."""
    grid: TuningGrid | None = None
    """The settings that `tardigrad reproduce --tune` tries, if the tuning can be repeated by it."""

    @model_validator(mode="after")
    def _different_seeds(self) -> Scale:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds: the same seed twice is the same run twice")
        return self

    @model_validator(mode="after")
    def _tuning_seed_does_not_judge(self) -> Scale:
        if self.grid is not None and (both := set(self.grid.seeds) & set(self.seeds)):
            raise ValueError(f"grid.seeds: {min(both)} is among `seeds`, which judge what was tuned")
        return self


class Reproduction(Setting):
    """A table or figure of a paper."""

    title: str
    paper: Shown
    measure: Literal[MEASURES] = "trips"  # type: ignore[valid-type]
    """Which of our numbers is shown beside the paper's."""
    also: tuple[Literal[MEASURES], ...] = ()  # type: ignore[valid-type]
    """Further measures that are shown."""
    base: Values = Field(default_factory=dict)
    """The config that all entries share."""
    entries: dict[str, Values] = Field(min_length=1)
    """By label: what each changes in `base`."""
    tasks: dict[str, Problem] = Field(default_factory=dict)
    """The problems. Default: one."""
    claims: tuple[Claim, ...] = ()
    scales: dict[Size, Scale] = Field(min_length=1)

    @model_validator(mode="after")
    def _tasks_have_folders(self) -> Reproduction:
        names = dict.fromkeys(
            [*self.tasks, *(name for scale in self.scales.values() for name in scale.tasks)]
        )
        taken: dict[str, str] = {}
        for name in names:
            folder = folder_of(name)
            other = taken.setdefault(folder, name)
            if other != name:
                raise ValueError(f"tasks: {other!r} and {name!r} would have the same folder, {folder!r}")
            if not folder.strip(".") or folder.startswith("reproduction."):
                raise ValueError(f"tasks: {name!r} is no name of a folder; call it otherwise")
        return self

    @property
    def rules(self) -> str:
        """Eight hexadecimal digits that identify what is measured and claimed, and the paper's numbers."""
        claims = [claim.model_dump(mode="json", exclude_defaults=True) for claim in self.claims]
        rules = [self.measure, self.also, self.paper.numbers, claims]
        return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()[:8]

    def comparisons(self, size: Size) -> dict[str, Comparison]:
        """Return the comparisons to run, by task."""
        scale = self.scales[size]
        return {task: self._comparison(scale, task) for task in scale.tasks or self.tasks or {"": Problem()}}

    def _comparison(self, scale: Scale, name: str) -> Comparison:
        tasks = [tasks[name] for tasks in (self.tasks, scale.tasks) if name in tasks]
        base = merged(self.base, scale.base)
        entries = {label: entry for label, entry in self.entries.items() if label not in scale.omit}
        for label, changes in scale.entries.items():
            entries[label] = merged(entries.get(label, {}), changes)
        targets = scale.targets
        for task in tasks:
            base = merged(base, task.base)
            targets = task.targets or targets
            for label, changes in task.entries.items():
                if label in entries:
                    entries[label] = merged(entries[label], changes)
        title = f"{self.title} ({name})" if name else self.title
        return Comparison(title=title, seeds=scale.seeds, targets=targets, base=base, entries=entries)


def folder_of(task: str) -> str:
    """Return the name of the folder in which the tables of a task are written."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in task)


def library(folder: Path | None = None) -> dict[str, Path]:
    """Return the files of all reproductions, by name ("fedbuff/table1")."""
    places = [folder] if folder is not None else [Path("experiments"), LIBRARY]
    for place in places:
        found = {
            f"{file.parent.name}/{file.stem}": file
            for file in sorted(place.glob("*/*.toml"))
            if "[scales." in file.read_text(encoding="utf-8", errors="replace")
        }
        if found:
            return found
    said = f"{places[0]}: " if folder else ""
    raise ConfigError(f"{said}there are no reproductions here; without --from, those of the package are run")


def chosen(names: Sequence[str], files: dict[str, Path]) -> dict[str, Path]:
    """Return the files of these names: whole names, the papers' names, or all."""
    picked: dict[str, Path] = {}
    for name in names:
        some = {n: f for n, f in files.items() if name in ("all", n, n.split("/")[0])}
        if not some:
            raise ConfigError(f"{name}: there is no such table or figure; `tardigrad reproduce` lists them")
        picked |= some
    return picked


def load(file: Path) -> Reproduction:
    """Read and check the file of a reproduction."""
    try:
        reproduction = Reproduction.model_validate(read_toml(file))
    except ValidationError as error:
        raise ConfigError("\n".join(f"{file}: {line}" for line in explain(error, Reproduction))) from None
    scales = reproduction.scales.values()
    known = set(reproduction.entries) | {label for scale in scales for label in scale.entries}
    tasks = set(reproduction.tasks) | {task for scale in scales for task in scale.tasks}
    for size, scale in reproduction.scales.items():
        compared = {label for label in reproduction.entries if label not in scale.omit} | set(scale.entries)
        for label in scale.grid.tried if scale.grid is not None else ():
            if label not in compared:
                raise ConfigError(f"{file}: scales.{size}.grid: there is no entry {label!r} at this scale")
    for claim in reproduction.claims:
        for entry in claim.entries:
            if entry not in known:
                raise ConfigError(f"{file}: the claim {claim.says!r} is about {entry!r}, which is no entry")
        for task in claim.tasks:
            if task not in tasks:
                raise ConfigError(f"{file}: the claim {claim.says!r} is about {task!r}, which is no task")
    return reproduction
