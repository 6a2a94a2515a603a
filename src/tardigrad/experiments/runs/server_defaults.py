"""Defaults of a served run that depend on who is enrolled when it begins, and stay when it goes on."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tardigrad.core.bookkeeping import Buffer
from tardigrad.errors import RunError
from tardigrad.experiments.config.schema import Config
from tardigrad.service.access.enough_clients import check_enough_clients
from tardigrad.service.access.enrolment import LIST, clients_of_run
from tardigrad.service.server.service_settings import ServiceSettings

QUARTER = 4
"""One client may have this part of a buffer."""


@dataclass(frozen=True)
class StoredDefaults:
    """The defaults that a run was begun with."""

    population: int | None
    most_per_client: int | None


def stored_defaults(folder: Path) -> StoredDefaults | None:
    """Return the defaults in a run's folder, or None if the run has not begun."""
    file = folder / "config.toml"
    try:
        stored = tomllib.loads(file.read_text(encoding="utf-8"))
        service = ServiceSettings.model_validate(stored.get("service", {}))
        buffer = Buffer.model_validate(stored.get("buffer", {}))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())[:200]
        raise RunError(f"{file} is damaged ({said}); put it back from a backup, or start a new run") from None
    return StoredDefaults(service.population, buffer.most_per_client)


def with_population(config: Config, keys: Path, folder: Path) -> Config:
    """Return the config with a population: if it has no data, the number of clients that were enrolled for
    the run when it began."""
    settings = config.service or ServiceSettings()
    if (config.data is None or config.data.remote) and settings.population is None:
        population = len(clients_of_run(keys, folder))
        stored = stored_defaults(folder)
        if stored is None:
            check_enough_clients(config.pace, population, keys / LIST)
        elif stored.population is not None:
            population = stored.population
        settings = settings.model_copy(update={"population": population})
    return config.model_copy(update={"service": settings})


def with_share(config: Config, population: int, keys: Path, folder: Path) -> Config:
    """Return the config with a limit on one client's uploads in a buffer.

    The limit is a quarter of the buffer, or more if half of the clients that were enrolled when the run began
    could not fill it otherwise. Privacy has stricter limits of its own.
    """
    size = config.buffer.size
    if config.buffer.share is not None or config.privacy is not None or size is None:
        return config
    stored = stored_defaults(folder)
    if stored is not None:
        share = stored.most_per_client
    else:
        clients = len(clients_of_run(keys, folder)) or population
        share = min(size, max(math.ceil(size / QUARTER), math.ceil(2 * size / clients)))
    return config.model_copy(update={"buffer": config.buffer.model_copy(update={"most_per_client": share})})
