"""The study of one entry: trials one after another, each chosen from those before it, in a SQLite file."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tardigrad.core.draws import key
from tardigrad.core.events import Event, ModelEvaluated, UploadReceived
from tardigrad.core.metric import ACCURACY, Metric
from tardigrad.core.plural import counted
from tardigrad.core.setting import Setting
from tardigrad.errors import ConfigError, RunError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.drive import Observer
from tardigrad.experiments.runs.in_memory import InMemory
from tardigrad.experiments.tune.search_space import Dimension, Value
from tardigrad.experiments.tune.subject import Subject

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

NOTHING_OWN = InMemory()
RANDOM_TRIALS = 5
"""Number of trials that are chosen at random, before there is enough to learn from."""
EVALUATIONS_BEFORE_PRUNING = 3
MISSED = 1e9
"""What a trial loses for each seed that missed the target, so that it ranks below those that reached it."""


class StudyResult(Setting):
    """The settings that a study has found, and its cost."""

    trials: int
    """Finished, pruned and failed together."""
    pruned: int
    """Ended early."""
    failed: int
    """Diverged."""
    trips: int
    """Client trips spent on all of them."""
    best: dict[str, Value]
    """The settings of the best trial; empty if none finished, or if there was nothing to tune."""
    value: float | None
    """The value of its metric, or its trips to the target, if it reached it."""
    reached: bool
    """Whether it reached the target, where trips to one are counted."""
    nearest: float | None = None
    """The best value of its metric, if it missed the target."""
    metric: str = "accuracy"
    """The metric that the trials are judged by."""
    lower_is_better: bool = False


@dataclass
class _Judge:
    """Observe one run of a trial: count its trips, and end it if it is worse than the others."""

    trial: Trial
    pruning: bool
    trips: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)
    """Trips and value of the metric of every evaluation."""
    metric: Metric = ACCURACY

    def begin(self, config: Config, history: list[ModelEvaluated]) -> None:
        self.metric = config.evaluation.metric

    def see(self, events: list[Event]) -> None:
        import optuna

        for event in events:
            if isinstance(event, UploadReceived):
                self.trips += 1
            elif isinstance(event, ModelEvaluated):
                value = event.metric(self.metric.name)
                if value is None:
                    continue
                self.curve.append((event.trips, value))
                if self.pruning:
                    self.trial.report(self.metric.gain(0.0, value), len(self.curve))
                    if self.trial.should_prune():
                        raise optuna.TrialPruned

    def end(self) -> None:
        pass


def open_study(file: Path, subject: Subject) -> Study:
    """Open the entry's study in this file, or create it."""
    import optuna
    import sqlalchemy.exc

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    patient = {"connect_args": {"timeout": 60}}  # other entries' studies write to the same file
    try:
        study = optuna.create_study(
            storage=optuna.storages.RDBStorage(f"sqlite:///{file}", engine_kwargs=patient),
            study_name=subject.label,
            direction="maximize",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(RANDOM_TRIALS, EVALUATIONS_BEFORE_PRUNING),
        )
    except sqlalchemy.exc.DatabaseError as error:
        raise RunError(
            f"{file} is damaged or cannot be written ({error.orig}); remove it to begin the trials anew"
        ) from None
    before = study.user_attrs.get("fingerprint")
    if before not in (None, subject.fingerprint):
        raise ConfigError(
            f"{file}: holds the study of another {subject.label!r} (its settings, its search space, its "
            "model or data, or how trials are judged have changed); give another --out, or put that back"
        )
    study.set_user_attr("fingerprint", subject.fingerprint)
    return study


def continue_study(
    study: Study, subject: Subject, observers: tuple[Observer, ...] = (), own: InMemory = NOTHING_OWN
) -> Iterator[str]:
    """Make the trials that are left, and yield the outcome of each in words.

    One trial is made at a time. It is chosen by a sampler whose seed depends on the label and on the number
    of trials that count, so the trials are the same however often the study was stopped.
    """
    import optuna

    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)  # it was interrupted, and is repeated
    for number in range(len(_counted(study)), subject.trials):
        study.sampler = optuna.samplers.TPESampler(
            seed=key(0, f"tuning {subject.label}", number) % 2**32,
            n_startup_trials=RANDOM_TRIALS,
            multivariate=True,
            constant_liar=False,
        )
        if number == 0 and not study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,)):
            study.enqueue_trial(subject.own_settings)
        yield _make(study, subject, observers, own)


def _make(study: Study, subject: Subject, observers: tuple[Observer, ...], own: InMemory) -> str:
    """Make one trial, and return its outcome in words."""
    import optuna

    trial = study.ask({name: _distribution(dimension) for name, dimension in subject.space.items()})
    settings = {name: _readable(value, subject.space[name]) for name, value in trial.params.items()}
    trial.set_user_attr("settings", settings)
    scores, best, spent, missed = [], [], 0, 0
    metric = ACCURACY
    try:
        for index, seed in enumerate(subject.seeds):
            judge = _Judge(trial, subject.pruning and index == 0)
            try:
                config = subject.with_settings(settings, seed)
                own.run(config, observers=(judge, *observers))
            except ConfigError as error:
                if not _counted(study):  # the entry's own settings
                    raise
                raise RunError(str(error)) from None
            finally:
                spent += judge.trips
            score, there = _score(judge, subject)
            scores.append(score)
            metric = judge.metric
            best.append(metric.best(value for _, value in judge.curve))
            missed += not there
    except optuna.TrialPruned:
        trial.set_user_attr("trips", spent)
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        return "ended early"
    except RunError as error:
        trial.set_user_attr("trips", spent)
        trial.set_user_attr("failed", str(error))
        study.tell(trial, _worst(subject))
        return "failed"
    trial.set_user_attr("trips", spent)
    trial.set_user_attr("reached", not missed)
    trial.set_user_attr("best_accuracy", statistics.fmean(best))
    trial.set_user_attr("metric", [metric.name, metric.lower_is_better])
    score = statistics.fmean(scores) - MISSED * missed
    study.tell(trial, score)
    value = _as_value(score, metric, subject.target) if not missed else None
    return said(value, subject.target, statistics.fmean(best), metric)


def said(
    value: float | None, target: float | None, nearest: float | None = None, metric: Metric = ACCURACY
) -> str:
    """Return the value of a finished trial in words; for a missed target, how near it came."""
    if value is None:
        return f"missed {target:g}" + ("" if nearest is None else f", came to {nearest:.3f}")
    if target is not None:
        return counted(round(value), "trip")
    return f"{value:.2%}" if metric.percent else f"{metric} {value:.4g}"


def _as_value(score: float, metric: Metric, target: float | None) -> float:
    """Return the trips to the target, or the value of the metric, that a score stands for."""
    return -score if target is not None or metric.lower_is_better else score


def _score(judge: _Judge, subject: Subject) -> tuple[float, bool]:
    """Return the score of one run (more is better), and whether it reached the target."""
    if not judge.curve:
        raise ConfigError(f"{subject.source}: there is nothing to judge by: no evaluation has {judge.metric}")
    metric = judge.metric
    if subject.target is None:
        return metric.gain(0.0, judge.curve[-1][1]), True
    trips = next((trips for trips, value in judge.curve if metric.reached(value, subject.target)), None)
    if trips is not None:
        return -float(trips), True
    missing = metric.gain(metric.best(value for _, value in judge.curve), subject.target)
    return -judge.trips * (1.0 + missing), False  # more if it came nearer


def _worst(subject: Subject) -> float:
    """Return the score of a trial that diverged: less than any other. An accuracy is never below 0."""
    config = subject.config
    accuracy = not subject.own_head and config.head is None and config.evaluation.main is None
    return 0.0 if accuracy and subject.target is None else -1e12


def _distribution(dimension: Dimension) -> BaseDistribution:
    import optuna

    if dimension.choices is not None:
        return optuna.distributions.CategoricalDistribution(dimension.choices)
    low, high = dimension.low, dimension.high
    if isinstance(low, int) and isinstance(high, int):
        return optuna.distributions.IntDistribution(low, high, log=dimension.log)
    assert low is not None
    assert high is not None
    return optuna.distributions.FloatDistribution(low, high, log=dimension.log)


def _readable(value: Value, dimension: Dimension) -> Value:
    """Return the value rounded to four digits, and within its range."""
    if dimension.choices is not None or not isinstance(value, float):
        return value
    assert dimension.low is not None
    assert dimension.high is not None
    return min(max(float(f"{value:.4g}"), dimension.low), dimension.high)


def _counted(study: Study) -> list[FrozenTrial]:
    """Return the trials that finished or were pruned, without those that were interrupted or wait."""
    import optuna

    states = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    return list(study.get_trials(deepcopy=False, states=states))


def _value(trial: FrozenTrial) -> float:
    assert trial.value is not None, "a finished trial has a value"
    return trial.value


def findings(study: Study, subject: Subject) -> StudyResult:
    """Return what the study has found so far."""
    import optuna

    trials = _counted(study)[: subject.trials]
    failed = [trial for trial in trials if "failed" in trial.user_attrs]
    pruned = [trial for trial in trials if trial.state == optuna.trial.TrialState.PRUNED]
    whole = [trial for trial in trials if trial not in failed and trial not in pruned]
    best = max(whole, key=_value, default=None)
    reached = bool(best and best.user_attrs["reached"])
    metric = Metric(*(best.user_attrs.get("metric", ()) if best else ()))
    return StudyResult(
        trials=len(trials),
        pruned=len(pruned),
        failed=len(failed),
        trips=sum(trial.user_attrs["trips"] for trial in trials),
        best=best.user_attrs["settings"] if best else {},
        value=_as_value(_value(best), metric, subject.target) if best and reached else None,
        reached=reached,
        nearest=best.user_attrs.get("best_accuracy") if best and not reached else None,
        metric=metric.name,
        lower_is_better=metric.lower_is_better,
    )
