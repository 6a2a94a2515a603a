"""Tune every entry of a comparison with the same number of trials, in parallel processes."""

from __future__ import annotations

import hashlib
import json
import os
import queue
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import tomli_w
from pydantic_core import to_jsonable_python
from rich.console import Console

from tardigrad.core.extras import pip_install
from tardigrad.core.files import write_text
from tardigrad.core.setting import Setting
from tardigrad.core.stop import Stop
from tardigrad.errors import ConfigError, TardigradError
from tardigrad.experiments.compare.compare import Comparison, Values, load_comparison, merged
from tardigrad.experiments.compare.pool import (
    PoolProgress,
    begin_worker,
    exclusive_lock,
    fork_server,
    hidden_main,
)
from tardigrad.experiments.compare.tabulate import EntryTuning, TuningTable
from tardigrad.experiments.compare.verbosity import Verbosity
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.in_memory import InMemory
from tardigrad.experiments.tune.search_space import Tune, with_settings
from tardigrad.experiments.tune.shipped_spaces import search_space
from tardigrad.experiments.tune.study import StudyResult, continue_study, findings, open_study
from tardigrad.experiments.tune.subject import Subject
from tardigrad.experiments.tune.trial_display import show_findings, trial_display

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Event as StopEvent

TrialMessage = tuple[str, str, StudyResult]
"""An entry's label, the outcome of its last trial in words, and what its study has found so far."""
STUDIES = "study.db"
TUNING = "tuning.json"
FIXED = ("seed", "stop", "evaluation", "data")
LOCK_SECONDS = 10.0
"""How long to wait for a worker whose parent was killed; it exits within about a second."""


def tune(file: Path, out: Path, console: Console, verbosity: Verbosity = "normal") -> TuningTable:
    """Tune the entries of a comparison file, show what was found, and return what `tuning.json` holds.

    >>> tune(Path("experiments/demo.toml"), Path("runs/tuned"), Console())["trials"]  # doctest: +SKIP
    20
    """
    comparison = load_comparison(file)
    table = run_tuning(comparison, str(file), out, console, verbosity)
    found = {label: StudyResult.model_validate(one) for label, one in table["per_entry"].items()}
    show_findings(subjects(comparison, str(file)), found, console)
    console.print(
        f"next: tardigrad compare {out / 'tuned.toml'} --out {out / 'compared'}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    return table


def run_tuning(
    comparison: Comparison,
    source: str,
    out: Path,
    console: Console,
    verbosity: Verbosity = "normal",
    own: InMemory | None = None,
) -> TuningTable:
    """Make the trials that are not there yet, write `tuned.toml` and `tuning.json`, and return the latter.

    `source`: named in errors. `own`: the caller's own model, data and loss in Python.
    """
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise ConfigError(f"tune needs Optuna; in this environment: {pip_install('tune')}") from None
    chosen = subjects(comparison, source, own is not None and own.head is not None)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be made ({error})") from None
    here = own if own is not None and own.needed(*(subject.config for subject in chosen)) else None
    if here is not None:
        chosen = [replace(one, inputs=here.inputs(one.with_settings({}, one.seeds[0]))) for one in chosen]
    studies = {subject.label: open_study(out / STUDIES, subject) for subject in chosen}
    for subject in chosen:
        if not subject.space:
            console.print(
                f"{subject.label}: nothing to tune; one trial shows what it does",
                highlight=False,
                markup=False,
            )
    if here is not None:
        _run_here(chosen, out / STUDIES, console, verbosity, here)
    else:
        _run_all(chosen, out / STUDIES, console, verbosity)
    found = {subject.label: findings(studies[subject.label], subject) for subject in chosen}
    trials = (comparison.tune or Tune()).trials
    table: TuningTable = {
        "trials": trials,
        "per_entry": {label: cast(EntryTuning, one.model_dump()) for label, one in found.items()},
    }
    write_text(out / TUNING, json.dumps(table, indent=2) + "\n")
    write_text(out / "tuned.toml", tomli_w.dumps(tuned(comparison, chosen, found)))
    return table


def subjects(comparison: Comparison, source: str, own_head: bool = False) -> list[Subject]:
    """Return the entries to tune. Raise a ConfigError for anything that is wrong, before anything is run."""
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
        stop = _trial_stop(settings.budget or config.stop, config, target, own_head)
        values = merged(comparison.base, entry) | {"stop": stop.model_dump(exclude_none=True)}
        space = search_space(config, settings.ranges) | settings.spaces.get(label, {})
        trials = settings.trials if space else 1
        where = f"{source}, entry {label!r}"
        subject = Subject(label, where, values, space, seeds, trials, settings.pruning, target, own_head)
        subject.check()
        found.append(subject)
    return found


def _trial_stop(stop: Stop, config: Config, target: float | None, own_head: bool) -> Stop:
    """Return the stop rules of a trial, which ends when it reaches the target, if there is one."""
    plain = not own_head and config.head is None and config.evaluation.main is None
    goal = {"accuracy": target} if plain else {"target": target}
    return stop.model_copy(update=dict.fromkeys(("accuracy", "target", "metric", "better")) | goal)


def tuned(comparison: Comparison, chosen: list[Subject], found: dict[str, StudyResult]) -> Values:
    """Return the comparison file with the best settings in its entries."""
    file: Values = comparison.model_dump(
        mode="json", exclude_none=True, exclude={"tune", "variants", "entries", "base"}
    )
    entries: dict[str, Values] = {}
    file |= {"tuning": TUNING, "base": _plain(comparison.base), "entries": entries}
    for subject in chosen:
        entry = dict(comparison.entries[subject.label])
        best = found[subject.label].best
        whole = merged(comparison.base, entry)
        whole = with_settings(whole, subject.config, best, subject.source)
        entry |= {table: whole[table] for table in dict.fromkeys(name.split(".")[0] for name in best)}
        entries[subject.label] = _plain(entry)
    return file


def _plain(settings: Values) -> Values:
    """Return settings in which tables may be objects as they are written in TOML."""
    objects = {name: table for name, table in settings.items() if isinstance(table, Setting)}
    written = Config.model_validate(objects).model_dump(mode="json", include=set(objects), exclude_none=True)
    return {name: to_jsonable_python(written.get(name, settings[name])) for name in settings}


_messages: Queue[TrialMessage] | None = None


def _begin_tuning(stop: StopEvent, environment: dict[str, str], messages: Queue[TrialMessage]) -> None:
    """Prepare a new worker."""
    global _messages
    _messages = messages
    begin_worker(stop, environment)


def _tune_one(subject: Subject, file: Path, workers: int) -> TardigradError | None:
    """Make one entry's trials in a worker, one after another. Return the error, or None."""
    assert _messages is not None
    name = hashlib.sha256(subject.label.encode()).hexdigest()[:8]
    busy = f"--out {file.parent}: somebody else is tuning {subject.label!r} there right now"
    try:
        with exclusive_lock(file.with_name(f".{name}.lock"), busy, LOCK_SECONDS):
            study = open_study(file, subject)
            for words in continue_study(study, subject, (PoolProgress(),), InMemory(workers=workers)):
                _messages.put((subject.label, words, findings(study, subject)))
    except KeyboardInterrupt:
        return None
    except TardigradError as error:
        return error
    return None


def _run_here(
    chosen: list[Subject], file: Path, console: Console, verbosity: Verbosity, own: InMemory
) -> None:
    """Make the trials of all entries in this process, one entry after another."""
    with trial_display(chosen, console, verbosity) as display:
        for subject in chosen:
            study = open_study(file, subject)
            for words in continue_study(study, subject, own=own):
                display.trial(subject.label, words, findings(study, subject))


def _run_all(chosen: list[Subject], file: Path, console: Console, verbosity: Verbosity) -> None:
    """Make the trials of all entries, one process for each entry. Entries do not depend on each other, so the
    number of cores does not change the result. With more cores than entries, each trial has workers."""
    cores = len(os.sched_getaffinity(0))
    server = fork_server()
    stop = server.Event()
    messages: Queue[TrialMessage] = server.Queue()
    workers = cores // len(chosen) if len(chosen) < cores else 0
    initial = (stop, dict(os.environ), messages)
    pool = ProcessPoolExecutor(min(len(chosen), cores), server, _begin_tuning, initial)
    with pool, trial_display(chosen, console, verbosity) as display:
        with hidden_main():
            futures = [pool.submit(_tune_one, subject, file, workers) for subject in chosen]
        left = set(futures)
        try:
            while left:
                done, left = wait(left, timeout=0.2)
                for words in _drained(messages):
                    display.trial(*words)
                for future in done:
                    error = future.result()
                    if error is not None:
                        raise error
        except BrokenProcessPool:
            raise TardigradError("a process died (out of memory?); the same command goes on") from None
        finally:
            stop.set()  # also ends trials under way after an error
            pool.shutdown(wait=True, cancel_futures=True)
            for words in _drained(messages):
                display.trial(*words)


def _drained(messages: Queue[TrialMessage]) -> Iterator[TrialMessage]:
    """Iterate over the messages that have arrived."""
    while True:
        try:
            yield messages.get_nowait()
        except queue.Empty:
            return
