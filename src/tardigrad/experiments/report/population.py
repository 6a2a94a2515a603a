"""The clients of a run: their number of examples, their slowness, and how well the final model serves them.

These are not in the events, so the clients are made again from the run's config. The result is kept in the
run's folder, for the next report.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tardigrad.core.draws import key
from tardigrad.core.files import write_text
from tardigrad.data.clients import Examples, Federation, HoldingOut
from tardigrad.data.partition_pictures import Holdings, holdings
from tardigrad.errors import ConfigError, TardigradError
from tardigrad.experiments.config.reading import parse_config
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.report.sources import RunSource, Series
from tardigrad.experiments.runs.drive import one_thread
from tardigrad.experiments.runs.fingerprints import fingerprints
from tardigrad.experiments.runs.model_and_data import make_federation
from tardigrad.experiments.runs.run_folder import RunFolder
from tardigrad.learning.evaluate import evaluate
from tardigrad.learning.examples import mapped
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.heads.named_metrics import NamedMetrics
from tardigrad.simulation.network import durations_of

CACHE = "report-clients.json"
MOST_CLIENTS = 5000
"""If there are more clients, this many evenly spaced ones are used."""
MOST_EVALUATED = 300
MOST_EXAMPLES = 200
"""Maximum number of examples of one client on which the final model is evaluated."""


@dataclass(frozen=True)
class Population:
    """The clients of a run, or some of them."""

    model_sha256: str | None
    """Digest of the model that was evaluated."""
    names: list[int | str]
    examples: list[int]
    slowness: list[float]
    """The factor by which all durations of each client are multiplied."""
    values: list[float | None]
    """The run's metric of the final model on each client's examples; None if it has no value there."""
    held_out: bool
    """Whether these examples were held out; if not, the client trained on them."""


@dataclass(frozen=True)
class PopulationFindings:
    """The known facts about the clients, and why others are not known."""

    populations: dict[Path, Population]
    """By the run's folder."""
    holdings: dict[str, Holdings]
    """Examples by client and label, by the first entry that has this partition; only of first seeds."""
    unknown: list[str]
    """Sentences on what is not known, and why."""


def find_out(entries: list[Series]) -> PopulationFindings:
    """Find the clients of every run. Runs with the same data are handled together."""
    populations: dict[Path, Population] = {}
    held: dict[str, Holdings] = {}
    unknown: dict[str, None] = {}
    same: dict[str, list[tuple[Series, RunSource]]] = {}
    for entry in entries:
        for run in entry.runs:
            inputs = [run.settings.get(name) for name in ("data", "seed", "head")]
            same.setdefault(json.dumps(inputs, sort_keys=True, default=str), []).append((entry, run))
    for runs in same.values():
        federation: Federation | None = None  # data may be large: it is released after this group of runs
        for entry, run in runs:
            try:
                config = _config(run)
                federation = federation or _federation(config)
                populations[run.folder] = _cached(run) or _look(run, config, federation)
                if run is entry.first and not any(label in held for label in {e.label for e, _ in runs}):
                    held[entry.label] = holdings(federation)
            except (TardigradError, OSError, ValueError, RuntimeError) as error:
                unknown[f"{entry.label}: {str(error).splitlines()[0]}"] = None
    return PopulationFindings(populations, held, list(unknown))


def _config(run: RunSource) -> Config:
    if run.served:
        raise ConfigError("it was served, and the server does not know what its clients hold")
    for name in ("data", "model"):
        if name not in run.settings:
            raise ConfigError(f"its {name} came from Python, so its clients cannot be made again here")
    return parse_config(run.settings, str(run.folder / "config.toml"))


def _federation(config: Config) -> Federation:
    """Return the data with the head of the config, and nothing held out yet."""
    evaluation = config.evaluation.model_copy(update={"held_out": 0.0})
    return make_federation(config.model_copy(update={"evaluation": evaluation}))


def _look(run: RunSource, config: Config, federation: Federation) -> Population:
    if config.evaluation.held_out > 0:
        keeping = HoldingOut(federation.clients, config.evaluation.held_out, key(config.seed, "held out"))
        federation = replace(federation, clients=keeping)
    clients = federation.clients
    durations = durations_of(config.delay, config.network, clients, config.seed)
    seen = np.unique(np.linspace(0, len(clients) - 1, min(len(clients), MOST_CLIENTS)).astype(int)).tolist()
    values: list[float | None] = [None] * len(seen)
    if run.summary is not None and not (config.local.personal or config.local.batch_norm == "client"):
        flat = _final_model(run, config, federation)
        tried = np.unique(np.linspace(0, len(seen) - 1, min(len(seen), MOST_EVALUATED)).astype(int))
        with one_thread():
            for place in tried.tolist():
                values[place] = _value(flat, federation, seen[place], run.record.metric.name)
    population = Population(
        None if run.summary is None else run.summary["model_sha256"],
        [clients.name(client) for client in seen],
        [clients.examples(client) for client in seen],
        [durations.factor(client) for client in seen],
        values,
        config.evaluation.held_out > 0,
    )
    if run.summary is not None:
        _keep(run, population)
    return population


def _final_model(run: RunSource, config: Config, federation: Federation) -> FlatModule:
    assert config.model is not None, "checked by _config"
    with torch.random.fork_rng(devices=[]):
        module = config.model.build_with(federation.vectors, federation.shape, federation.classes)
    flat = FlatModule(module, config.local.personal, config.local.batch_norm)
    flat.module.load_state_dict(RunFolder(run.folder).model())
    stored = json.loads((run.folder / "inputs.json").read_text())
    if fingerprints(config, federation, flat)["the data"] != stored.get("the data"):
        raise ConfigError("its data changed since it was run, so its clients cannot be made again")
    return flat


def _value(flat: FlatModule, federation: Federation, client: int, metric: str) -> float | None:
    clients = federation.clients
    found: Examples | None = clients.held_out(client)
    if found is None:
        found = clients.load(client)
    features = mapped(found[0], lambda tensor: tensor[:MOST_EXAMPLES])
    labels = found[1][:MOST_EXAMPLES]
    head, named = federation.head, NamedMetrics([metric], federation.head)
    vector = flat.shared.clone()
    return evaluate(flat, head, vector, features, labels, federation.transform, named=named).get(metric)


def _cached(run: RunSource) -> Population | None:
    """Return what an earlier report found; None if it was of another model, or cannot be read."""
    try:
        found = Population(**json.loads((run.folder / CACHE).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    current = run.summary is not None and found.model_sha256 == run.summary["model_sha256"]
    return found if current else None


def _keep(run: RunSource, population: Population) -> None:
    try:
        write_text(run.folder / CACHE, json.dumps(asdict(population)) + "\n")
    except OSError:
        return  # a report can be made even if the folder is read-only
