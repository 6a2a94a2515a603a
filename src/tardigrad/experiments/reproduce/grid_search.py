"""Tune the entries of a reproduction: run its grid, and find the best settings of each entry."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

import tomli_w
from rich.console import Console

from tardigrad.core.files import write_text
from tardigrad.errors import ConfigError
from tardigrad.experiments.compare.compare import Comparison, Values, merged
from tardigrad.experiments.compare.outcome import Outcome, read_outcome
from tardigrad.experiments.compare.pool import PoolJob, fingerprint, locked_folder, run_all
from tardigrad.experiments.compare.verbosity import Verbosity
from tardigrad.experiments.reproduce.reproduction import Reproduction, Size, chosen, library, load
from tardigrad.experiments.reproduce.tuning_grid import Settings, TuningGrid, as_tables


class TriedSettings(TypedDict):
    """One point of the grid."""

    settings: Settings
    trips: float | None
    """To the target, the mean over the seeds that reached it; None if none did."""
    reached: int
    """Number of seeds that reached the target."""
    best: float | None
    """The best value of the metric, the mean over the seeds; None if a run has none."""
    end: NotRequired[float | None]
    """The mean accuracy (or other metric) at the end, if the reproduction measures that; None if a run
    failed."""
    failed: NotRequired[str]
    """Why a run ended early, such as divergence."""


class EntryGrid(TypedDict):
    """The result of the grid for one entry."""

    tried: list[TriedSettings]
    chosen: Settings
    """The best accuracy at the end, if the reproduction measures that. Otherwise the settings with which most
    seeds reached the target; of these the fewest trips, and of these the best value of the metric."""
    edges: list[str]
    """Keys whose chosen value is at the edge of the grid."""


class GridResult(TypedDict):
    """The content of grid.json."""

    name: str
    scale: str
    seeds: list[int]
    targets: dict[str, float]
    """By task."""
    settings: dict[str, str]
    """A digest of all settings of the runs, by task."""
    tasks: dict[str, dict[str, EntryGrid]]
    """By task and entry."""


def search_grid(
    names: Sequence[str],
    size: Size,
    out: Path,
    console: Console,
    folder: Path | None = None,
    verbosity: Verbosity = "normal",
) -> dict[str, GridResult]:
    """Run the grids of some reproductions; write grid.json and tuned.toml, whose tables can be appended to
    the reproduction's file, for each; and return the results by name. Runs that are there are not repeated.
    """
    searched: dict[str, tuple[Reproduction, TuningGrid]] = {}
    jobs: dict[tuple[str, str, str, int, int], PoolJob] = {}
    for name, file in chosen(names, library(folder)).items():
        reproduction = load(file)
        grid = reproduction.scales[size].grid if size in reproduction.scales else None
        if grid is None:
            raise ConfigError(f"{file}: has no [scales.{size}.grid], so there is nothing to tune")
        searched[name] = reproduction, grid
        for task, comparison in reproduction.comparisons(size).items():
            for label in grid.tried:
                for number, settings in enumerate(grid.settings(label)):
                    source = f"{file}, scale {size}, grid"
                    for seed in grid.seeds:
                        job = _job(comparison, label, settings, seed, source, out)
                        jobs[name, task, label, number, seed] = job
    with locked_folder(out):
        errors = run_all({job.folder: job for job in jobs.values()}, console, verbosity)
        outcomes = {
            key: read_outcome(key[2], job.config.seed, job.folder, errors.get(job.folder))
            for key, job in jobs.items()
        }
        results = {}
        for name, (reproduction, grid) in searched.items():
            results[name] = _conclude_grid(name, reproduction, grid, size, outcomes)
            (out / name).mkdir(parents=True, exist_ok=True)
            write_text(out / name / "grid.json", json.dumps(results[name], indent=2) + "\n")
            write_text(out / name / "tuned.toml", tomli_w.dumps(tuned_tables(results[name])))
    for name, result in results.items():
        show_grid(result, console)
        console.print(f"written: {out / name}/grid.json, tuned.toml", highlight=False, soft_wrap=True)
    return results


def _job(
    comparison: Comparison, label: str, settings: Settings, seed: int, source: str, out: Path
) -> PoolJob:
    entries = {label: _tried_entry(comparison, label, settings)}
    config = comparison.model_copy(update={"entries": entries}).config(label, seed, source)
    kind = getattr(config.algorithm, "kind", "run")
    return PoolJob(config, out / "runs" / f"{kind}-seed{seed}-{fingerprint(config)}")


def _tried_entry(comparison: Comparison, label: str, settings: Settings) -> Values:
    return merged(comparison.entries[label], as_tables(settings))


def tried_in(comparison: Comparison, grid: TuningGrid) -> Comparison:
    """Return the comparison with all points of the grid as its entries."""
    entries = {
        f"{label}, {number}": _tried_entry(comparison, label, settings)
        for label in grid.tried
        for number, settings in enumerate(grid.settings(label))
    }
    return comparison.model_copy(update={"entries": entries})


def _conclude_grid(
    name: str,
    reproduction: Reproduction,
    grid: TuningGrid,
    size: Size,
    outcomes: dict[tuple[str, str, str, int, int], Outcome],
) -> GridResult:
    comparisons = reproduction.comparisons(size)
    result: GridResult = {
        "name": name,
        "scale": size,
        "seeds": list(grid.seeds),
        "targets": {task: comparison.targets[0] for task, comparison in comparisons.items()},
        "settings": {task: tried_in(comparison, grid).digest for task, comparison in comparisons.items()},
        "tasks": {},
    }
    for task, comparison in comparisons.items():
        result["tasks"][task] = {}
        for label in grid.tried:
            runs = [
                [outcomes[name, task, label, number, seed] for seed in grid.seeds]
                for number in range(len(grid.settings(label)))
            ]
            tried = [
                _tried(settings, some, comparison.targets[0], reproduction.measure)
                for settings, some in zip(grid.settings(label), runs, strict=True)
            ]
            best = min(range(len(tried)), key=lambda n: _rank(tried[n], runs[n][0].metric.lower_is_better))
            picked = tried[best]["settings"]
            result["tasks"][task][label] = {
                "tried": tried,
                "chosen": picked,
                "edges": grid.edges(label, picked),
            }
    return result


def _tried(settings: Settings, outcomes: Sequence[Outcome], target: float, measured: str) -> TriedSettings:
    points = [outcome.reached(target) for outcome in outcomes]
    trips = [point.trips for point in points if point is not None]
    best = [outcome.best if outcome.curve else math.nan for outcome in outcomes]
    one: TriedSettings = {
        "settings": settings,
        "trips": statistics.fmean(trips) if trips else None,
        "reached": len(trips),
        "best": None if any(map(math.isnan, best)) else statistics.fmean(best),
    }
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if measured == "accuracy":
        complete = not errors and all(outcome.curve for outcome in outcomes)
        one["end"] = statistics.fmean(run.curve[-1].value for run in outcomes) if complete else None
    return one | {"failed": errors[0]} if errors else one


def _rank(one: TriedSettings, lower_is_better: bool) -> tuple[float, float, float]:
    """Return a key that sorts better settings first."""
    if "end" in one:
        sign = 1 if lower_is_better else -1
        return math.inf if one["end"] is None else sign * one["end"], 0.0, 0.0
    if one["best"] is None:
        return -one["reached"], math.inf, math.inf
    trips = math.inf if one["trips"] is None else one["trips"]
    return -one["reached"], trips, one["best"] if lower_is_better else -one["best"]


def tuned_tables(result: GridResult) -> dict[str, object]:
    """Return the chosen settings as the tables of a reproduction's file, without entries of which every
    setting failed."""
    tasks = {
        task: {
            "entries": {
                label: as_tables(one["chosen"]) for label, one in entries.items() if not _all_failed(one)
            }
        }
        for task, entries in result["tasks"].items()
    }
    scale = tasks.get("", {"tasks": tasks})
    return {"scales": {result["scale"]: scale}}


def _all_failed(one: EntryGrid) -> bool:
    return all("failed" in tried and not tried["reached"] for tried in one["tried"])


def show_grid(result: GridResult, console: Console) -> None:
    """Print the chosen settings of every entry, and where they are at the edge of the grid."""
    for task, entries in result["tasks"].items():
        console.print(f"{result['name']}, {task or 'all'}", style="bold", highlight=False, markup=False)
        for label, one in entries.items():
            if _all_failed(one):
                why = one["tried"][0]["failed"]
                console.print(f"  {label}: every setting failed: {why}", highlight=False, markup=False)
                continue
            settings = ", ".join(f"{key} = {value}" for key, value in one["chosen"].items())
            best = next(tried for tried in one["tried"] if tried["settings"] == one["chosen"])
            reached = "target missed" if best["trips"] is None else f"{best['trips']:,.0f} trips"
            if 0 < best["reached"] < len(result["seeds"]):
                reached += f" with {best['reached']} of {len(result['seeds'])} seeds"
            if (end := best.get("end")) is not None:
                reached = f"{end:.1%} at the end"
            edge = f"; at the edge: {', '.join(one['edges'])}" if one["edges"] else ""
            console.print(f"  {label}: {settings} ({reached}{edge})", highlight=False, markup=False)
