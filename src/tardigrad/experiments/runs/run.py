"""Simulate one config: `td.run`."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

from pydantic import ValidationError
from torch import nn

from tardigrad.core.pace import Asynchronous
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.reading import explain
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.assembly import Assembly
from tardigrad.experiments.runs.drive import Drive, Observer, one_thread
from tardigrad.experiments.runs.private_run import (
    check_guard,
    forget_secrets,
    open_secrets,
    secrets_in_memory,
)
from tardigrad.experiments.runs.result import Result, result_of
from tardigrad.experiments.runs.run_folder import OWN_CODE, RunFolder, Snapshot
from tardigrad.experiments.runs.simulation_assembly import Simulation, assemble_simulation, training_parts
from tardigrad.learning.head import Head
from tardigrad.learning.models import Model
from tardigrad.privacy.chosen import CHOSEN, Chosen
from tardigrad.simulation.device import Device


def run(
    config: Config | None = None,
    *,
    model: nn.Module | Model | None = None,
    clients: Mapping[Hashable, object] | None = None,
    test: object | None = None,
    head: Head | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    workers: int | str = 0,
    snapshot_seconds: float = 30.0,
    guard: Path | str | None = None,
    moved: bool = False,
    profile: bool = False,
    observers: tuple[Observer, ...] = (),
    **settings: object,
) -> Result:
    """Simulate a federated run and return its result.

    `config`, `settings`: a `Config`, its fields as keywords, or both; keywords replace fields.
    `model`: a torch module, or a model such as `td.MLP()`, in place of that of the config.
    `clients`, `test`: the examples of each client by its name, and a central test set, in place of the data
    of the config. Examples are a pair of features and labels (arrays or tensors).
    `head`: the loss and the metrics, in place of those of the data.
    `out`: the folder of the run, with a snapshot every `snapshot_seconds` and when the run is interrupted.
    `resume`: go on with the run in `out`, or return its result if it is finished.
    `workers`: the number of processes that train; 0 trains in this one, "auto" takes all cores, "ray" a
    cluster (docs/scaling.md). The result does not depend on it.
    `guard`: for a private run, a file outside `out` with which a restored backup of `out` is noticed.
    `moved`: `out` was moved to another place, and nobody goes on with the original (docs/privacy.md).
    `profile`: measure the time by kind of work (`result.profile`).
    `observers`: objects that are told the events.

    Raises a ConfigError if the settings are wrong, before anything is written, and a RunError if the run
    fails.

    >>> result = run(stop=Stop(trips=20), evaluation=Evaluation(every_steps=1))  # doctest: +SKIP
    >>> result.accuracy  # doctest: +SKIP
    """
    try:
        config = Config.model_validate(dict(config or {}) | settings)
    except ValidationError as error:
        raise ConfigError("; ".join(explain(error, Config))) from None
    workers = _check_workers(workers, config)
    if guard is not None and out is None:
        raise ConfigError("guard: is for a run with a folder; give out too")
    with one_thread(), ExitStack() as stack:
        chosen = Chosen.read(Path(out) / CHOSEN) if out is not None and resume else None
        assembly = assemble_simulation(config, model, clients, test, head, chosen)
        parts = training_parts(assembly, workers)
        stack.callback(parts.executor.close)
        parts.trainer.profile.on = profile
        if out is None:
            simulation = Simulation(assembly, parts, secrets_in_memory(assembly.config))
            return Drive(simulation).run(observers)
        outside = None if guard is None else Path(guard)
        check_guard(assembly.guarantee, Path(out), outside)
        folder = stack.enter_context(closing(RunFolder(Path(out), private=config.privacy is not None)))
        snapshot = _open_folder(folder, assembly, resume)
        if folder.summary is not None:
            if assembly.guarantee is not None:
                forget_secrets(folder.path)
            return result_of(folder)
        version = 0 if snapshot is None else int(snapshot[1]["engine"]["aggregator"]["version"])
        secrets = open_secrets(assembly.config, assembly.guarantee, folder.path, version, outside, moved)
        stack.enter_context(closing(secrets))
        simulation = Simulation(assembly, parts, secrets)
        if resume:
            folder.go_on()
        return Drive(simulation, folder, snapshot, snapshot_seconds).run(observers)


def _open_folder(folder: RunFolder, assembly: Assembly, resume: bool) -> Snapshot | None:
    """Create the folder of a run, or open that of an earlier session and return its snapshot."""
    if resume:
        return folder.reopen(assembly.config, assembly.inputs())
    folder.create(assembly.config, assembly.inputs())
    if source := assembly.own_source():
        folder.write(OWN_CODE, source + "\n")
    return None


def _check_workers(workers: object, config: Config) -> int | str:
    """Return the number of workers, with "auto" replaced by a number."""
    if workers == "auto":
        return _workers_for(config)
    if isinstance(workers, str) and (workers == "ray" or workers.startswith("ray:")):
        return workers
    if isinstance(workers, int) and not isinstance(workers, bool) and workers >= 0:
        return workers
    raise ConfigError(
        f"workers: must be 'auto', a whole number from 0 on, or 'ray' (docs/scaling.md), not {workers!r}"
    )


def _workers_for(config: Config) -> int:
    """Return a process for each core, or 0 where processes would not help: with one core, one client at a
    time, another device than the CPU, or an evaluation after every trip."""
    cores = len(os.sched_getaffinity(0))
    alone = isinstance(config.pace, Asynchronous) and config.pace.concurrency == 1
    elsewhere = config.device != Device()
    return 0 if cores == 1 or alone or elsewhere or config.evaluation.every_trips == 1 else cores
