"""Serve one config to real clients: `td.serve`."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from contextlib import ExitStack
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
from tardigrad.experiments.config.keywords import KEPT, Named, Table, with_keywords
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.drive import one_thread
from tardigrad.experiments.runs.hosted_run import HostedRun, tell_unused, with_clients_data
from tardigrad.experiments.runs.result import Result, result_of
from tardigrad.learning.local import Local
from tardigrad.learning.models import Model
from tardigrad.privacy.settings import Privacy
from tardigrad.secure.secure_settings import Secure
from tardigrad.service.monitor.progress_record import over_text
from tardigrad.service.server.endpoint import Endpoint
from tardigrad.service.server.finished_run import tell_over
from tardigrad.service.server.lifecycle import serve as serve_run
from tardigrad.service.server.service_settings import ServiceSettings
from tardigrad.simulation.adversaries import Adversaries
from tardigrad.simulation.availability import Availability
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
    config = with_clients_data(config, of_clients)
    tell_unused(config, say)
    with one_thread(), ExitStack() as stack:
        hosted = HostedRun(config, path, endpoint, of_clients, accept_loss, guard, moved, declaration)
        run = hosted.open(stack)

        def listening(port: int) -> None:
            say(f"listening on {endpoint.host}:{port}")

        if run is None:
            asyncio.run(tell_over(hosted.plan, endpoint, path, hosted.over, listening))
            return result_of(hosted.folder)
        served = asyncio.run(serve_run(run, endpoint, listening))
        if not served.reason:
            if served.over is not None:
                say(f"the run is {over_text(served.over, served.steps_waiting)}")
            return None
        return result_of(hosted.folder)
