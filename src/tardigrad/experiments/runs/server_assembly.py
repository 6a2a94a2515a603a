"""A server's run put together from an assembly: what the service needs to serve it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import nn

from tardigrad.algorithms.layers import check_layers_served
from tardigrad.data.clients import Clients, Federation
from tardigrad.data.evaluation import RESERVED, Evaluator
from tardigrad.data.tables.preparation import Preparation
from tardigrad.encodings.layer import EncodingLayer
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.config.secure_rules import check_secure_server
from tardigrad.experiments.runs.assembly import Assembly, assemble
from tardigrad.experiments.runs.model_and_data import make_federation, make_module
from tardigrad.experiments.runs.private_run import Secrets
from tardigrad.experiments.runs.run_metrics import chosen_head, names_to_compute
from tardigrad.experiments.runs.site_declared import (
    declared_module,
    declared_preparation,
    site_declaration,
)
from tardigrad.learning.frozen import frozen_digest
from tardigrad.learning.heads import BUILT_IN, Head
from tardigrad.learning.models.own_model import OwnModel, is_own_model
from tardigrad.privacy.chosen import Chosen
from tardigrad.privacy.layers.local_noise import LocalNoiseLayer
from tardigrad.privacy.settings import LocalPrivacy, PoissonSampling
from tardigrad.service.access.enrolment import public_key
from tardigrad.service.protocol.task_settings import LocalNoise
from tardigrad.service.server.remote_clients import RemoteClients
from tardigrad.service.server.run_plan import RunPlan, check_servable
from tardigrad.service.server.secure_plan import SecurePlan, authority_of
from tardigrad.service.server.service_settings import ServiceSettings
from tardigrad.simulation.device import Device

NO_MODEL = (
    'model: the config names none; write model = "FILE.py:NAME" in it, or a built-in one with the data, '
    "or give --model FILE.py:NAME (if the server has one run)"
)


def assemble_server(
    config: Config,
    model: nn.Module | str | None = None,
    chosen: Chosen | None = None,
    complete: Callable[[Config, int], Config] = lambda config, population: config,
    declaration: str = "",
) -> Assembly:
    """Return the assembly of a run to serve: with the data that the config names, or with a model alone.

    `model`: a module, or "FILE.py:NAME"; None to build that of the config. `chosen`: the constants of the
    noise that a private run began with. `complete`: sets defaults that depend on the resolved config and the
    population. `declaration`: what clients with a Flower app are told.
    """
    settings = config.service or ServiceSettings()
    if isinstance(model, str):
        config, model = config.model_copy(update={"model": OwnModel(kind=model)}), None
    _check_config(config)
    preparation = declared_preparation(config)
    federation = None if config.data is None or config.data.remote else make_federation(config)
    module = _module(config, model, federation, preparation)
    clients: Clients = RemoteClients(settings.population or 1) if federation is None else federation.clients
    population = settings.population or len(clients)
    config = complete(config.resolved(population), population)
    _check_resolved(config, federation, population)
    assembly = assemble(config, federation, module, clients, population, chosen, served=True)
    assembly = replace(assembly, declaration=declaration)
    if preparation is not None or assembly.preparation is not None:
        assembly = replace(assembly, preparation=preparation or assembly.preparation)
        assembly = replace(assembly, declaration=site_declaration(assembly, own_model=model is not None))
    dtype = assembly.flat.vector.dtype
    if dtype != torch.float32:
        raise ConfigError(f"model: its parameters are {dtype}; they travel as float32")
    return assembly


def make_plan(assembly: Assembly, secrets: Secrets, identity: Ed25519PrivateKey | None = None) -> RunPlan:
    """Return what the service needs of a run. `identity`: of the server of a secure run."""
    config, flat, federation = assembly.config, assembly.flat, assembly.federation
    guarantee = assembly.guarantee
    evaluate = None
    central = federation is not None and (federation.test is not None or config.evaluation.held_out > 0)
    if federation is not None and central and not flat.has_personal:  # those parts only clients have
        names = names_to_compute(config, federation.head)
        evaluate = Evaluator(flat, federation, config.evaluation, lambda client: 1.0, config.seed, names)
    if config.secure is not None and evaluate is None and config.stop.target is not None:
        raise ConfigError(
            "stop.target: nobody would know when it is reached, because clients of a secure run report no "
            "metrics and this server has no test set for the model; give stop.trips or stop.steps instead"
        )
    aggregator, local_noise = assembly.aggregator(secrets.noise), _local_noise(assembly)
    told = [layer for layer in aggregator.layers if isinstance(layer, LocalNoiseLayer | EncodingLayer)]
    check_layers_served(aggregator.layers, told)
    return RunPlan(
        algorithm=config.algorithm,
        local=config.local,
        aggregator=aggregator,
        book=assembly.bookkeeping(),
        stop=config.stop,
        evaluation=config.evaluation,
        evaluate=evaluate,
        shapes=[tuple(shape) for shape in flat.shared_shapes],
        frozen=_frozen(assembly),
        seed=config.seed,
        settings=config.service or ServiceSettings(),
        budget=None if guarantee is None else guarantee.allowed,
        private=guarantee is not None,
        release=secrets.release,
        metrics=_metrics(config, federation),
        asked=() if evaluate is not None else _asked(config),
        head=_head(config, federation),
        local_noise=local_noise,
        encoding=config.encoding,
        broadcast=config.broadcast,
        declaration=assembly.declaration,
        name_parameters=flat.state_dict,
        secure=None if identity is None else _secure_plan(assembly, identity),
    )


@dataclass(frozen=True)
class AssembledServer:
    """A run to serve, and the assembly that it is made of."""

    assembly: Assembly
    plan: RunPlan


def build_server(
    config: Config,
    model: nn.Module | str | None = None,
    secrets: Secrets | None = None,
    chosen: Chosen | None = None,
    identity: Ed25519PrivateKey | None = None,
) -> AssembledServer:
    """Put together a run to serve, without a folder. `identity`: of the server of a secure run."""
    assembly = assemble_server(config, model, chosen)
    return AssembledServer(assembly, make_plan(assembly, secrets or Secrets(), identity))


def _module(
    config: Config, model: nn.Module | None, federation: Federation | None, preparation: Preparation | None
) -> nn.Module:
    if preparation is not None:
        return declared_module(config, preparation, own_model=model is not None)
    if model is None and not is_own_model(config.model) and (federation is None or config.model is None):
        raise ConfigError(NO_MODEL)
    return make_module(config, model, federation)


def _check_config(config: Config) -> None:
    """Raise a ConfigError for settings that a server cannot keep, whoever its clients are."""
    if isinstance(config.privacy, PoissonSampling):
        raise ConfigError(
            "privacy.kind: 'poisson' rests on clients that are sampled at random, which real ones are not; "
            "use 'participation', which assumes nothing about who comes when"
        )
    check_no_adversaries(config)
    check_secure_server(config)
    settings = config.service or ServiceSettings()
    for name in ("norm_bound", "examples_bound"):
        if config.privacy is not None and getattr(settings, name) is not None:
            raise ConfigError(
                f"service.{name}: with privacy no upload is refused by its values, because who is in a "
                "buffer would tell them; leave it out: uploads are clipped (privacy.clip) and weigh the same"
            )
    if config.device != Device():
        raise ConfigError("device: a server adds up on the CPU; leave it out")
    if config.secure is not None and not isinstance(config.secure.helpers, int):
        for helper in config.secure.helpers:
            public_key(helper.identity, "secure.helpers.identity")
            authority_of(helper)


def check_no_adversaries(config: Config) -> None:
    """Raise a ConfigError if some clients are to be adversaries, because real clients are what they are."""
    if config.adversaries is not None:
        raise ConfigError(
            "adversaries: they are clients of a simulation, and those of a server are real; leave "
            "[adversaries] out (docs/service.md says what a server does about clients that lie)"
        )


def _check_resolved(config: Config, federation: Federation | None, population: int) -> None:
    """Raise a ConfigError if the algorithm needs something that this server does not have."""
    assert config.pace is not None
    name = config.algorithm.name
    check_servable(config.algorithm, config.pace)
    if federation is None and config.local.steps is None and config.algorithm.uses_local_steps:
        raise ConfigError(f"local.steps: the step sizes of {name} follow from it; give a number")
    unknown = federation is None or len(federation.clients) != population
    if config.buffer.weights == "examples" and config.algorithm.averages_memories and unknown:
        raise ConfigError(
            f"buffer.weights: {name} keeps a mean over all clients, and to weigh it by their examples the "
            "server must know how many all of them have together; use 'equal', or name the clients' data "
            "in the config"
        )


def _secure_plan(assembly: Assembly, identity: Ed25519PrivateKey) -> SecurePlan | None:
    secure = assembly.config.secure
    if secure is None:
        return None
    assert not isinstance(secure.helpers, int), "checked"
    return SecurePlan(secure.helpers, identity, assembly.policy)


def _metrics(config: Config, federation: Federation | None) -> frozenset[str]:
    """Return the metrics that clients may report: those of their head, or of all built-in heads on a server
    without data, and those that the config names."""
    head = chosen_head(config) if federation is None else federation.head
    heads = BUILT_IN if head is None else (type(head),)
    names = {name for head in heads for name in head.names} | set(_asked(config))
    return frozenset(names - RESERVED)


def _head(config: Config, federation: Federation | None) -> Head | None:
    """Return the head of clients that have none of their own; raise a ConfigError if it needs all labels."""
    head = chosen_head(config) if federation is None else federation.head
    if getattr(head, "class_weights", None) == "balanced":
        raise ConfigError("head.class_weights: a server without data cannot count labels; give numbers")
    return head


def _asked(config: Config) -> tuple[str, ...]:
    """Return the metrics that the config names: to look at, to be judged by, and to stop at."""
    evaluation = config.evaluation
    named = (*(evaluation.metrics or ()), evaluation.main, config.stop.metric)
    return tuple(dict.fromkeys(name for name in named if name is not None))


def _frozen(assembly: Assembly) -> bytes:
    """Return the digest of what every client must have: the frozen part of the module, or the declaration of
    a Flower app, because only its clients store the model in the order of its arrays."""
    if assembly.serves_app:
        return hashlib.sha256(assembly.declaration.encode()).digest()
    return frozen_digest(assembly.flat.module)


def _local_noise(assembly: Assembly) -> LocalNoise | None:
    """Return what clients of a run with local privacy do to their uploads; None in other runs."""
    config, guarantee = assembly.config, assembly.guarantee
    if guarantee is None or not isinstance(config.privacy, LocalPrivacy):
        return None
    seed = config.seed if guarantee.noise_from == "seed" else None
    return LocalNoise(
        clip=guarantee.clip,
        noise_multiplier=guarantee.noise_multiplier,
        participations=config.privacy.participations,
        seed=seed,
    )
