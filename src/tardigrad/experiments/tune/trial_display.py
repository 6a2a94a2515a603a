"""The output of tuning: a bar for each entry or a line for each trial, and a table at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tardigrad.core.metric import Metric
from tardigrad.experiments.compare.verbosity import Verbosity
from tardigrad.experiments.tune.study import StudyResult, said
from tardigrad.experiments.tune.subject import Subject


class TrialDisplay(Protocol):
    def trial(self, label: str, words: str, best: StudyResult) -> None:
        """Called when a trial has ended, with its outcome in words and what the study has found so far."""


class _TrialBars:
    """Show a bar for each entry."""

    def __init__(self, chosen: list[Subject], progress: Progress) -> None:
        self._progress = progress
        self._subjects = {subject.label: subject for subject in chosen}
        self._tasks = {s.label: progress.add_task(escape(s.label), total=s.trials, best="") for s in chosen}

    def trial(self, label: str, words: str, best: StudyResult) -> None:
        text = f"best: {_best(best, self._subjects[label])}"
        self._progress.update(self._tasks[label], completed=best.trials, best=text)


class _TrialLines:
    """Print a line for each trial, for logs."""

    def __init__(self, chosen: list[Subject], console: Console) -> None:
        self._console = console
        self._trials = {subject.label: subject.trials for subject in chosen}

    def trial(self, label: str, words: str, best: StudyResult) -> None:
        line = f"{label}: trial {best.trials} of {self._trials[label]}: {words}"
        self._console.print(line, highlight=False, markup=False)


class _NoTrials:
    """Show nothing."""

    def trial(self, label: str, words: str, best: StudyResult) -> None:
        pass


@contextmanager
def trial_display(chosen: list[Subject], console: Console, verbosity: Verbosity) -> Iterator[TrialDisplay]:
    """Show the trials while they are made."""
    if verbosity == "quiet":
        yield _NoTrials()
        return
    if verbosity == "verbose" or not console.is_terminal:
        yield _TrialLines(chosen, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn())
    best = TextColumn("{task.fields[best]}")
    with Progress(*columns, best, TimeElapsedColumn(), console=console, transient=True) as progress:
        yield _TrialBars(chosen, progress)


def show_findings(chosen: list[Subject], found: dict[str, StudyResult], console: Console) -> None:
    """Print what was found for each entry, and what that cost."""
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
    for label, one in found.items():
        if one.nearest is not None:
            advice = "try a larger `tune.budget`, more `tune.trials` or a lower target"
            console.print(f"{label}: no trial reached the target; {advice}", highlight=False, markup=False)


def _best(one: StudyResult, subject: Subject) -> str:
    if one.failed + one.pruned == one.trials:
        return "none"
    return said(one.value, subject.target, one.nearest, Metric(one.metric, one.lower_is_better))
