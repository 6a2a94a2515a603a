"""One run of a server in its folder: checked, opened, handed to the service, and finished at its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from torch import nn

from tardigrad.errors import ConfigError, RunError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.assembly import Assembly
from tardigrad.experiments.runs.private_run import Secrets, check_guard, forget_secrets, open_secrets
from tardigrad.experiments.runs.result import RunTotals
from tardigrad.experiments.runs.run_folder import RunFolder, Snapshot
from tardigrad.experiments.runs.server_assembly import NO_MODEL, assemble_server, make_plan
from tardigrad.experiments.runs.server_defaults import with_population, with_share
from tardigrad.learning.models.own_model import is_own_model
from tardigrad.privacy.chosen import CHOSEN, Chosen
from tardigrad.privacy.releases import NEW_RUN
from tardigrad.service.access.enrolment import run_name
from tardigrad.service.access.identity import own_identity
from tardigrad.service.server.endpoint import Endpoint
from tardigrad.service.server.run_plan import RunPlan
from tardigrad.service.server.run_server import RunToServe, ServedRun
from tardigrad.service.store.sqlite import JOURNAL, check_whole, remove_store
from tardigrad.simulation.availability import Always


class HostedRun:
    """A run to serve. It is put together and checked first, which writes nothing, and then opened."""

    def __init__(
        self,
        config: Config,
        path: Path,
        endpoint: Endpoint,
        model: nn.Module | str | None = None,
        accept_loss: bool = False,
        guard: Path | str | None = None,
        moved: bool = False,
        declaration: str = "",
    ) -> None:
        """`config`: with its defaults (`with_clients_data`). `model`: of the clients, if it is not in the
        config. The others are those of `td.serve`."""
        self._began = time.monotonic()
        self.path, self._keys = path, endpoint.keys
        self._accept_loss, self._moved = accept_loss, moved
        self._guard = None if guard is None else Path(guard)
        self._private, self._secure = config.privacy is not None, config.secure is not None
        self.assembly = assemble_server(
            with_population(config, self._keys, path),
            model,
            Chosen.read(path / CHOSEN),
            lambda config, population: with_share(config, population, self._keys, path),
            declaration,
        )
        check_guard(self.assembly.guarantee, path, self._guard)
        self.over = ""
        """Why the run was over when it was opened; "" if it goes on."""

    @property
    def begun(self) -> bool:
        """Whether the folder holds the run already."""
        return (self.path / ".lock").exists() or (self.path / "config.toml").exists()

    def open(self, stack: ExitStack) -> RunToServe | None:
        """Create the folder of the run, or open it. Return what is to be served, or None if the run is over.
        The files are closed with `stack`."""
        assembly, path = self.assembly, self.path
        self.folder = stack.enter_context(closing(RunFolder(path, live=True, private=self._private)))
        begun = self.begun
        snapshot = _open_folder(self.folder, assembly, begun, self._accept_loss and not self._private)
        if self.folder.summary is not None:
            clear(path)
            self.over = str(self.folder.summary["stopped_by"])
            self.plan: RunPlan = make_plan(assembly, Secrets())
            return None
        version = 0 if snapshot is None else int(snapshot[1]["values"]["aggregator"]["version"])
        noisy = not self._secure  # the helpers of a secure run add the noise
        secrets = open_secrets(
            assembly.config, assembly.guarantee, path, version, self._guard, self._moved, noisy
        )
        stack.enter_context(closing(secrets))
        self.plan = make_plan(assembly, secrets, own_identity(self._keys) if self._secure else None)
        if begun:
            self.folder.go_on()
        assembly.write_texts(self.folder)
        return RunToServe(
            name=run_name(path),
            plan=self.plan,
            folder=path,
            record=self.folder,
            snapshot=snapshot,
            finish=lambda served: finish(assembly, self.folder, served, time.monotonic() - self._began),
            after_snapshot=secrets.noise.forget,
            closed=lambda served: clear(path) if served.reason else None,
            accept_loss=self._accept_loss,
        )


def with_clients_data(config: Config, model: nn.Module | str | None = None) -> Config:
    """Return the config, without data if the clients have it. `model`: of the clients, if it is not in the
    config. Raise a ConfigError if there is no model."""
    if model is None and not {"data", "model"} & config.model_fields_set:
        raise ConfigError(NO_MODEL)
    given = model is not None or is_own_model(config.model)
    if given and "data" not in config.model_fields_set:
        kept = None if isinstance(model, nn.Module) else config.model
        return config.model_copy(update={"data": None, "model": kept})
    return config


def tell_unused(config: Config, say: Callable[[str], None]) -> None:
    """Say so if the config has settings that only a simulation uses."""
    if config.network is not None or not isinstance(config.availability, Always):
        say(
            "[network] and [availability] describe virtual time; a served run takes real time and ignores "
            "them"
        )


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
