"""Simulate one config: `td.run`."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Never

from torch import nn

from tardigrad.algorithms.algorithm import Algorithm
from tardigrad.core.bookkeeping import Buffer
from tardigrad.core.pace import Asynchronous, Pace
from tardigrad.core.setting import Setting
from tardigrad.core.stop import Stop
from tardigrad.data.catalogue import Source
from tardigrad.data.evaluation import Evaluation
from tardigrad.encodings.broadcasts import AnyBroadcast
from tardigrad.encodings.kinds import AnyEncoding
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.keywords import KEPT, Named, Table, with_keywords
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.assembly import Assembly
from tardigrad.experiments.runs.drive import Drive, Observer, one_thread
from tardigrad.experiments.runs.notebook_progress import progress_bars
from tardigrad.experiments.runs.private_run import (
    check_guard,
    forget_secrets,
    open_secrets,
    secrets_in_memory,
)
from tardigrad.experiments.runs.result import Result, result_of
from tardigrad.experiments.runs.run_folder import OWN_CODE, RunFolder, Snapshot
from tardigrad.experiments.runs.simulation_assembly import Simulation, assemble_simulation, training_parts
from tardigrad.learning.freed_memory import freed_memory_kept
from tardigrad.learning.heads import Head
from tardigrad.learning.local import Local
from tardigrad.learning.models import Model
from tardigrad.privacy.chosen import CHOSEN, Chosen
from tardigrad.privacy.settings import Privacy
from tardigrad.secure.secure_settings import Secure
from tardigrad.service.server.service_settings import ServiceSettings
from tardigrad.simulation.adversaries import Adversaries
from tardigrad.simulation.availability import Availability
from tardigrad.simulation.delay import Delay
from tardigrad.simulation.device import Device
from tardigrad.simulation.network import Network


def run(
    config: Config | None = None,
    *,
    seed: int = KEPT,
    algorithm: Algorithm | Named = KEPT,
    data: Source | Named | None = KEPT,
    model: nn.Module | Model | Named | None = None,
    clients: Mapping[Hashable, object] | None = None,
    test: object | None = None,
    head: Head | Named | None = None,
    local: Local | Table = KEPT,
    pace: Pace | Named | None = KEPT,
    buffer: Buffer | Table = KEPT,
    delay: Delay | Named = KEPT,
    network: Network | Table | None = KEPT,
    availability: Availability | Named = KEPT,
    adversaries: Adversaries | Named | None = KEPT,
    privacy: Privacy | Named | None = KEPT,
    encoding: AnyEncoding | Named = KEPT,
    broadcast: AnyBroadcast | Named = KEPT,
    secure: Secure | Table | None = KEPT,
    device: Device | Named = KEPT,
    stop: Stop | Table = KEPT,
    evaluation: Evaluation | Table = KEPT,
    service: ServiceSettings | Table | None = KEPT,
    out: Path | str | None = None,
    resume: bool = False,
    workers: int | str = 0,
    progress: bool | None = None,
    snapshot_seconds: float = 30.0,
    guard: Path | str | None = None,
    moved: bool = False,
    profile: bool = False,
    observers: tuple[Observer, ...] = (),
    **unknown: Never,
) -> Result:
    """Simulate a federated run and return its result.

    The settings are a config, keywords, or both; a keyword replaces the field of the config. A table can be
    an object (`td.FedBuff(lr=0.5)`), a dict as in TOML (`{"kind": "fedbuff", "lr": 0.5}`), or the name of
    its kind ("fedbuff").

    `config`: all settings together, such as `td.load_config("run.toml")`.
    `seed`: every random draw depends on it; default 0.
    `algorithm`: how the model moves; default FedBuff.
    `data`: the data set and how it is divided among clients; default handwritten digits.
    `model`: the model that is trained, a torch module or one such as `td.MLP()`.
    `clients`, `test`: the examples of each client by its name, and a central test set, in place of `data`.
    Examples are a pair of features and labels (arrays or tensors).
    `head`: the loss and the metrics, in place of those of the data: an object such as `td.Regression()`, or
    what a config can say, such as "regression".
    `local`: how a client trains: learning rate, epochs, batch size.
    `pace`: which clients may start when; default asynchronous, or in rounds if the algorithm works in rounds.
    `buffer`: which uploads count, and how many make a step.
    `delay`: how long a trip takes, or a client trains if there is a network; default half-normal.
    `network`: the clients' bandwidth; default: downloads and uploads take no time.
    `availability`: when clients are there; default always.
    `adversaries`: clients that send something else than what they trained; default none.
    `privacy`: what is promised to the clients; default nothing.
    `encoding`, `broadcast`: how uploads and versions travel, such as "int8"; default float32.
    `secure`: secure aggregation, in which the server sees only sums of uploads; default none.
    `device`: "cpu" or "cuda".
    `stop`: when the run ends; default after 2000 trips.
    `evaluation`: when and on what the model is evaluated.
    `service`: limits of a server for its clients; a simulation does not use them.

    How the run is made, which does not change its result:

    `out`: the folder of the run, with a snapshot every `snapshot_seconds` and when the run is interrupted.
    `resume`: go on with the run in `out`, or return its result if it is finished.
    `workers`: the number of processes that train; 0 trains in this one, "auto" takes all cores, "ray" a
    cluster (docs/scaling.md).
    `progress`: show a progress bar; default: in a notebook and on a terminal.
    `guard`: for a private run, a file outside `out` with which a restored backup of `out` is noticed.
    `moved`: `out` was moved to another place, and nobody goes on with the original (docs/privacy.md).
    `profile`: measure the time by kind of work (`result.profile`).
    `observers`: objects that are told the events.

    Raises a ConfigError if the settings are wrong, before anything is written, and a RunError if the run
    fails.

    >>> result = run(algorithm="fedavg", stop=Stop(trips=20), evaluation=Evaluation(every_steps=1))
    >>> result.client_trips, result.steps
    (20, 2)
    """
    own_model, own_head, said = model_and_head(model, head)
    config = with_keywords(
        config, seed=seed, algorithm=algorithm, data=data, local=local, pace=pace, buffer=buffer, delay=delay,
        network=network, availability=availability, adversaries=adversaries, privacy=privacy,
        encoding=encoding, broadcast=broadcast, secure=secure, device=device, stop=stop,
        evaluation=evaluation, service=service, **said, **unknown,
    )  # fmt: skip
    observers = (*observers, *progress_bars(progress))
    workers = _check_workers(workers, config)
    if guard is not None and out is None:
        raise ConfigError("guard: is for a run with a folder; give out too")
    with one_thread(), freed_memory_kept(), ExitStack() as stack:
        chosen = Chosen.read(Path(out) / CHOSEN) if out is not None and resume else None
        assembly = assemble_simulation(config, own_model, clients, test, own_head, chosen)
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


def model_and_head(
    model: nn.Module | Model | Named | None, head: Head | Named | None
) -> tuple[nn.Module | None, Head | None, dict[str, object]]:
    """Return the caller's own module and loss, and the keywords of a config for those that it can say."""
    own_model = None if isinstance(model, Setting | str | Mapping) else model
    own_head = head if isinstance(head, Head) else None
    said: dict[str, object] = {}
    if model is not own_model:
        said["model"] = model
    if head is not own_head:
        said["head"] = head
    return own_model, own_head, said


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
