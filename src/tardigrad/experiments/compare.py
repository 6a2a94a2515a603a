"""Compare algorithms: the same data, delays and evaluation, several seeds, one table and one picture."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import statistics
import threading
import time
import tomllib
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
from tardigrad.experiments.directory import Event, RunDirectory, read_events

Key = tuple[str, int]
"""Label of an entry, and a seed."""


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
    folders = {key: out / _folder(*key, config) for key, config in configs.items()}
    labels: dict[str, str] = {}
    for label in comparison.entries:
        other = labels.setdefault(_folder_label(label), label)
        if other != label:
            raise ConfigError(f"{file}: {label!r} and {other!r} would share a folder; rename one of them")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be made ({error})") from None
    errors = _run_all(configs, folders, console)
    outcomes = [
        _outcome(label, seed, folders[label, seed], comparison.target, errors.get((label, seed)))
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
    if len(set(comparison.seeds)) < len(comparison.seeds):
        raise ConfigError(f"{file}: seeds: the same seed twice is the same run twice")
    return comparison


def _config(comparison: Comparison, label: str, seed: int, source: str) -> Config:
    values = _merged(comparison.base, comparison.entries[label])
    if "seed" in values:
        raise ConfigError(f"{source}, entry {label!r}: seed is set by `seeds`, which every entry shares")
    values["seed"] = seed
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


def _folder(label: str, seed: int, config: Config) -> str:
    """Where a run lies. The config is part of the name, so that an edited entry is run again."""
    return f"{_folder_label(label)}-seed{seed}-{hashlib.sha256(config.to_toml().encode()).hexdigest()[:8]}"


def _folder_label(label: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in label)[:80]


def _run_all(configs: dict[Key, Config], folders: dict[Key, Path], console: Console) -> dict[Key, str]:
    """Run what is not finished, on all cores; errors by run."""
    left = [key for key in configs if RunDirectory(folders[key]).summary is None]
    if not left:
        return {}
    errors: dict[Key, str] = {}
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before a worker imports numpy
    workers = min(len(left), len(os.sched_getaffinity(0)))
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    with ProcessPoolExecutor(workers, spawn, initializer=_begin, initargs=(stop,)) as pool:
        futures = {pool.submit(_run_one, configs[key].to_toml(), folders[key]): key for key in left}
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
            stop.set()  # the runs that are under way write a snapshot
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return errors


class _Watch:
    """Stops a run when the others are stopped."""

    def begin(self, config: Config, events: list[Event]) -> None:
        pass

    def see(self, events: list[Event]) -> None:
        if _stop is not None and _stop.is_set():
            raise KeyboardInterrupt

    def end(self) -> None:
        pass


_stop: Any = None


def _begin(stop: Any) -> None:
    """In a new worker: interrupts are the parent's business, and without the parent there is none."""
    global _stop
    _stop = stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _run_one(toml: str, folder: Path) -> str | None:
    """In a worker: run or go on with one config; what went wrong, if anything."""
    from tardigrad.experiments.run import run

    if _stop is not None and _stop.is_set():
        return "stopped"
    try:
        config = parse_config(tomllib.loads(toml), str(folder))
        begun = (folder / "config.toml").exists() or (folder / ".lock").exists()
        run(config, out=folder, resume=begun, observers=(_Watch(),))
    except KeyboardInterrupt:
        return "stopped"
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
            escape(row["entry"]), *cells, steps, f"{100 * accuracy['mean']:.1f} ± {100 * accuracy['sd']:.1f}"
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
