"""A simulation put together from an assembly: planner, aggregator, executor and engine."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tardigrad.core.pace import Scripted
from tardigrad.data.clients import Federation
from tardigrad.data.evaluation import Evaluator
from tardigrad.data.trigger import Trigger
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.assembly import Assembly, assemble
from tardigrad.experiments.runs.model_and_data import make_federation, make_module
from tardigrad.experiments.runs.private_run import Secrets, secrets_in_memory
from tardigrad.experiments.runs.run_metrics import names_to_compute
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.heads import Head
from tardigrad.learning.local import Trainer
from tardigrad.learning.models import Architecture, Model
from tardigrad.privacy.chosen import Chosen
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.layers.canaries import Canaries
from tardigrad.simulation.adversaries import Backdoor
from tardigrad.simulation.delay import Durations
from tardigrad.simulation.engine import Engine
from tardigrad.simulation.executors import Executor, make_executor
from tardigrad.simulation.network import Links, durations_of
from tardigrad.simulation.planner import Planner
from tardigrad.simulation.poisoned_clients import training_clients
from tardigrad.simulation.presence import Presence
from tardigrad.simulation.roster import make_presence


@dataclass(frozen=True)
class TrainingParts:
    """The parts of a simulation besides its assembly that need no secrets."""

    durations: Durations
    links: Links | None
    presence: Presence | None
    trainer: Trainer
    executor: Executor
    """The owner must close it."""
    evaluator: Evaluator


class Simulation:
    """A simulated run that is ready to be driven."""

    def __init__(
        self, assembly: Assembly, parts: TrainingParts, secrets: Secrets, canaries: Canaries | None = None
    ) -> None:
        """`canaries`: in an audit, the clients whose contributions it looks for."""
        config = assembly.config
        self.assembly, self.secrets = assembly, secrets
        self.executor, self.profile = parts.executor, parts.trainer.profile
        bits = None if secrets.sampling is None else secrets.sampling.bits
        self.planner = Planner(
            assembly.bookkeeping(), assembly.clients, parts.durations, config.seed, bits, parts.links,
            parts.presence,
        )  # fmt: skip
        self.aggregator = assembly.aggregator(secrets.noise, canaries)
        self.engine = Engine(
            self.planner, self.aggregator, parts.executor, assembly.clients, parts.evaluator,
            config.evaluation, config.stop, config.seed, parts.trainer.profile,
            tell_losses=config.privacy is None and config.secure is None, remembers=parts.trainer.remembers,
        )  # fmt: skip
        self.engine.release = secrets.release

    def worker_seconds(self) -> dict[str, float]:
        """Return the seconds that workers outside this process have spent so far, by kind of work."""
        return self.executor.profile()

    @property
    def config(self) -> Config:
        """The resolved config."""
        return self.assembly.config

    @property
    def federation(self) -> Federation:
        """The clients' data."""
        assert self.assembly.federation is not None, "a simulation has data"
        return self.assembly.federation

    @property
    def flat(self) -> FlatModule:
        """The module as one flat vector."""
        return self.assembly.flat

    @property
    def guarantee(self) -> Guarantee | None:
        """The privacy guarantee, or None if none is given."""
        return self.assembly.guarantee

    @property
    def model(self) -> Tensor:
        """The model that is evaluated and saved."""
        return self.aggregator.evaluated_model


def assemble_simulation(
    config: Config,
    model: nn.Module | Model | None = None,
    clients: Mapping[Hashable, object] | None = None,
    test: object | None = None,
    head: Head | None = None,
    chosen: Chosen | None = None,
) -> Assembly:
    """Return the assembly of a simulation, with the caller's own model, data and loss where given."""
    if model is not None and not isinstance(model, nn.Module | Architecture):
        raise ConfigError(f"model: must be a torch.nn.Module, or a model such as td.MLP(), not {model!r}")
    if model is not None and not isinstance(model, nn.Module):
        config, model = config.model_copy(update={"model": model}), None
    dtype = torch.float32 if model is None else _dtype(model)
    federation = make_federation(config, clients, test, head, dtype)
    module = make_module(config, model, federation)
    if _dtype(module) != dtype:  # a model of one's own file, which is built for the data
        federation = make_federation(config, clients, test, head, _dtype(module))
    if clients is not None:
        config = config.model_copy(update={"data": None})
    if model is not None:
        config = config.model_copy(update={"model": None})
    population = len(federation.clients)
    return assemble(config.resolved(population), federation, module, federation.clients, population, chosen)


def _dtype(module: nn.Module) -> torch.dtype:
    """Return the dtype of a module's first parameter."""
    return next((parameter.dtype for parameter in module.parameters()), torch.float32)


def training_parts(
    assembly: Assembly,
    workers: int | str = 0,
    trainer: Trainer | None = None,
    evaluator: Evaluator | None = None,
) -> TrainingParts:
    """Return the trainer, its executor and the evaluator of a simulation.

    `trainer`, `evaluator`: those of clients whose data is not in the assembly.

    Raises a ConfigError for everything about a simulation that the assembly does not check.
    """
    config, clients = assembly.config, assembly.clients
    config.device.check_workers(workers)
    durations = durations_of(config.delay, config.network, clients, config.seed)
    links = None if config.network is None else Links(config.network, config.seed, assembly.trip_bytes)
    presence = make_presence(config.availability, len(clients), config.seed)
    if isinstance(config.pace, Scripted):
        Planner(assembly.bookkeeping(), clients, durations, config.seed)  # refuses an impossible script
    trainer = trainer or _trainer(assembly)
    trigger = _trigger(assembly)
    evaluator = evaluator or _evaluator(assembly, durations, trigger)
    poisoned = training_clients(clients, config.adversaries, config.seed)
    return TrainingParts(
        durations,
        links,
        presence,
        trainer,
        make_executor(workers, config.device, trainer, poisoned),
        evaluator,
    )


def _trainer(assembly: Assembly) -> Trainer:
    config, federation = assembly.config, assembly.federation
    assert federation is not None, "a simulation has data"
    return Trainer(
        assembly.flat, federation.head, config.algorithm, config.local, federation.transform,
        accept_divergence=assembly.guarantee is not None,
    )  # fmt: skip


def _evaluator(assembly: Assembly, durations: Durations, trigger: Trigger | None) -> Evaluator:
    config, federation = assembly.config, assembly.federation
    assert federation is not None, "a simulation has data"
    names = names_to_compute(config, federation.head)
    return Evaluator(
        assembly.flat, federation, config.evaluation, durations.factor, config.seed, names, trigger
    )  # fmt: skip


def _trigger(assembly: Assembly) -> Trigger | None:
    """Return the trigger of a backdoor, or None without one. Raise a ConfigError if it cannot work here."""
    federation, adversaries = assembly.federation, assembly.config.adversaries
    if not isinstance(adversaries, Backdoor):
        return None
    if federation is None:
        raise ConfigError(
            "adversaries: a backdoor poisons examples, and those of an app are its own; use another kind"
        )
    if assembly.flat.has_personal:
        raise ConfigError(
            "adversaries: whether a backdoor works is measured on a central test set, and a model with "
            "personal parts is evaluated by its clients; use another kind of adversary"
        )
    adversaries.trigger.check(federation)
    return adversaries.trigger


def build(
    config: Config,
    model: nn.Module | Model | None = None,
    clients: Mapping[Hashable, object] | None = None,
    test: object | None = None,
    head: Head | None = None,
    workers: int | str = 0,
    secrets: Secrets | None = None,
) -> Simulation:
    """Put together a simulation without a folder. The caller closes its executor.

    `secrets`: default: new ones, in memory.
    """
    assembly = assemble_simulation(config, model, clients, test, head)
    parts = training_parts(assembly, workers)
    return Simulation(assembly, parts, secrets or secrets_in_memory(assembly.config))
