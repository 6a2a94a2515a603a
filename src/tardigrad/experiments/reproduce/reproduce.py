"""The papers' tables and figures as one command: their numbers beside ours, and a verdict on each claim."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from rich.console import Console

from tardigrad.core.files import write_text
from tardigrad.core.setting import Setting
from tardigrad.errors import ConfigError
from tardigrad.experiments.compare.compare import Comparison, Share, merged, picture, tabulate, write_tables
from tardigrad.experiments.compare.outcome import COSTS, Outcome, read_outcome
from tardigrad.experiments.compare.pool import PoolJob, alone, fingerprint, run_all
from tardigrad.experiments.compare.statistics import MeanAndDeviation
from tardigrad.experiments.config.reading import explain, read_toml
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.reproduce.claims import Claim, Judgement, Shown, judge
from tardigrad.experiments.reproduce.measures import MEASURES, measure
from tardigrad.experiments.reproduce.reproduction_tables import show_reproduction, side_by_side

Size = Literal["smoke", "small", "paper"]
SIZES: tuple[Size, ...] = ("smoke", "small", "paper")


class Problem(Setting):
    """One of the problems that all entries are tried on: a data set, a delay law, a number of clients."""

    targets: tuple[Share, ...] = ()
    """Default: the scale's."""
    base: dict[str, Any] = Field(default_factory=dict)
    """What it changes in the base config."""
    entries: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """What it changes in single entries, such as a step size that was tuned for it."""


class Scale(Setting):
    """How large the experiment is made."""

    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    targets: tuple[Share, ...] = Field((0.8,), min_length=1)
    """The accuracies to reach; claims are about the first."""
    base: dict[str, Any] = Field(default_factory=dict)
    """What it changes in the base config."""
    entries: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """What it changes in single entries."""
    tasks: dict[str, Problem] = Field(default_factory=dict)
    """What it changes in the tasks. Where it names any, it has only these."""
    omit: tuple[str, ...] = ()
    """Entries that are left out."""
    tuning: str = ""
    """How the settings were found, and what that cost."""


class Reproduction(Setting):
    """A table or figure of a paper."""

    title: str
    paper: Shown
    measure: Literal[MEASURES] = "trips"  # type: ignore[valid-type]
    """Which of our numbers stands beside the paper's."""
    base: dict[str, Any] = Field(default_factory=dict)
    """The config that all entries share."""
    entries: dict[str, dict[str, Any]] = Field(min_length=1)
    """By label: what each changes in `base`."""
    tasks: dict[str, Problem] = Field(default_factory=dict)
    """The problems. Default: one."""
    claims: tuple[Claim, ...] = ()
    scales: dict[Size, Scale] = Field(min_length=1)

    def comparisons(self, size: Size) -> dict[str, Comparison]:
        """What to run, by task."""
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


def library(folder: Path | None = None) -> dict[str, Path]:
    """The files of all reproductions, by name ("fedbuff/table1")."""
    places = (
        [folder] if folder is not None else [Path("experiments"), Path(__file__).parents[3] / "experiments"]
    )
    for place in places:
        found = {
            f"{file.parent.name}/{file.stem}": file
            for file in sorted(place.glob("*/*.toml"))
            if "[scales." in file.read_text(encoding="utf-8", errors="replace")
        }
        if found:
            return found
    said = f"{places[0]}: " if folder else ""
    raise ConfigError(
        f"{said}there are no reproductions here; give --from DIR, the project's folder experiments"
    )


def chosen(names: Sequence[str], files: dict[str, Path]) -> dict[str, Path]:
    """The files that are meant: whole names, the papers' names, or all."""
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
    for claim in reproduction.claims:
        for entry in claim.entries:
            if entry not in known:
                raise ConfigError(f"{file}: the claim {claim.says!r} is about {entry!r}, which is no entry")
        for task in claim.tasks:
            if task not in tasks:
                raise ConfigError(f"{file}: the claim {claim.says!r} is about {task!r}, which is no task")
    return reproduction


@dataclass(frozen=True)
class _Part:
    """A task of a reproduction: what is compared, and its runs."""

    comparison: Comparison
    jobs: dict[tuple[str, int], PoolJob]

    @staticmethod
    def of(comparison: Comparison, source: str, runs: Path) -> _Part:
        jobs = {}
        for label in comparison.entries:
            for seed in comparison.seeds:
                config = comparison.config(label, seed, source)
                name = getattr(config.algorithm, "kind", "run")
                jobs[label, seed] = PoolJob(config, runs / f"{name}-seed{seed}-{fingerprint(config)}")
        return _Part(comparison, jobs)


def reproduce(
    names: Sequence[str], size: Size, out: Path, console: Console, folder: Path | None = None
) -> Any:
    """Run what is not there yet, all side by side; show and write each table. Returns them all."""
    reproductions = {name: (file, load(file)) for name, file in chosen(names, library(folder)).items()}
    parts: dict[str, dict[str, _Part]] = {}
    for name, (file, reproduction) in reproductions.items():
        if size not in reproduction.scales:
            raise ConfigError(f"{name}: has no scale {size!r}, only {', '.join(reproduction.scales)}")
        parts[name] = {
            task: _Part.of(comparison, f"{file}, scale {size}", out / "runs")
            for task, comparison in reproduction.comparisons(size).items()
        }
    jobs = {
        job.folder: job for tasks in parts.values() for part in tasks.values() for job in part.jobs.values()
    }
    try:
        (out / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be made ({error})") from None
    with alone(out):
        errors = run_all(jobs, console)
        results = {
            name: _conclude(name, reproduction, parts[name], size, out, errors)
            for name, (_, reproduction) in reproductions.items()
        }
    for name, result in results.items():
        show_reproduction(result, console)
        console.print(f"written: {out / name}/", highlight=False, soft_wrap=True)
    return results


def _conclude(
    name: str,
    reproduction: Reproduction,
    parts: dict[str, _Part],
    size: Size,
    out: Path,
    errors: dict[Path, str],
) -> dict[str, Any]:
    """The table of one reproduction, written into its folder."""
    outcomes = {
        task: [read_outcome(*key, job.folder, errors.get(job.folder)) for key, job in part.jobs.items()]
        for task, part in parts.items()
    }
    for task, part in parts.items():
        place = out / name / "".join(c if c.isalnum() or c in "-_." else "-" for c in task)
        place.mkdir(parents=True, exist_ok=True)
        write_tables(tabulate(part.comparison, outcomes[task]), place)
        picture(part.comparison, outcomes[task], place / "comparison.png")
    scale = reproduction.scales[size]
    result = {
        "name": name,
        "title": reproduction.title,
        "scale": size,
        "source": reproduction.paper.source,
        "paper_measure": reproduction.paper.measure,
        "paper": reproduction.paper.numbers,
        "measure": reproduction.measure,
        "seeds": list(scale.seeds),
        "tuning": scale.tuning,
        "targets": {task: list(part.comparison.targets) for task, part in parts.items()},
        "ours": {
            task: {
                label: _ours(reproduction.measure, part, outcomes[task], label)
                for label in part.comparison.entries
            }
            for task, part in parts.items()
        },
        "failed": {
            f"{task + ': ' if task else ''}{outcome.label} (seed {outcome.seed})": outcome.error
            for task, some in outcomes.items()
            for outcome in some
            if outcome.error
        },
        "claims": [
            one for task, part in parts.items() for one in _judged(reproduction, task, part, outcomes, size)
        ],
    }
    write_text(out / name / "reproduction.json", json.dumps(result, indent=2) + "\n")
    write_text(out / name / "reproduction.md", side_by_side(result))
    return result


def _numbers(name: str, part: _Part, outcomes: list[Outcome], label: str) -> list[float] | None:
    """Of one entry, for each seed."""
    found = []
    for outcome in outcomes:
        if outcome.label == label:
            config: Config = part.jobs[label, outcome.seed].config
            number = None if outcome.error else measure(name, outcome, part.comparison.targets[0], config)
            if number is None:
                return None
            found.append(number)
    return found or None


def _ours(name: str, part: _Part, outcomes: list[Outcome], label: str) -> dict[str, Any]:
    numbers = _numbers(name, part, outcomes, label)
    if numbers is None:
        return {"mean": None, "sd": None, "reached": 0}
    finite = [x for x in numbers if x != float("inf")]
    spread = MeanAndDeviation.of(finite) if len(finite) == len(numbers) else None
    return {
        "mean": spread.mean if spread else None,
        "sd": spread.sd if spread else None,
        "reached": len(finite),
        "budget": _budget(name, outcomes, label),
    }


def _budget(name: str, outcomes: list[Outcome], label: str) -> float | None:
    """The least that a cost can be for an entry that did not reach the target."""
    if name not in COSTS:
        return None
    ends = [outcome.curve[-1] for outcome in outcomes if outcome.label == label and outcome.curve]
    return min((end.cost(name) for end in ends), default=None)


def _judged(
    reproduction: Reproduction, task: str, part: _Part, outcomes: dict[str, list[Outcome]], size: Size
) -> Iterator[dict[str, Any]]:
    for claim in reproduction.claims:
        if claim.tasks and task not in claim.tasks:
            continue
        if size == "smoke":
            judgement = Judgement(claim.says, "not run", "the smoke scale shows only that it runs")
        else:
            labels = part.comparison.entries
            budgets = {label: _budget(claim.measure, outcomes[task], label) or 0.0 for label in labels}
            judgement = judge(
                claim,
                lambda label, name: _numbers(name, part, outcomes[task], label),
                {label: budget for label, budget in budgets.items() if budget},
            )
        yield {"task": task} | judgement.summary()
