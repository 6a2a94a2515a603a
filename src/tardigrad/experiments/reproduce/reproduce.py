"""Reproduce a paper's table or figure: its numbers beside ours, and a verdict on each claim."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from tardigrad.core.files import write_text
from tardigrad.errors import ConfigError
from tardigrad.experiments.compare.compare import (
    Comparison,
    picture,
    write_tables,
)
from tardigrad.experiments.compare.outcome import COSTS, Outcome, read_outcome
from tardigrad.experiments.compare.pool import PoolJob, fingerprint, locked_folder, run_all
from tardigrad.experiments.compare.statistics import MeanAndDeviation, confidence_interval
from tardigrad.experiments.compare.verbosity import Verbosity
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.reproduce.claims import Judgement, judge
from tardigrad.experiments.reproduce.measures import measure
from tardigrad.experiments.reproduce.reproduction import Reproduction, Size, chosen, folder_of, library, load
from tardigrad.experiments.reproduce.reproduction_tables import (
    JudgedClaim,
    OurNumber,
    ReproductionResult,
    show_reproduction,
    side_by_side,
)


@dataclass(frozen=True)
class _Part:
    """A task of a reproduction: its comparison and its runs."""

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
    names: Sequence[str],
    size: Size,
    out: Path,
    console: Console,
    folder: Path | None = None,
    verbosity: Verbosity = "normal",
) -> dict[str, ReproductionResult]:
    """Make all runs that are not there yet, show and write each table, and return all of them by name.
    Tables that were not named themselves, but by their paper, are left out if they do not have the scale."""
    loaded = {name: (file, load(file)) for name, file in chosen(names, library(folder)).items()}
    reproductions = {name: one for name, one in loaded.items() if size in one[1].scales}
    for name, (_, reproduction) in loaded.items():
        if name not in reproductions and (name in names or not reproductions):
            raise ConfigError(f"{name}: has no scale {size!r}, only {', '.join(reproduction.scales)}")
    parts: dict[str, dict[str, _Part]] = {}
    for name, (file, reproduction) in reproductions.items():
        parts[name] = {
            task: _Part.of(comparison, f"{file}, scale {size}", out / "runs")
            for task, comparison in reproduction.comparisons(size).items()
        }
    jobs = {
        job.folder: job for tasks in parts.values() for part in tasks.values() for job in part.jobs.values()
    }
    with locked_folder(out):
        errors = run_all(jobs, console, verbosity)
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
) -> ReproductionResult:
    """Return the table of one reproduction, and write it into its folder."""
    outcomes = {
        task: [read_outcome(*key, job.folder, errors.get(job.folder)) for key, job in part.jobs.items()]
        for task, part in parts.items()
    }
    for task, part in parts.items():
        place = out / name / folder_of(task)
        place.mkdir(parents=True, exist_ok=True)
        table = part.comparison.table(outcomes[task])
        write_tables(table, place)
        picture(table, outcomes[task], place / "comparison.png")
    scale = reproduction.scales[size]
    result: ReproductionResult = {
        "name": name,
        "title": reproduction.title,
        "scale": size,
        "source": reproduction.paper.source,
        "paper_measure": reproduction.paper.measure,
        "paper": reproduction.paper.numbers,
        "measure": reproduction.measure,
        "seeds": list(scale.seeds),
        "tuning": scale.tuning,
        "settings": {task: part.comparison.digest for task, part in parts.items()},
        "rules": reproduction.rules,
        "targets": {task: list(part.comparison.targets) for task, part in parts.items()},
        "ours": _table(reproduction.measure, parts, outcomes),
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
    if reproduction.also:
        result["also"] = {name: _table(name, parts, outcomes) for name in reproduction.also}
    write_text(out / name / "reproduction.json", json.dumps(result, indent=2) + "\n")
    write_text(out / name / "reproduction.md", side_by_side(result))
    return result


def _numbers(name: str, part: _Part, outcomes: list[Outcome], label: str) -> list[float] | None:
    """Return the measure of one entry for each seed, or None if a run has none."""
    found = []
    for outcome in outcomes:
        if outcome.label == label:
            config: Config = part.jobs[label, outcome.seed].config
            number = None if outcome.error else measure(name, outcome, part.comparison.targets[0], config)
            if number is None:
                return None
            found.append(number)
    return found or None


def _table(
    name: str, parts: dict[str, _Part], outcomes: dict[str, list[Outcome]]
) -> dict[str, dict[str, OurNumber]]:
    """Return a measure by task and entry."""
    return {
        task: {label: _ours(name, part, outcomes[task], label) for label in part.comparison.entries}
        for task, part in parts.items()
    }


def _ours(name: str, part: _Part, outcomes: list[Outcome], label: str) -> OurNumber:
    numbers = _numbers(name, part, outcomes, label)
    if numbers is None:
        return {"mean": None, "sd": None, "reached": 0}
    finite = [x for x in numbers if x != float("inf")]
    spread = MeanAndDeviation.of(finite) if len(finite) == len(numbers) else None
    number: OurNumber = {
        "mean": spread.mean if spread else None,
        "sd": spread.sd if spread else None,
        "reached": len(finite),
        "budget": _budget(name, part, outcomes, label),
    }
    interval = confidence_interval(finite) if spread else None
    return number if interval is None else {**number, "interval": interval}


def _budget(name: str, part: _Part, outcomes: list[Outcome], label: str) -> float | None:
    """Return the least that the cost can be for a run that missed the target: what those have spent that did.
    The others may have stopped at the target."""
    if name not in COSTS:
        return None
    runs = [outcome for outcome in outcomes if outcome.label == label and outcome.curve]
    missed = [run for run in runs if run.reached(part.comparison.targets[0]) is None]
    return min((run.curve[-1].cost(name) for run in missed or runs), default=None)


def _judged(
    reproduction: Reproduction, task: str, part: _Part, outcomes: dict[str, list[Outcome]], size: Size
) -> Iterator[JudgedClaim]:
    for claim in reproduction.claims:
        if claim.tasks and task not in claim.tasks:
            continue
        if size == "smoke":
            judgement = Judgement(claim.says, "not run", "the smoke scale shows only that it runs")
        else:
            labels = part.comparison.entries
            budgets = {label: _budget(claim.measure, part, outcomes[task], label) or 0.0 for label in labels}
            judgement = judge(
                claim,
                lambda label, name: _numbers(name, part, outcomes[task], label),
                {label: budget for label, budget in budgets.items() if budget},
            )
        failed = [one for one in outcomes[task] if one.error and one.label in claim.entries]
        why = "; ".join(f"{one.label} failed with seed {one.seed}: {one.error}" for one in failed)
        yield {
            "task": task,
            "says": judgement.says,
            "verdict": judgement.verdict,
            "found": why if why and size != "smoke" else judgement.found,
        }
