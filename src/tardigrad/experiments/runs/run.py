"""Run one config: put the parts together, drive the engine, keep the record."""

from __future__ import annotations

import copy
import hashlib
import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn

from tardigrad.core.bookkeeping import Bookkeeping
from tardigrad.core.draws import key
from tardigrad.core.events import (
    Event,
    ModelEvaluated,
    RunEnded,
    evaluations,
    from_record,
    read_events,
    to_record,
)
from tardigrad.core.pace import Asynchronous, Poisson
from tardigrad.data.clients import Clients, Federation, HoldingOut, given
from tardigrad.data.evaluation import Evaluator
from tardigrad.errors import ConfigError, RunError
from tardigrad.experiments.config.reading import explain
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.assembly import (
    KEYS,
    SAMPLING,
    check_fit,
    check_guard,
    check_noise_keys,
    forget_secrets,
    guarantee_of,
    has_begun,
    keep_chosen,
    make_aggregator,
    open_releases,
    privacy_text,
    situation_of,
)
from tardigrad.experiments.runs.fingerprints import Inputs, fingerprints
from tardigrad.experiments.runs.interrupt import Interrupt
from tardigrad.experiments.runs.run_folder import RunFolder
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.head import Head
from tardigrad.learning.local import Trainer
from tardigrad.learning.models import Architecture, Model
from tardigrad.privacy.chosen import CHOSEN, Chosen
from tardigrad.privacy.keys import NoiseKeys
from tardigrad.privacy.layers.canaries import Canaries
from tardigrad.privacy.sampling import SamplingKey
from tardigrad.privacy.settings import LocalPrivacy, PoissonSampling
from tardigrad.simulation.delay import Durations
from tardigrad.simulation.device import Device
from tardigrad.simulation.engine import Engine
from tardigrad.simulation.executors import make_executor
from tardigrad.simulation.planner import Planner


class Observer(Protocol):
    """An object that is told the events of a run, such as a progress bar or a tracker."""

    def begin(self, config: Config, history: list[ModelEvaluated]) -> None:
        """Called once before the first event. `history`: the evaluations so far, if the run is resumed."""

    def see(self, events: list[Event]) -> None:
        """Called with the next events."""

    def end(self) -> None:
        """Called at the end of the run, also if it failed or was interrupted."""


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    client_trips: int
    steps: int
    virtual_time: float
    bytes: int
    """Sent in all, both ways."""
    accuracy: float | None
    loss: float | None
    model_sha256: str
    wall_seconds: float
    profile: dict[str, float]
    """Where it was asked for, seconds by kind of work in the last session: of this process, and of "workers"
    (all together)."""
    trips_per_second: float
    refused: dict[str, int]
    given_up: int
    stopped_by: str
    epsilon: float | None
    """What the run has spent, at privacy.delta; nothing where nothing is promised."""
    privacy_void: str | None = field(default=None, kw_only=True)
    """Why this run is not private although it has a privacy table; None if epsilon holds."""
    oracle: bool
    """Whether the algorithm used what only a simulation can know."""
    metrics: dict[str, float]
    """Of the last evaluation."""
    history: list[ModelEvaluated] = field(repr=False, default_factory=list)
    """Every evaluation, in order."""
    model: dict[str, Tensor] = field(repr=False, default_factory=dict)
    """The final model, for `load_state_dict`."""

    def summary(self) -> dict[str, Any]:
        """Without the history and the model: what `--json` prints."""
        return {k: v for k, v in asdict(self).items() if k not in ("history", "model")}


class Simulation:
    """A config put together: data, model, planner, aggregator, engine."""

    def __init__(
        self,
        config: Config,
        federation: Federation,
        module: nn.Module,
        workers: int | str = 0,
        canaries: Callable[[int], Canaries] | None = None,
        chosen: Chosen | None = None,
    ) -> None:
        clients: Clients = federation.clients
        if config.evaluation.held_out > 0:
            clients = HoldingOut(clients, config.evaluation.held_out, key(config.seed, "held out"))
            federation = replace(federation, clients=clients)
        self.config = config = config.resolved(len(clients))
        assert config.pace is not None
        config.device.check_workers(workers)
        flat = FlatModule(module)
        check_fit(flat, federation)
        self.flat = flat.on(config.device.torch_device())
        opening = len(clients) if config.algorithm.opening else 0
        situation = situation_of(config, clients)
        self.guarantee = guarantee_of(config, situation, self.flat.vector, chosen)
        limits = self.guarantee.limits if self.guarantee is not None else None
        book = Bookkeeping(config.pace, config.buffer, config.algorithm.law, opening, limits)
        durations = Durations(config.delay, clients, config.seed)
        self.sampling: SamplingKey | None = None
        """What Poisson sampling is drawn from, where the guarantee rests on it; else the seed."""
        if (
            isinstance(config.privacy, PoissonSampling)
            and config.privacy.noise_from == "system"
            and isinstance(config.pace, Poisson)
        ):
            self.sampling = SamplingKey()
        bits = self._sampling_bits if self.sampling is not None else None
        self.planner = Planner(book, clients, durations, config.seed, bits)
        self.keys = NoiseKeys()
        """Of the noise since the last snapshot; kept on disk where the run has a folder."""
        self.canaries = canaries(len(clients)) if canaries is not None else None
        self.aggregator = make_aggregator(
            config, self.flat.vector.clone(), situation, self.guarantee, lambda: self.keys, self.canaries
        )
        trainer = Trainer(
            self.flat, federation.head, config.algorithm, config.local, federation.transform,
            accept_divergence=self.guarantee is not None,
        )  # fmt: skip
        self.executor = make_executor(workers, config.device, trainer, clients)
        evaluator = Evaluator(self.flat, federation, config.evaluation, durations.factor, config.seed)
        self._federation = federation
        self.profile = trainer.profile
        self.engine = Engine(
            self.planner, self.aggregator, self.executor, clients, evaluator,
            config.evaluation, config.stop, config.seed, trainer.profile,
            tell_losses=config.privacy is None,
        )  # fmt: skip

    @property
    def model(self) -> Tensor:
        """The model that is evaluated and saved."""
        return self.aggregator.evaluated_model

    def _sampling_bits(self, index: int, count: int) -> NDArray[np.uint64]:
        assert self.sampling is not None
        return self.sampling.bits(index, count)

    def open_secrets(self, directory: RunFolder) -> None:
        """Keep in the run's folder what a resumed run must have again: the noise's constants and the keys."""
        if self.guarantee is not None:
            keep_chosen(self.guarantee, directory.path)
        if self.sampling is not None:
            self.sampling = SamplingKey(directory.path / SAMPLING, has_begun(directory.path))
        self.keys = NoiseKeys(directory.path / KEYS)

    def state_privacy(self, directory: RunFolder, made: int | None = None) -> None:
        """Write what is promised, before the first step and again when it is known how many were made."""
        population = len(self._federation.clients)
        directory.write("privacy.md", privacy_text(self.config, self.guarantee, population, made))

    def forget_secrets(self, directory: RunFolder) -> None:
        """After a private run: what its noise was made of, and what the clients uploaded last."""
        if self.guarantee is not None:
            forget_secrets(directory.path)

    def inputs(self) -> Inputs:
        """Fingerprints of what the config only names: a resumed run must have the same."""
        return fingerprints(self.config, self._federation, self.flat)


def build(
    config: Config,
    model: nn.Module | Model | None = None,
    clients: Mapping[Hashable, Any] | None = None,
    test: Any | None = None,
    head: Head | None = None,
    workers: int | str = 0,
    canaries: Callable[[int], Canaries] | None = None,
    chosen: Chosen | None = None,
) -> Simulation:
    """Put a simulation together from a config, with one's own model, data and loss where given; with canaries
    among so many clients, where the privacy is audited; and with what was chosen when the run began, where it
    goes on."""
    if model is not None and not isinstance(model, nn.Module | Architecture):
        raise ConfigError(f"model: must be a torch.nn.Module, or a model such as td.MLP(), not {model!r}")
    if model is not None and not isinstance(model, nn.Module):
        config, model = config.model_copy(update={"model": model}), None
    if clients is not None:
        dtypes = [p.dtype for p in model.parameters()] if model is not None else []
        federation = given(clients, test, dtypes[0] if dtypes else torch.float32, head)
        config = config.model_copy(update={"data": None})
    elif config.data is not None:
        federation = config.data.federation(key(config.seed, "data"))
    else:
        raise ConfigError("data: name a data set in the config, or give clients in Python")
    if head is not None:
        federation = replace(federation, head=head)
    if model is not None:
        module = copy.deepcopy(model)
        config = config.model_copy(update={"model": None})
    elif config.model is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(config.seed, "model"))
            module = config.model.build_with(federation.vectors, federation.shape, federation.classes)
    else:
        raise ConfigError("model: name a model in the config, or give a torch.nn.Module in Python")
    return Simulation(config, federation, module, workers, canaries, chosen)


def run(
    config: Config | None = None,
    *,
    model: nn.Module | Model | None = None,
    clients: Mapping[Hashable, Any] | None = None,
    test: Any | None = None,
    head: Head | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    workers: int | str = 0,
    snapshot_seconds: float = 30.0,
    guard: Path | str | None = None,
    moved: bool = False,
    profile: bool = False,
    observers: tuple[Observer, ...] = (),
    **settings: Any,
) -> Result:
    """Simulate a federated run and return what it came to.

    Give a `Config`, or its parts as keywords; `model`, `clients`, `test` and `head` to use one's own:

    `workers`: how many processes train; 0 trains in this one, "auto" takes all cores, "ray" a cluster (see
    docs/scaling.md). The result is the same.
    `profile`: measure where the time goes (`result.profile`).
    A run with `out` is snapshotted every `snapshot_seconds` and when it is interrupted; `resume` goes on
    with it, or returns its result if it is finished.
    `guard`: of a private run, a file outside `out` that notices when `out` was put back from a backup.
    `moved`: `out` was moved to another place, and nobody goes on with the original (docs/privacy.md).

    >>> result = run(stop=Stop(trips=20), evaluation=Evaluation(every_steps=1))  # doctest: +SKIP
    >>> result.accuracy  # doctest: +SKIP
    """
    try:
        config = Config(**(dict(config or {}) | settings))
    except ValidationError as error:
        raise ConfigError("; ".join(explain(error, Config))) from None
    if workers == "auto":
        workers = _workers(config)
    elif not _sensible(workers):
        raise ConfigError(
            f"workers: must be 'auto', a whole number from 0 on, or 'ray' (docs/scaling.md), not {workers!r}"
        )
    with one_thread():
        chosen = Chosen.read(Path(out) / CHOSEN) if out is not None and resume else None
        simulation = build(config, model, clients, test, head, workers, chosen=chosen)
        simulation.profile.on = profile
        if guard is not None and out is None:
            raise ConfigError("guard: is for a run with a folder; give out too")
        private = config.privacy is not None
        directory = RunFolder(Path(out), private=private) if out is not None else None
        releases = None
        try:
            if directory is None:
                return _drive(simulation, None, None, snapshot_seconds, observers)
            snapshot, outside = None, None if guard is None else Path(guard)
            check_guard(simulation.guarantee, directory.path, outside)
            if resume:
                snapshot = directory.reopen(simulation.config, simulation.inputs())
            else:
                directory.create(simulation.config, simulation.inputs())
            if directory.summary is not None:
                simulation.forget_secrets(directory)
                return result_of(directory)
            releases = open_releases(simulation.guarantee, directory.path, outside, moved)
            simulation.open_secrets(directory)
            if releases is not None:
                simulation.engine.release = releases.release
                if not isinstance(
                    simulation.config.privacy, LocalPrivacy
                ):  # its keys are of trips, not of steps
                    version = 0 if snapshot is None else snapshot[1]["engine"]["aggregator"]["version"]
                    check_noise_keys(releases, simulation.keys, version)
            if resume:
                directory.go_on()
            return _drive(simulation, directory, snapshot, snapshot_seconds, observers)
        finally:
            simulation.executor.close()
            if releases is not None:
                releases.close()
            if directory is not None:
                directory.close()


def _drive(
    simulation: Simulation,
    directory: RunFolder | None,
    snapshot: tuple[dict[str, Tensor], dict[str, Any]] | None,
    snapshot_seconds: float,
    observers: tuple[Observer, ...],
) -> Result:
    engine = simulation.engine
    history: list[ModelEvaluated] = []
    before = 0.0
    if snapshot is not None:
        tensors, document = snapshot
        engine.restore(tensors, document["engine"])
        history, before = evaluations(map(from_record, document["history"])), document["wall_seconds"]
    if directory is not None:
        simulation.state_privacy(directory)
    began = written = time.monotonic()
    cost = 0.0
    stopped_by = ""
    trips_before = engine.trips

    def save() -> None:
        if directory is not None and not stopped_by:  # else it would be ended twice
            tensors, document = engine.snapshot()
            elapsed = before + time.monotonic() - began
            rows = [to_record(evaluation) for evaluation in history]
            directory.snapshot(tensors, {"engine": document, "history": rows, "wall_seconds": elapsed})
            simulation.keys.forget()

    for observer in observers:
        observer.begin(simulation.config, history)
    interrupted = Interrupt(wanted=directory is not None)
    try:
        for events in interrupted.watch(engine.run()):
            history += evaluations(events)
            if events and isinstance(events[-1], RunEnded):
                stopped_by = events[-1].reason
            with simulation.profile.part("record"):
                if directory is not None:
                    directory.record(events)
                try:
                    for observer in observers:
                        observer.see(events)
                except KeyboardInterrupt:  # an observer may ask to stop, too
                    save()
                    raise
            now = time.monotonic()
            if now - written > max(snapshot_seconds, 20 * cost):
                with simulation.profile.part("snapshot"):
                    save()
                written = time.monotonic()
                cost = written - now
        if interrupted and not stopped_by:  # between two commits: all is whole
            save()
            raise KeyboardInterrupt
    finally:
        for observer in observers:
            observer.end()
    seconds = time.monotonic() - began
    if not torch.isfinite(simulation.model).all():
        raise RunError(
            f"the model is not finite at version {engine.version}: training has diverged; "
            "lower local.lr or algorithm.lr"
        )
    result = Result(
        client_trips=engine.trips,
        steps=engine.version,
        virtual_time=engine.time,
        bytes=engine.bytes,
        accuracy=engine.metrics.get("accuracy"),
        loss=engine.metrics.get("loss"),
        model_sha256=hashlib.sha256(simulation.model.cpu().view(torch.uint8).numpy().data).hexdigest(),
        wall_seconds=round(before + seconds, 3),
        profile=_profile(simulation, seconds),
        trips_per_second=round((engine.trips - trips_before) / max(seconds, 1e-9), 1),
        refused=dict(engine.refused),
        given_up=engine.given_up,
        stopped_by=stopped_by,
        epsilon=_spent(simulation),
        privacy_void=None if simulation.guarantee is None else simulation.guarantee.void,
        oracle=simulation.config.algorithm.oracle,
        metrics=engine.metrics,
        history=history,
        model=simulation.flat.state_dict(simulation.model),
    )
    if directory is not None:
        simulation.state_privacy(directory, engine.version)
        directory.finish(result.model, result.summary())
        simulation.forget_secrets(directory)
    return result


def _spent(simulation: Simulation) -> float | None:
    guarantee = simulation.guarantee
    if guarantee is None or guarantee.noise_multiplier == 0:
        return None
    local = isinstance(simulation.config.privacy, LocalPrivacy)  # what was uploaded is out, step or no step
    return guarantee.epsilon(None if local else simulation.aggregator.version)


def _profile(simulation: Simulation, seconds: float) -> dict[str, float]:
    if not simulation.profile.on:
        return {}
    parts = dict(simulation.profile.seconds)
    parts["other"] = max(0.0, seconds - sum(parts.values()))
    parts |= {f"workers: {name}": s for name, s in simulation.executor.profile().items()}
    return {name: round(s, 3) for name, s in parts.items()}


def result_of(directory: RunFolder) -> Result:
    """The result of a run that is over, from its folder."""
    summary = directory.summary
    assert summary is not None
    return Result(**summary, history=evaluations(read_events(directory.events)), model=directory.model())


def _sensible(workers: Any) -> bool:
    if isinstance(workers, str):
        return workers == "ray" or workers.startswith("ray:")
    return isinstance(workers, int) and not isinstance(workers, bool) and workers >= 0


def _workers(config: Config) -> int:
    """A process for each core, unless there is only one core or one client at a time."""
    cores = len(os.sched_getaffinity(0))
    alone = isinstance(config.pace, Asynchronous) and config.pace.concurrency == 1
    elsewhere = config.device != Device()
    return 0 if cores == 1 or alone or elsewhere or config.evaluation.every_trips == 1 else cores


@contextmanager
def one_thread() -> Iterator[None]:
    """Small batches are many times slower on several threads, and the bits depend on their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
