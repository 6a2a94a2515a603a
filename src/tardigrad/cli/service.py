"""The commands of the real thing: serve, join, enroll."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tardigrad.cli.options import look_in
from tardigrad.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from tardigrad.algorithms.aggregator import Aggregator
    from tardigrad.core.situation import Situation
    from tardigrad.experiments.config import Config
    from tardigrad.experiments.directory import RunDirectory
    from tardigrad.learning.flat import FlatModule
    from tardigrad.privacy.guarantee import Guarantee
    from tardigrad.privacy.keys import NoiseKeys
    from tardigrad.service.serving import Place, Plan, Served

Keys = Annotated[
    Path, typer.Option(metavar="DIR", help="Where keys, certificates and the list of clients are.")
]


def serve(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the run; goes on if it holds one.")],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 7433,
    keys: Keys = Path("keys"),
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting. Repeatable.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Where data sets lie.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME", help="A torch module of one's own, or a function that makes it."
        ),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS; on this machine only.")] = False,
    durability: Annotated[
        bool,
        typer.Option("--durability/--no-durability", help="Whether uploads are on disk when acknowledged."),
    ] = True,
) -> None:
    """Serve a run to real clients: the same config, the same algorithm."""
    from tardigrad.service.serving import Place

    _log_to_stderr()
    look_in(data_dir)
    place = Place(host, port, keys, insecure, durability)
    place.check()
    from tardigrad.experiments.config import load_config

    over = serve_config(load_config(file, settings or ()), place, out, model, _say)
    _say(
        f"the run is over ({over}): tardigrad show {out}"
        if over
        else "stopped; the same command goes on"
        if durability
        else "stopped"
    )


def join(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", show_default=False)],
    app: Annotated[str, typer.Option(metavar="FILE.py:NAME", help="The client's own model and examples.")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="The client's key, from `tardigrad enroll`.")],
    name: Annotated[str | None, typer.Option(help="The client's name (default: that of the key).")] = None,
    ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The authority of the server (default: beside the key)."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What the client remembers (default: beside the key).")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS; for tests.")] = False,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to try for when nobody answers.")] = 600.0,
) -> None:
    """Take part in a run that is served, until it is over."""
    import torch

    from tardigrad.service.app import load_app
    from tardigrad.service.certificates import AUTHORITY
    from tardigrad.service.claims import Signer
    from tardigrad.service.client import Participant
    from tardigrad.service.keys import check_name, read_key
    from tardigrad.service.trainee import Trainee

    _log_to_stderr()
    torch.set_num_threads(1)
    client = check_name(name or key.stem)
    signer = Signer(client, read_key(key))
    authority = None
    if not insecure:
        file = ca or key.parent / AUTHORITY
        try:
            authority = file.read_bytes()
        except OSError as error:
            raise ConfigError(f"--ca {file}: cannot be read ({error}); give the server's ca.pem") from None
    trainee = Trainee(client, load_app(app, client))
    folder = state or key.parent / f"{client}.state"
    participant = Participant(address, signer, authority, trainee, folder, patience, _say)
    try:
        reason = asyncio.run(participant.take_part())
    except KeyboardInterrupt:
        _say("stopped; the same command goes on")
        raise typer.Exit(130) from None
    _say(f"the run is over ({reason})")


def enroll(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", show_default=False)],
    keys: Keys = Path("keys"),
    public: Annotated[
        str | None, typer.Option(metavar="KEY", help="The public key of a client that made its own.")
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Names of the server, for a first certificate. Repeatable.")
    ] = None,
) -> None:
    """Make keys for clients and enter them in the server's list; the first time, certificates too."""
    from tardigrad.service.certificates import AUTHORITY, make_certificates
    from tardigrad.service.keys import LIST, check_name, enter, make_key, public_text

    if public is not None and len(names) != 1:
        raise ConfigError("--public: is the key of one client; give one name")
    for name in names:
        check_name(name)
    for name in names:
        text = public
        if text is None:
            text = public_text(make_key(keys / f"{name}.key"))
        enter(keys / LIST, name, text)
        _say(f"{name} {text}")
    if not (keys / AUTHORITY).exists():
        make_certificates(keys, host or ["localhost", "127.0.0.1"])
        _say(f"wrote {keys / AUTHORITY} for the clients, and the server's certificate")


def _say(line: str) -> None:
    Console().print(line, highlight=False, markup=False, soft_wrap=True)


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("tardigrad").setLevel(logging.INFO)


@dataclass(frozen=True)
class Assembled:
    """A config put together for a server."""

    config: Config
    plan: Plan
    flat: FlatModule
    inputs: dict[str, str]
    """Fingerprints of what the config only names."""
    population: int
    guarantee: Guarantee | None

    def state_privacy(self, directory: RunDirectory, made: int | None = None) -> None:
        """Write what is promised, and how much of it was used."""
        from tardigrad.privacy.statement import NOTHING_PROMISED, statement

        text, config = NOTHING_PROMISED, self.config
        if self.guarantee is not None and config.privacy is not None:
            algorithm = getattr(config.algorithm, "kind", type(config.algorithm).__name__)
            text = statement(self.guarantee, config.privacy, algorithm, self.population, made)
        directory.write("privacy.md", text)


def serve_config(
    config: Config, place: Place, out: Path, model: str | None, say: Callable[[str], None]
) -> str | None:
    """Put a served run together, begin it or go on with it, and serve it. Why it is over, if it is."""
    from tardigrad.experiments.directory import RunDirectory
    from tardigrad.experiments.run import KEYS, one_thread
    from tardigrad.privacy.keys import NoiseKeys
    from tardigrad.service.serving import serve

    noise = NoiseKeys()
    if model is not None and "data" not in config.model_fields_set:
        config = config.model_copy(update={"data": None, "model": None})  # the clients have it all
    with one_thread():
        run = assemble(_with_population(config, place, out), model, lambda: noise)
        directory = RunDirectory(out)
        began = time.monotonic()
        try:
            snapshot = None
            if (out / ".lock").exists():
                snapshot = directory.reopen(run.config, run.inputs)
                if snapshot is not None and "position" not in snapshot[1]:
                    raise ConfigError(f"--out {out}: holds a simulated run; give another folder")
            else:
                directory.create(run.config, run.inputs)
            if directory.summary is not None:
                _clear(run, out)
                return str(directory.summary["stopped_by"])
            noise = NoiseKeys(out / KEYS)
            run.state_privacy(directory)
            served = asyncio.run(
                serve(
                    run.plan, place, out, directory, snapshot,
                    listening=lambda port: say(f"listening on {place.host}:{port}"),
                    finish=lambda served: _finish(run, directory, served, time.monotonic() - began),
                    after_snapshot=lambda: noise.forget(),
                )
            )  # fmt: skip
            if served.reason:
                _clear(run, out)
            return served.reason
        finally:
            directory.close()


def _with_population(config: Config, place: Place, out: Path) -> Config:
    """Without data of its own a server goes by who is enrolled when the run begins, and stays with that."""
    from tardigrad.service.keys import LIST, Enrolled
    from tardigrad.service.settings import Service

    settings = config.service or Service()
    if config.data is None and settings.population is None:
        population = len(Enrolled(place.keys / LIST))
        stored = out / "config.toml"
        if stored.exists():
            population = tomllib.loads(stored.read_text()).get("service", {}).get("population", population)
        settings = settings.model_copy(update={"population": population})
    return config.model_copy(update={"service": settings})


def assemble(config: Config, model: str | None, noise: Callable[[], NoiseKeys]) -> Assembled:
    """What a server needs of a config: with the data that it names, or with a model alone. `noise`: the keys
    of the noise, when it is needed."""
    import torch

    from tardigrad.algorithms.masfl import AdaMasFL, MasFL
    from tardigrad.core.bookkeeping import Bookkeeping
    from tardigrad.data.clients import Clients, HoldingOut
    from tardigrad.experiments.inputs import fingerprints
    from tardigrad.experiments.run import _check_fit, _guarantee, _situation
    from tardigrad.learning.flat import FlatModule
    from tardigrad.service.app import load_module
    from tardigrad.service.elsewhere import Elsewhere
    from tardigrad.service.serving import Plan, check_servable
    from tardigrad.service.settings import Service
    from tardigrad.simulation.draws import key
    from tardigrad.simulation.evaluation import Evaluator

    settings = config.service or Service()
    _check(config)
    module = None if model is None else load_module(model, key(config.seed, "model"))
    federation = None
    if config.data is not None:
        federation = config.data.federation(key(config.seed, "data"))
        if config.evaluation.held_out > 0:
            held = HoldingOut(federation.clients, config.evaluation.held_out, key(config.seed, "held out"))
            federation = replace(federation, clients=held)
    if module is None:
        if federation is None or config.model is None:
            raise ConfigError("model: give --model FILE.py:NAME, or data and model in the config")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(config.seed, "model"))
            module = config.model.build_with(federation.vectors, federation.shape, federation.classes)
    flat = FlatModule(module)
    if flat.vector.dtype != torch.float32:
        raise ConfigError(f"model: its parameters are {flat.vector.dtype}; they travel as float32")
    clients: Clients = Elsewhere(settings.population or 1) if federation is None else federation.clients
    population = settings.population or len(clients)
    config = config.resolved(population)
    assert config.pace is not None
    check_servable(config.algorithm, config.pace)
    if federation is None and config.local.steps is None and isinstance(config.algorithm, MasFL | AdaMasFL):
        raise ConfigError("local.steps: the step sizes of masfl and adamasfl follow from it; give a number")
    situation = replace(_situation(config, clients), population=population)
    guarantee = _guarantee(config, situation)
    evaluate = None
    if federation is not None:
        _check_fit(flat, federation)
        if federation.test is not None or config.evaluation.held_out > 0:
            evaluate = Evaluator(flat, federation, config.evaluation, lambda client: 1.0, config.seed)
        inputs = fingerprints(config, federation, flat)
    else:
        inputs = {"the model": hashlib.sha256(f"{module} {flat.vector.tolist()}".encode()).hexdigest()}
    plan = Plan(
        algorithm=config.algorithm,
        local=config.local,
        aggregator=_aggregator(config, flat.vector.clone(), situation, guarantee, noise),
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
    )
    return Assembled(config, plan, flat, inputs, population, guarantee)


def _check(config: Config) -> None:
    from tardigrad.privacy.settings import LocalPrivacy
    from tardigrad.simulation.device import Device

    if isinstance(config.privacy, LocalPrivacy):
        raise ConfigError(
            "privacy.kind: 'local' noise must be added where the data is, which `join` does not do; "
            "use 'participation', where the server adds it"
        )
    if config.device != Device():
        raise ConfigError("device: a server adds up on the CPU; leave it out")


def _aggregator(
    config: Config,
    model: Tensor,
    situation: Situation,
    guarantee: Guarantee | None,
    noise: Callable[[], NoiseKeys],
) -> Aggregator:
    from tardigrad.algorithms.aggregator import Aggregator
    from tardigrad.algorithms.algorithm import SumOnly
    from tardigrad.privacy.aggregator import PrivateAggregator
    from tardigrad.privacy.normal import Seeded
    from tardigrad.simulation.draws import key

    average = config.evaluation.model_average
    if guarantee is None:
        return Aggregator(config.algorithm, model, situation, average)
    assert isinstance(config.algorithm, SumOnly), "checked by the config"
    seeded = guarantee.noise_from == "seed"
    return PrivateAggregator(
        config.algorithm, model, situation, guarantee,
        lambda number: Seeded(key(config.seed, "noise", number)) if seeded else noise().normals(number),
        average,
    )  # fmt: skip


def _finish(run: Assembled, directory: RunDirectory, served: Served, seconds: float) -> None:
    """Write the model and the result, as a simulated run does."""
    import torch

    from tardigrad.errors import RunError
    from tardigrad.experiments.run import Result

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
        oracle=run.config.algorithm.oracle,
        metrics=served.metrics,
        model=run.flat.state_dict(served.model),
    )
    run.state_privacy(directory, served.version)
    directory.finish(result.model, result.summary())


def _clear(run: Assembled, out: Path) -> None:
    """Nothing secret stays behind a run that is over."""
    from tardigrad.experiments.run import KEYS
    from tardigrad.service.serving import clear

    clear(out)
    if run.guarantee is not None:
        for name in (KEYS, "snapshot.safetensors"):
            (out / name).unlink(missing_ok=True)
