"""Compare algorithms: the same data, delays and evaluation, several seeds, one table and one picture."""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from tardigrad.core.setting import Setting
from tardigrad.errors import ConfigError, TardigradError
from tardigrad.experiments.config import Config, explain, parse_config, read_toml
from tardigrad.experiments.directory import RunDirectory, read_events


class Comparison(Setting):
    """What is compared, and how it is judged."""

    title: str = "Comparison"
    seeds: tuple[int, ...] = (0, 1, 2)
    """Every entry is run once with each."""
    target: float = Field(0.9, gt=0)
    """The accuracy to reach."""
    base: dict[str, Any] = Field(default_factory=dict)
    """The config that all entries share."""
    entries: dict[str, dict[str, Any]]
    """By label: what each changes in `base`."""


@dataclass(frozen=True)
class Reached:
    """When one run came to the target."""

    trips: float
    steps: float
    time: float


@dataclass(frozen=True)
class Outcome:
    """One run of one entry."""

    label: str
    seed: int
    summary: dict[str, Any] | None
    curve: list[tuple[float, float, float]]
    """(trips, virtual time, accuracy) of every evaluation."""
    reached: Reached | None
    error: str | None


def compare(file: Path, out: Path, console: Console) -> dict[str, Any]:
    """Run everything that is not there yet, show the table, draw the picture. Returns the table."""
    comparison = _load(file)
    configs = {
        (label, seed): _config(comparison, label, seed, str(file))
        for label in comparison.entries
        for seed in comparison.seeds
    }
    folders = [_folder(out, label, 0).name for label in comparison.entries]
    if len(set(folders)) < len(folders):
        twice = next(name for name in folders if folders.count(name) > 1).removesuffix("-seed0")
        raise ConfigError(f"{file}: two entries would share the folder {twice!r}; rename one of them")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be made ({error})") from None
    errors = _run_all(configs, out, console)
    outcomes = [
        _outcome(label, seed, _folder(out, label, seed), comparison.target, errors.get((label, seed)))
        for label, seed in configs
    ]
    table = {
        "title": comparison.title,
        "target": comparison.target,
        "seeds": list(comparison.seeds),
        "rows": list(_rows(comparison, outcomes)),
    }
    (out / "comparison.json").write_text(json.dumps(table, indent=2) + "\n")
    _show(table, console)
    if any(outcome.curve for outcome in outcomes):
        _draw(comparison, outcomes, out / "comparison.png")
        console.print(f"picture: {out / 'comparison.png'}", highlight=False, soft_wrap=True)
    return table


def _load(file: Path) -> Comparison:
    try:
        comparison = Comparison.model_validate(read_toml(file))
    except ValidationError as error:
        raise ConfigError("\n".join(f"{file}: {line}" for line in explain(error, Comparison))) from None
    if not comparison.entries or not comparison.seeds:
        raise ConfigError(f"{file}: entries and seeds must name at least one each")
    return comparison


def _config(comparison: Comparison, label: str, seed: int, source: str) -> Config:
    values = _merged(comparison.base, comparison.entries[label]) | {"seed": seed}
    return parse_config(values, f"{source}, entry {label!r}")


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes`; a table of another kind replaces the whole table."""
    merged = dict(base)
    for name, value in changes.items():
        old = merged.get(name)
        if (
            isinstance(old, dict)
            and isinstance(value, dict)
            and value.get("kind", old.get("kind")) == old.get("kind")
        ):
            merged[name] = _merged(old, value)
        else:
            merged[name] = value
    return merged


def _folder(out: Path, label: str, seed: int) -> Path:
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in label)
    return out / f"{name[:80]}-seed{seed}"


def _run_all(
    configs: dict[tuple[str, int], Config], out: Path, console: Console
) -> dict[tuple[str, int], str]:
    """Run what is not finished, on all cores; errors by run."""
    left = [key for key in configs if RunDirectory(_folder(out, *key)).summary is None]
    if not left:
        return {}
    errors: dict[tuple[str, int], str] = {}
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before a worker imports numpy
    workers = min(len(left), os.cpu_count() or 1)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        futures = {pool.submit(_run_one, configs[key].to_toml(), _folder(out, *key)): key for key in left}
        done = track(as_completed(futures), "running", len(futures), console=console, transient=True)
        try:
            for future in done:
                try:
                    error = future.result()
                except BrokenProcessPool:
                    error = "a process died (out of memory?); run it again to go on"
                if error is not None:
                    errors[futures[future]] = error
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return errors


def _run_one(toml: str, folder: Path) -> str | None:
    """In a worker: run or go on with one config; what went wrong, if anything."""
    import tomllib

    from tardigrad.experiments.run import run

    try:
        config = parse_config(tomllib.loads(toml), str(folder))
        run(config, out=folder, resume=(folder / "config.toml").exists())
    except TardigradError as error:
        return str(error)
    except Exception as error:  # whatever it is, the other runs go on
        return f"{type(error).__name__}: {error}"
    return None


def _outcome(label: str, seed: int, folder: Path, target: float, error: str | None) -> Outcome:
    summary = RunDirectory(folder).summary
    curve: list[tuple[float, float, float]] = []
    reached: Reached | None = None
    if summary is not None:
        for event in read_events(folder / "events.jsonl"):
            if event["event"] != "evaluation" or "accuracy" not in event:
                continue
            curve.append((event["trips"], event["time"], event["accuracy"]))
            if reached is None and event["accuracy"] >= target:
                reached = Reached(event["trips"], event["version"], event["time"])
    return Outcome(label, seed, summary, curve, reached, error)


def _rows(comparison: Comparison, outcomes: list[Outcome]) -> Iterator[dict[str, Any]]:
    for label in comparison.entries:
        own = [outcome for outcome in outcomes if outcome.label == label]
        errors = [outcome.error for outcome in own if outcome.error]
        oracle = any(outcome.summary["oracle"] for outcome in own if outcome.summary)
        row: dict[str, Any] = {"entry": label + (" (oracle)" if oracle else ""), "failed": errors}
        if not errors:
            row["reached"] = sum(outcome.reached is not None for outcome in own)
            everywhere = [outcome.reached for outcome in own if outcome.reached is not None]
            for name in ("trips", "steps", "time"):
                values = [getattr(reached, name) for reached in everywhere]
                row[name] = _mean_sd(values) if len(values) == len(own) else None
            row["budget"] = max(outcome.summary["client_trips"] for outcome in own if outcome.summary)
            row["accuracy"] = _mean_sd([outcome.curve[-1][2] for outcome in own if outcome.curve])
        yield row


def _mean_sd(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"mean": statistics.fmean(values), "sd": statistics.stdev(values) if len(values) > 1 else 0.0}


def _show(table: dict[str, Any], console: Console) -> None:
    console.print(
        f"{table['title']}: to {table['target']:.0%} accuracy, mean ± sd over {len(table['seeds'])} seeds",
        highlight=False,
        markup=False,
    )
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0))
    shown.add_column("algorithm", overflow="fold")
    for column in ("client trips", "x best", "time", "x best", "steps", "accuracy %"):
        shown.add_column(column, justify="right", no_wrap=True)
    best = {
        name: min((row[name]["mean"] for row in table["rows"] if row.get(name)), default=None)
        for name in ("trips", "time")
    }
    for row in table["rows"]:
        if row["failed"]:
            shown.add_row(escape(row["entry"]), "[red]failed[/]", *[""] * 5)
            continue
        cells = []
        for name, digits in (("trips", 0), ("time", 1)):
            if row[name] is None:
                limit = f"> {row['budget']:,}" if name == "trips" else "-"
                cells += [limit, f"{row['reached']} of {len(table['seeds'])}" if name == "trips" else ""]
            else:
                mean, sd = row[name]["mean"], row[name]["sd"]
                ratio = mean / best[name] if best[name] else 1.0
                cells += [f"{mean:,.{digits}f} ± {sd:,.{digits}f}", f"{ratio:.2f}"]
        steps = "-" if row["steps"] is None else f"{row['steps']['mean']:,.0f}"
        accuracy = row["accuracy"]
        shown.add_row(
            row["entry"], *cells, steps, f"{100 * accuracy['mean']:.1f} ± {100 * accuracy['sd']:.1f}"
        )
    console.print(shown)
    for row in table["rows"]:
        for error in row["failed"]:
            console.print(f"{row['entry']} failed: {error}", style="red", highlight=False, markup=False)


def _draw(comparison: Comparison, outcomes: list[Outcome], file: Path) -> None:
    from tardigrad.experiments.plot import Curve, draw_comparison

    curves = []
    for label in comparison.entries:
        runs = [outcome.curve for outcome in outcomes if outcome.label == label and outcome.curve]
        if runs:
            curves.append(Curve(label, runs))
    draw_comparison(curves, comparison.target, comparison.title, file)
