"""Serve one config to real clients: `td.serve`."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Never

from torch import nn

from tardigrad.algorithms.algorithm import Algorithm
from tardigrad.core.bookkeeping import Buffer
from tardigrad.core.pace import Pace
from tardigrad.core.stop import Stop
from tardigrad.data.catalogue import Source
from tardigrad.data.evaluation import Evaluation
from tardigrad.encodings.broadcasts import AnyBroadcast
from tardigrad.encodings.kinds import AnyEncoding
from tardigrad.errors import ConfigError, RunError
from tardigrad.experiments.config.keywords import KEPT, Named, Table, with_keywords
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.assembly import Assembly
from tardigrad.experiments.runs.drive import one_thread
from tardigrad.experiments.runs.private_run import Secrets, check_guard, forget_secrets, open_secrets
from tardigrad.experiments.runs.result import Result, RunTotals, result_of
from tardigrad.experiments.runs.run_folder import RunFolder, Snapshot
from tardigrad.experiments.runs.server_assembly import NO_MODEL, assemble_server, make_plan
from tardigrad.experiments.runs.server_defaults import with_population, with_share
from tardigrad.learning.local import Local
from tardigrad.learning.models import Model
from tardigrad.learning.models.own_model import is_own_model
from tardigrad.privacy.chosen import CHOSEN, Chosen
from tardigrad.privacy.releases import NEW_RUN
from tardigrad.privacy.settings import Privacy
from tardigrad.secure.secure_settings import Secure
from tardigrad.service.access.identity import own_identity
from tardigrad.service.monitor.progress_record import over_text
from tardigrad.service.server.endpoint import Endpoint
from tardigrad.service.server.finished_run import tell_over
from tardigrad.service.server.lifecycle import ServedRun
from tardigrad.service.server.lifecycle import serve as serve_plan
from tardigrad.service.server.service_settings import ServiceSettings
from tardigrad.service.store.sqlite import JOURNAL, check_whole, remove_store
from tardigrad.simulation.adversaries import Adversaries
from tardigrad.simulation.availability import Always, Availability
from tardigrad.simulation.delay import Delay
from tardigrad.simulation.device import Device
from tardigrad.simulation.network import Network


def serve(
    config: Config | None = None,
    *,
    out: Path | str,
    endpoint: Endpoint | None = None,
    seed: int = KEPT,
    algorithm: Algorithm | Named = KEPT,
    data: Source | Named | None = KEPT,
    model: nn.Module | str | Model | Table | None = None,
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
    say: Callable[[str], None] = print,
    accept_loss: bool = False,
    guard: Path | str | None = None,
    moved: bool = False,
    declaration: str = "",
    place: Endpoint | None = None,
    **unknown: Never,
) -> Result | None:
    """Serve a run; return its result when it is over, or None if it was stopped by SIGTERM or Ctrl-C.

    If `out` holds a run, it goes on; if that run is over, clients that come late are told so.

    The settings are a config, keywords, or both, as in `td.run`; data and model may be left out of the config
    if the clients have the data.

    `config`: all settings together.
    `out`: the folder of the run.
    `endpoint`: the address, and the folder with the clients' keys and the server's certificate.
    `model`: a torch module, or "FILE.py:NAME", if the clients have the data; otherwise as in `td.run`.
    `service`: limits of the server for its clients.
    `say`: called with lines for the operator.
    `accept_loss`: go on although uploads that were acknowledged are lost; not for private runs.
    `guard`: for a private run, a file outside `out` with which a restored backup of `out` is noticed.
    `moved`: `out` was moved to another place, and nobody goes on with the original.
    `declaration`: what clients that join with a Flower app are told (`tardigrad.flower.ServedApp`).
    `place`: the former name of `endpoint`.
    `seed`, `algorithm`, `data`, `local`, `pace`, `buffer`, `privacy`, `encoding`, `broadcast`, `secure`,
    `device`, `stop`, `evaluation`: as in `td.run`. `delay`, `network`, `availability`: describe virtual time,
    and are not used. `adversaries`: must be left out, because a server's clients are real.

    Raises a ConfigError if the settings are wrong, and a RunError if the run fails.

    >>> serve(load_config("run.toml"), out="live", endpoint=Endpoint(port=7433))  # doctest: +SKIP
    """
    if place is not None:
        warnings.warn("serve(place=...) is called serve(endpoint=...) now", DeprecationWarning, stacklevel=2)
        endpoint = place
    endpoint, path = endpoint or Endpoint(), Path(out)
    endpoint.check()
    of_clients = model if isinstance(model, nn.Module | str) else None
    config = with_keywords(
        config, seed=seed, algorithm=algorithm, data=data, local=local, pace=pace, buffer=buffer, delay=delay,
        network=network, availability=availability, adversaries=adversaries, encoding=encoding,
        broadcast=broadcast, privacy=privacy, secure=secure, device=device, stop=stop,
        evaluation=evaluation, service=service,
        model=KEPT if model is None or of_clients is not None else model, **unknown,
    )  # fmt: skip
    if of_clients is None and not {"data", "model"} & config.model_fields_set:
        raise ConfigError(NO_MODEL)
    given = of_clients is not None or is_own_model(config.model)
    if given and "data" not in config.model_fields_set:
        kept = None if isinstance(of_clients, nn.Module) else config.model
        config = config.model_copy(update={"data": None, "model": kept})  # the clients have the data
    keys, private = endpoint.keys, config.privacy is not None
    began = time.monotonic()
    if config.network is not None or not isinstance(config.availability, Always):
        say(
            "[network] and [availability] describe virtual time; a served run takes real time and ignores "
            "them"
        )

    def listening(port: int) -> None:
        say(f"listening on {endpoint.host}:{port}")

    with one_thread(), ExitStack() as stack:
        assembly = assemble_server(
            with_population(config, keys, path),
            of_clients,
            Chosen.read(path / CHOSEN),
            lambda config, population: with_share(config, population, keys, path),
            declaration,
        )
        outside = None if guard is None else Path(guard)
        check_guard(assembly.guarantee, path, outside)
        folder = stack.enter_context(closing(RunFolder(path, live=True, private=private)))
        begun = (path / ".lock").exists() or (path / "config.toml").exists()
        snapshot = _open_folder(folder, assembly, begun, accept_loss and not private)
        if folder.summary is not None:
            clear(path)
            plan = make_plan(assembly, Secrets())
            asyncio.run(tell_over(plan, endpoint, str(folder.summary["stopped_by"]), listening))
            return result_of(folder)
        version = 0 if snapshot is None else int(snapshot[1]["values"]["aggregator"]["version"])
        noisy = config.secure is None  # the helpers of a secure run add the noise
        secrets = open_secrets(assembly.config, assembly.guarantee, path, version, outside, moved, noisy)
        stack.enter_context(closing(secrets))
        plan = make_plan(assembly, secrets, None if config.secure is None else own_identity(keys))
        if begun:
            folder.go_on()
        assembly.write_texts(folder)
        served = asyncio.run(
            serve_plan(
                plan, endpoint, path, folder, snapshot,
                listening=listening,
                finish=lambda served: finish(assembly, folder, served, time.monotonic() - began),
                after_snapshot=secrets.noise.forget,
                accept_loss=accept_loss,
            )
        )  # fmt: skip
        if not served.reason:
            if served.over is not None:
                say(f"the run is {over_text(served.over, served.steps_waiting)}")
            return None
        clear(path)
        return result_of(folder)


def _open_folder(folder: RunFolder, assembly: Assembly, begun: bool, accept_loss: bool) -> Snapshot | None:
    """Create the folder of a run, or open that of a run that has begun and return its snapshot."""
    if not begun:
        folder.create(assembly.config, assembly.inputs())
        return None
    path, private = folder.path, assembly.guarantee is not None
    if folder.summary is None:
        check_whole(path, private)
    snapshot = folder.reopen(assembly.config, assembly.inputs(), accept_loss)
    if snapshot is not None and "position" not in snapshot[1]:
        raise ConfigError(f"--out {path}: holds a simulated run; give another folder")
    if snapshot is not None and not (path / JOURNAL).exists() and not accept_loss:
        advice = NEW_RUN if private else "--accept-loss goes on without what is lost"
        raise RunError(f"{path / JOURNAL}: the journal of the run is gone; {advice}")
    return snapshot


def finish(assembly: Assembly, folder: RunFolder, served: ServedRun, seconds: float) -> None:
    """Write the model and the result of a served run, as a simulated run does."""
    totals = RunTotals(
        model=served.model,
        trips=served.trips,
        version=served.version,
        time=served.time,
        bytes=served.bytes,
        given_up=served.given_up,
        refused=served.refused,
        metrics=served.metrics,
        stopped_by=served.reason or "",
    )
    result = assembly.result(totals, seconds, served.trips / max(served.time, 1e-9))
    folder.write("privacy.md", assembly.privacy_text(served.version))
    folder.finish(result.model, result.summary())


def clear(folder: Path) -> None:
    """Delete the uploads and the secrets of a run that is over."""
    remove_store(folder)
    forget_secrets(folder)
