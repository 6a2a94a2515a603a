"""Serve one config to real clients: put the parts together, begin or go on, keep the record."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
import tomllib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tardigrad.core.bookkeeping import Bookkeeping, Buffer
from tardigrad.core.draws import key
from tardigrad.data.clients import Clients, Federation, HoldingOut
from tardigrad.data.evaluation import RESERVED, Evaluator
from tardigrad.errors import ConfigError, RunError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.assembly import (
    KEYS,
    check_fit,
    check_guard,
    check_noise_keys,
    forget_secrets,
    guarantee_of,
    keep_chosen,
    make_aggregator,
    open_releases,
    privacy_text,
    situation_of,
)
from tardigrad.experiments.runs.fingerprints import Inputs, fingerprints
from tardigrad.experiments.runs.run import Result, one_thread, result_of
from tardigrad.experiments.runs.run_folder import RunFolder
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.head import BUILT_IN
from tardigrad.privacy.chosen import CHOSEN, Chosen
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.keys import NoiseKeys
from tardigrad.privacy.releases import NEW_RUN
from tardigrad.privacy.settings import LocalPrivacy, PoissonSampling
from tardigrad.service.access.enrolment import LIST, Enrolled
from tardigrad.service.client.app import load_module
from tardigrad.service.protocol.task_settings import LocalNoise
from tardigrad.service.server.finished_run import tell_over
from tardigrad.service.server.lifecycle import Endpoint, RunPlan, Served, check_servable
from tardigrad.service.server.lifecycle import serve as serve_plan
from tardigrad.service.server.remote_clients import RemoteClients
from tardigrad.service.server.service_settings import ServiceSettings
from tardigrad.service.store.sqlite import JOURNAL, check_whole, remove_store
from tardigrad.simulation.device import Device

QUARTER = 4
"""Of a buffer, one client may have this part."""


@dataclass(frozen=True)
class ServedAssembly:
    """A config put together for a server."""

    config: Config
    plan: RunPlan
    flat: FlatModule
    inputs: Inputs
    """Fingerprints of what the config only names."""
    population: int
    guarantee: Guarantee | None

    def state_privacy(self, directory: RunFolder, made: int | None = None) -> None:
        """Write what is promised, and how much of it was used."""
        directory.write("privacy.md", privacy_text(self.config, self.guarantee, self.population, made))

    def clear(self, folder: Path) -> None:
        """Nothing that clients uploaded, and nothing secret, stays behind a run that is over."""
        remove_store(folder)
        forget_secrets(folder)


def serve(
    config: Config,
    *,
    out: Path | str,
    endpoint: Endpoint | None = None,
    model: nn.Module | str | None = None,
    say: Callable[[str], None] = print,
    accept_loss: bool = False,
    guard: Path | str | None = None,
    moved: bool = False,
    place: Endpoint | None = None,
) -> Result | None:
    """Serve a run until it is over (its result) or somebody asks to stop (nothing): SIGTERM or Ctrl-C.

    The same call goes on with the run that `out` holds; if that is over, clients that come late are told.
    `model`: a torch module, or "FILE.py:NAME"; without it, the config names model and data.
    `accept_loss`: go on although something that was acknowledged is lost; not for private runs.
    `guard`: of a private run, a file outside `out` that notices when `out` was put back from a backup.
    `moved`: `out` was moved to another place, and nobody goes on with the original.

    >>> serve(load_config("run.toml"), out="live", endpoint=Endpoint(port=7433))  # doctest: +SKIP
    """
    if place is not None:
        warnings.warn("serve(place=...) is called serve(endpoint=...) now", DeprecationWarning, stacklevel=2)
        endpoint = place
    endpoint, folder, noise = endpoint or Endpoint(), Path(out), NoiseKeys()
    endpoint.check()
    if model is None and not {"data", "model"} & config.model_fields_set:
        raise ConfigError("model: give --model FILE.py:NAME, or data and model in the config")
    if model is not None and "data" not in config.model_fields_set:
        config = config.model_copy(update={"data": None, "model": None})  # the clients have it all
    with one_thread():
        run = assemble(
            _with_population(config, endpoint, folder),
            model,
            lambda: noise,
            Chosen.read(folder / CHOSEN),
            lambda config, population: _with_share(config, population, endpoint, folder),
        )
        private = config.privacy is not None
        directory, releases = RunFolder(folder, live=True, private=private), None
        began = time.monotonic()

        def listening(port: int) -> None:
            say(f"listening on {endpoint.host}:{port}")

        try:
            snapshot, outside = None, None if guard is None else Path(guard)
            check_guard(run.guarantee, folder, outside)
            begun = (folder / ".lock").exists() or (folder / "config.toml").exists()
            if begun:
                if directory.summary is None:
                    check_whole(folder, private)
                snapshot = directory.reopen(run.config, run.inputs, accept_loss and not private)
                if snapshot is not None and "position" not in snapshot[1]:
                    raise ConfigError(f"--out {folder}: holds a simulated run; give another folder")
                if snapshot is not None and not (folder / JOURNAL).exists() and (private or not accept_loss):
                    advice = NEW_RUN if private else "--accept-loss goes on without what is lost"
                    raise RunError(f"{folder / JOURNAL}: the journal of the run is gone; {advice}")
            else:
                directory.create(run.config, run.inputs)
            if directory.summary is not None:
                run.clear(folder)
                asyncio.run(tell_over(run.plan, endpoint, str(directory.summary["stopped_by"]), listening))
                return result_of(directory)
            releases = open_releases(run.guarantee, folder, outside, moved)
            if run.guarantee is not None:
                keep_chosen(run.guarantee, folder)
            noise = NoiseKeys(folder / KEYS)
            if releases is not None:
                run = replace(run, plan=replace(run.plan, release=releases.release))
                if not isinstance(config.privacy, LocalPrivacy):  # there the clients have the keys
                    version = 0 if snapshot is None else snapshot[1]["values"]["aggregator"]["version"]
                    check_noise_keys(releases, noise, version)
            if begun:
                directory.go_on()
            run.state_privacy(directory)
            served = asyncio.run(
                serve_plan(
                    run.plan, endpoint, folder, directory, snapshot,
                    listening=listening,
                    finish=lambda served: _finish(run, directory, served, time.monotonic() - began),
                    after_snapshot=noise.forget,
                    accept_loss=accept_loss,
                )
            )  # fmt: skip
            if not served.reason:
                return None
            run.clear(folder)
            return result_of(directory)
        finally:
            if releases is not None:
                releases.close()
            directory.close()


def _stored(out: Path) -> dict[str, Any] | None:
    """Return the config that the run was begun with, or None if there is none yet."""
    file = out / "config.toml"
    try:
        stored = tomllib.loads(file.read_text(encoding="utf-8"))
        ServiceSettings.model_validate(stored.get("service", {}))
        Buffer.model_validate(stored.get("buffer", {}))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())[:200]
        raise RunError(f"{file} is damaged ({said}); put it back from a backup, or start a new run") from None
    return stored


def _with_population(config: Config, endpoint: Endpoint, out: Path) -> Config:
    """Without data of its own a server goes by who is enrolled when the run begins, and stays with that."""
    settings = config.service or ServiceSettings()
    if config.data is None and settings.population is None:
        population = len(Enrolled(endpoint.keys / LIST))
        stored = _stored(out)
        if stored is not None:
            population = stored.get("service", {}).get("population", population)
        settings = settings.model_copy(update={"population": population})
    return config.model_copy(update={"service": settings})


def _with_share(config: Config, population: int, endpoint: Endpoint, out: Path) -> Config:
    """With a limit on one client's uploads in a buffer: a quarter of it, or more if half of the clients that
    are enrolled when the run begins could not fill it otherwise. Privacy has stricter limits."""
    size = config.buffer.size
    if config.buffer.share is not None or config.privacy is not None or size is None:
        return config
    stored = _stored(out)
    if stored is not None:
        share = stored.get("buffer", {}).get("most_per_client")
    else:
        clients = len(Enrolled(endpoint.keys / LIST)) or population
        share = min(size, max(math.ceil(size / QUARTER), math.ceil(2 * size / clients)))
    return config.model_copy(update={"buffer": config.buffer.model_copy(update={"most_per_client": share})})


def assemble(
    config: Config,
    model: nn.Module | str | None,
    noise: Callable[[], NoiseKeys],
    chosen: Chosen | None = None,
    settle: Callable[[Config, int], Config] = lambda config, population: config,
) -> ServedAssembly:
    """What a server needs of a config: with the data that it names, or with a model alone. `noise`: the keys
    of the noise, when it is needed; `chosen`: what was worked out when the run began. `settle` fills in what
    depends on the resolved config and population."""
    settings = config.service or ServiceSettings()
    _check(config)
    federation = _federation(config)
    module = _module(config, model, federation)
    flat = FlatModule(module)
    if flat.vector.dtype != torch.float32:
        raise ConfigError(f"model: its parameters are {flat.vector.dtype}; they travel as float32")
    clients: Clients = RemoteClients(settings.population or 1) if federation is None else federation.clients
    population = settings.population or len(clients)
    config = settle(config.resolved(population), population)
    assert config.pace is not None
    check_servable(config.algorithm, config.pace)
    if federation is None and config.local.steps is None and config.algorithm.uses_local_steps:
        raise ConfigError(
            f"local.steps: the step sizes of {config.algorithm.name} follow from it; give a number"
        )
    if config.buffer.weights == "examples" and config.algorithm.averages_memories:
        _check_examples_known(config, federation, population)
    situation = replace(situation_of(config, clients), population=population)
    guarantee = guarantee_of(config, situation, flat.vector, chosen)
    evaluate = None
    if federation is not None:
        check_fit(flat, federation)
        if federation.test is not None or config.evaluation.held_out > 0:
            evaluate = Evaluator(flat, federation, config.evaluation, lambda client: 1.0, config.seed)
        inputs = fingerprints(config, federation, flat)
    else:
        inputs = {"the model": _fingerprint(module, flat.vector)}
    plan = RunPlan(
        algorithm=config.algorithm,
        local=config.local,
        aggregator=make_aggregator(config, flat.vector.clone(), situation, guarantee, noise),
        book=Bookkeeping(
            config.pace,
            config.buffer,
            config.algorithm.law,
            population if config.algorithm.opening else 0,
            None if guarantee is None else guarantee.limits,
        ),
        stop=config.stop,
        evaluation=config.evaluation,
        evaluate=evaluate,
        shapes=[tuple(shape) for shape in flat.shapes],
        seed=config.seed,
        settings=settings,
        budget=None if guarantee is None else guarantee.allowed,
        private=guarantee is not None,
        metrics=_metrics(config, federation),
        local_noise=_local_noise(config, guarantee),
    )
    return ServedAssembly(config, plan, flat, inputs, population, guarantee)


def _check(config: Config) -> None:
    if isinstance(config.privacy, PoissonSampling):
        raise ConfigError(
            "privacy.kind: 'poisson' rests on clients that are sampled at random, which real ones are not; "
            "use 'participation', which assumes nothing about who comes when"
        )
    settings = config.service or ServiceSettings()
    for name in ("norm_bound", "examples_bound"):
        if config.privacy is not None and getattr(settings, name) is not None:
            raise ConfigError(
                f"service.{name}: with privacy no upload is refused by its values, because who is in a "
                "buffer would tell them; leave it out: uploads are clipped (privacy.clip) and weigh the same"
            )
    if config.device != Device():
        raise ConfigError("device: a server adds up on the CPU; leave it out")


def _check_examples_known(config: Config, federation: Federation | None, population: int) -> None:
    if federation is None or len(federation.clients) != population:
        kind = config.algorithm.name
        raise ConfigError(
            f"buffer.weights: {kind} keeps a mean over all clients, and to weigh it by their examples the "
            "server must know how many all of them have together; use 'equal', or name the clients' data "
            "in the config"
        )


def _metrics(config: Config, federation: Federation | None) -> frozenset[str]:
    """What clients may report: what their head gives, which a server without data does not know, and what the
    config names."""
    heads = BUILT_IN if federation is None else (type(federation.head),)
    names = {name for head in heads for name in head.names} | set(config.evaluation.metrics or ())
    return frozenset(names - RESERVED)


def _local_noise(config: Config, guarantee: Guarantee | None) -> LocalNoise | None:
    """Return what clients of a run with local privacy do to their uploads; None in other runs."""
    if guarantee is None or not isinstance(config.privacy, LocalPrivacy):
        return None
    seed = config.seed if guarantee.noise_from == "seed" else None
    return LocalNoise(
        clip=guarantee.clip,
        noise_multiplier=guarantee.noise_multiplier,
        participations=config.privacy.participations,
        seed=seed,
    )


def _federation(config: Config) -> Federation | None:
    if config.data is None:
        return None
    federation = config.data.federation(key(config.seed, "data"))
    if config.evaluation.held_out > 0:
        held = HoldingOut(federation.clients, config.evaluation.held_out, key(config.seed, "held out"))
        federation = replace(federation, clients=held)
    return federation


def _module(config: Config, model: nn.Module | str | None, federation: Federation | None) -> nn.Module:
    if isinstance(model, str):
        return load_module(model, key(config.seed, "model"))
    if model is not None:
        return model
    if federation is None or config.model is None:
        raise ConfigError("model: give --model FILE.py:NAME, or data and model in the config")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(config.seed, "model"))
        return config.model.build_with(federation.vectors, federation.shape, federation.classes)


def _finish(run: ServedAssembly, directory: RunFolder, served: Served, seconds: float) -> None:
    """Write the model and the result, as a simulated run does."""
    if not torch.isfinite(served.model).all():
        raise RunError(f"the model is not finite at version {served.version}: training has diverged")
    guarantee = run.guarantee
    noisy = guarantee is not None and guarantee.noise_multiplier > 0
    result = Result(
        client_trips=served.trips,
        steps=served.version,
        virtual_time=served.time,
        bytes=served.bytes,
        accuracy=served.metrics.get("accuracy"),
        loss=served.metrics.get("loss"),
        model_sha256=hashlib.sha256(served.model.view(torch.uint8).numpy().data).hexdigest(),
        wall_seconds=round(seconds, 3),
        profile={},
        trips_per_second=round(served.trips / max(served.time, 1e-9), 1),
        refused=served.refused,
        given_up=served.given_up,
        stopped_by=served.reason or "",
        epsilon=guarantee.epsilon(served.version) if guarantee is not None and noisy else None,
        privacy_void=None if guarantee is None else guarantee.void,
        oracle=run.config.algorithm.oracle,
        metrics=served.metrics,
        model=run.flat.state_dict(served.model),
    )
    run.state_privacy(directory, served.version)
    directory.finish(result.model, result.summary())


def _fingerprint(module: nn.Module, vector: torch.Tensor) -> str:
    """Differs where the module or its first values do."""
    digest = hashlib.sha256(str(module).encode())
    digest.update(vector.detach().cpu().numpy().data)
    return digest.hexdigest()
