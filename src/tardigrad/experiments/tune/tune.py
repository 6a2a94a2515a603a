"""Tune every entry of a comparison with the same number of trials: what was found, and what that cost."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import queue
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import tomli_w
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tardigrad.core.files import write_text
from tardigrad.errors import ConfigError, TardigradError
from tardigrad.experiments.compare.compare import Comparison, load_comparison, merged
from tardigrad.experiments.compare.pool import PoolProgress, begin_worker, no_program, start_nursery
from tardigrad.experiments.reproduce.study import (
    StudyResult,
    Subject,
    continue_study,
    findings,
    open_study,
    said,
)
from tardigrad.experiments.tune.search_space import Tune, with_settings
from tardigrad.experiments.tune.shipped_spaces import shipped_space

STUDIES = "study.db"
TUNING = "tuning.json"
FIXED = ("seed", "stop", "evaluation", "data")
PATIENCE = 100
"""Tenths of a second to wait for others to leave."""


def tune(file: Path, out: Path, console: Console) -> dict[str, Any]:
    """Make the trials that are not there yet; write `tuned.toml` and `tuning.json`. Returns the latter."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise ConfigError("tune needs Optuna; in this environment: pip install 'tardigrad[tune]'") from None
    comparison = load_comparison(file)
    chosen = subjects(comparison, str(file))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be made ({error})") from None
    studies = {subject.label: open_study(out / STUDIES, subject) for subject in chosen}
    for subject in chosen:
        if not subject.space:
            console.print(
                f"{subject.label}: nothing to tune; one trial shows what it does",
                highlight=False, markup=False,
            )  # fmt: skip
    _run_all(chosen, out / STUDIES, console)
    found = {subject.label: findings(studies[subject.label], subject) for subject in chosen}
    trials = (comparison.tune or Tune()).trials
    told = {"trials": trials, "per_entry": {label: one.model_dump() for label, one in found.items()}}
    write_text(out / TUNING, json.dumps(told, indent=2) + "\n")
    write_text(out / "tuned.toml", tomli_w.dumps(tuned(comparison, chosen, found)))
    _show(chosen, found, console)
    console.print(
        f"next: tardigrad compare {out / 'tuned.toml'} --out {out / 'compared'}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    return told


def subjects(comparison: Comparison, source: str) -> list[Subject]:
    """What there is to tune; a ConfigError for whatever is wrong, before anything is run."""
    settings = comparison.tune or Tune()
    seeds = settings.seeds or (max(comparison.seeds) + 1,)
    seen = sorted(set(seeds) & set(comparison.seeds))
    if seen:
        raise ConfigError(
            f"{source}: tune.seeds: {seen[0]} is among `seeds`, which judge what was tuned; give others"
        )
    unknown = sorted(set(settings.spaces) - set(comparison.entries))
    if unknown:
        raise ConfigError(
            f"{source}: tune.spaces: there is no entry {unknown[0]!r}; "
            f"entries: {', '.join(comparison.entries)}"
        )
    for label, space in settings.spaces.items():
        for name in space:
            if name.split(".")[0] in FIXED or name.split(".")[-1] == "kind":
                raise ConfigError(
                    f"{source}: tune.spaces: {label}: {name} is not for tuning; every trial has the "
                    "same budget, data and kind of algorithm"
                )
    target = comparison.targets[0] if settings.objective == "trips" else None
    found = []
    for label, entry in comparison.entries.items():
        config = comparison.config(label, seeds[0], source)
        stop = (settings.budget or config.stop).model_copy(update={"accuracy": target})
        values = merged(comparison.base, entry) | {"stop": stop.model_dump(exclude_none=True)}
        space = shipped_space(config, settings.ranges) | settings.spaces.get(label, {})
        trials = settings.trials if space else 1
        where = f"{source}, entry {label!r}"
        subject = Subject(label, where, values, space, seeds, trials, settings.pruning, target)
        subject.check()
        found.append(subject)
    return found


def tuned(comparison: Comparison, chosen: list[Subject], found: dict[str, StudyResult]) -> dict[str, Any]:
    """The comparison with the best settings in its entries."""
    file = comparison.model_dump(mode="json", exclude_none=True, exclude={"tune", "entries"})
    file |= {"tuning": TUNING, "entries": {}}
    for subject in chosen:
        entry = dict(comparison.entries[subject.label])
        best = found[subject.label].best
        whole = merged(comparison.base, entry)
        whole = with_settings(whole, subject.config, best, subject.source)
        entry |= {table: whole[table] for table in dict.fromkeys(name.split(".")[0] for name in best)}
        file["entries"][subject.label] = entry
    return file


# -- side by side --------------------------------------------------------------------------------

_told: Any = None


def _begin_tuning(stop: Any, environment: dict[str, str], told: Any) -> None:
    """In a new worker."""
    global _told
    _told = told
    begin_worker(stop, environment)


def _tune_one(subject: Subject, file: Path, workers: int) -> TardigradError | None:
    """In a worker: one entry's trials, one after another; what went wrong, if anything."""
    try:
        with _alone(file, subject.label):
            study = open_study(file, subject)
            for words in continue_study(study, subject, (PoolProgress(),), workers):
                _told.put((subject.label, words, findings(study, subject)))
    except KeyboardInterrupt:
        return None
    except TardigradError as error:
        return error
    return None


@contextmanager
def _alone(file: Path, label: str) -> Iterator[None]:
    """Nobody else makes this entry's trials meanwhile. A worker whose parent was killed lives a second
    longer: wait for it."""
    name = hashlib.sha256(label.encode()).hexdigest()[:8]
    with file.with_name(f".{name}.lock").open("w") as lock:
        for _ in range(PATIENCE):
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise ConfigError(f"--out {file.parent}: somebody else is tuning {label!r} there right now")
        yield


def _run_all(chosen: list[Subject], file: Path, console: Console) -> None:
    """The entries side by side: their trials do not depend on each other, so neither on the cores. Where
    there are more cores than entries, trips of one trial are trained side by side."""
    cores = len(os.sched_getaffinity(0))
    nursery = start_nursery()
    stop, told = nursery.Event(), nursery.Queue()
    workers = cores // len(chosen) if len(chosen) < cores else 0
    initial = (stop, dict(os.environ), told)
    pool = ProcessPoolExecutor(min(len(chosen), cores), nursery, _begin_tuning, initial)
    with pool, _display(chosen, console) as display:
        with no_program():
            futures = [pool.submit(_tune_one, subject, file, workers) for subject in chosen]
        left = set(futures)
        try:
            while left:
                done, left = wait(left, timeout=0.2)
                for words in _drained(told):
                    display.trial(*words)
                for future in done:
                    error = future.result()
                    if error is not None:
                        raise error
        except BrokenProcessPool:
            raise TardigradError("a process died (out of memory?); the same command goes on") from None
        finally:
            stop.set()  # nobody is left, or nobody should be
            pool.shutdown(wait=True, cancel_futures=True)
            for words in _drained(told):
                display.trial(*words)


def _drained(told: Any) -> Iterator[tuple[str, str, StudyResult]]:
    while True:
        try:
            yield told.get_nowait()
        except queue.Empty:
            return


# -- what people see -----------------------------------------------------------------------------


class _Display(Protocol):
    def trial(self, label: str, words: str, best: StudyResult) -> None:
        """A trial is over."""


class _Bars:
    """A bar for each entry."""

    def __init__(self, chosen: list[Subject], progress: Progress) -> None:
        self._progress = progress
        self._subjects = {subject.label: subject for subject in chosen}
        self._tasks = {s.label: progress.add_task(escape(s.label), total=s.trials, best="") for s in chosen}

    def trial(self, label: str, words: str, best: StudyResult) -> None:
        text = f"best: {_best(best, self._subjects[label])}"
        self._progress.update(self._tasks[label], completed=best.trials, best=text)


class _Lines:
    """A line for each trial, for logs."""

    def __init__(self, chosen: list[Subject], console: Console) -> None:
        self._console = console
        self._trials = {subject.label: subject.trials for subject in chosen}

    def trial(self, label: str, words: str, best: StudyResult) -> None:
        line = f"{label}: trial {best.trials} of {self._trials[label]}: {words}"
        self._console.print(line, highlight=False, markup=False)


@contextmanager
def _display(chosen: list[Subject], console: Console) -> Iterator[_Display]:
    if not console.is_terminal:
        yield _Lines(chosen, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn())
    best = TextColumn("{task.fields[best]}")
    with Progress(*columns, best, TimeElapsedColumn(), console=console, transient=True) as progress:
        yield _Bars(chosen, progress)


def _show(chosen: list[Subject], found: dict[str, StudyResult], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("entry", overflow="fold", min_width=9)
    for heading in ("trials", "pruned", "failed", "trips spent", "best"):
        table.add_column(heading, justify="right", no_wrap=True)
    for subject in chosen:
        one = found[subject.label]
        numbers = (one.trials, one.pruned, one.failed, one.trips)
        table.add_row(escape(subject.label), *(f"{number:,}" for number in numbers), _best(one, subject))
    console.print(table)
    for label, one in found.items():
        if one.best:
            settings = ", ".join(f"{name} = {value}" for name, value in one.best.items())
            console.print(f"{label}: {settings}", highlight=False, markup=False)


def _best(one: StudyResult, subject: Subject) -> str:
    return "none" if one.failed + one.pruned == one.trials else said(one.value, subject.target)
