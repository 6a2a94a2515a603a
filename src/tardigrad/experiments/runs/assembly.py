"""What a simulated and a served run are put together from, alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.algorithms.layers import UploadLayer
from tardigrad.core.draws import key
from tardigrad.core.situation import Situation
from tardigrad.data.clients import Clients, Federation
from tardigrad.errors import ConfigError, RunError, TardigradError
from tardigrad.experiments.config.schema import Config
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.head import MultiClass
from tardigrad.privacy.chosen import CHOSEN, Chosen
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.keys import NoiseKeys
from tardigrad.privacy.layers.canaries import Canaries
from tardigrad.privacy.layers.central_noise import Normals
from tardigrad.privacy.layers.stack import central_layers, local_layers
from tardigrad.privacy.normal import Seeded
from tardigrad.privacy.releases import NEW_RUN, ReleaseLog
from tardigrad.privacy.settings import LocalPrivacy
from tardigrad.privacy.statement import NOTHING_PROMISED, statement

KEYS = "noise.keys"
"""In a run's folder: what the noise since the last snapshot is made of."""
RELEASES = "releases.log"
"""In the folder of a private run: a digest of each version that was released."""
SNAPSHOT = "snapshot.safetensors"
SAMPLING = "sampling.key"
"""In a run's folder: what Poisson sampling is drawn from, until the run is over."""


def situation_of(config: Config, clients: Clients) -> Situation:
    """What algorithms may know of a run before it begins."""
    seen = range(min(len(clients), 1000))
    local_steps = sum(config.local.steps_for(clients.examples(c)) for c in seen) / len(seen)
    steps = config.stop.steps
    trips, size = config.stop.trips, config.buffer.size
    if trips is not None and size is not None:
        if config.algorithm.opening:  # the first step takes a trip of everybody
            by_trips = 1 + (trips - len(clients)) // size
        else:
            by_trips = trips // size
        steps = by_trips if steps is None else min(steps, by_trips)
    buffer, examples = config.buffer, None
    if buffer.weights == "examples" and config.algorithm.averages_memories:
        examples = sum(clients.examples(c) for c in range(len(clients)))
    return Situation(len(clients), buffer.size, buffer.staleness_bound, steps, local_steps, examples)


def guarantee_of(
    config: Config, situation: Situation, model: Tensor, chosen: Chosen | None = None
) -> Guarantee | None:
    """What the config promises, with its noise worked out; nothing where nothing is promised. `chosen`: what
    was worked out when the run began."""
    if config.privacy is None:
        return None
    if situation.steps is None:
        raise ConfigError(
            "privacy: the noise is planned for a number of steps; give stop.steps (or stop.trips, where "
            "buffer.size is fixed)"
        )
    assert config.pace is not None
    upload = Aggregator(config.algorithm, model, situation).empty_upload()
    guarantee = config.privacy.guarantee(
        situation.steps,
        situation.population,
        config.pace,
        config.buffer,
        sum(vector.numel() for vector in upload.values()),
        chosen,
    )
    if config.algorithm.opening and guarantee.limits is not None and guarantee.limits.separation > 1:
        raise ConfigError(
            "algorithm.first_pass: the first step takes a contribution of everybody, and with a separation "
            f"of {guarantee.limits.separation} nobody could come for the second; set it to false, or "
            "privacy.separation to 1"
        )
    return guarantee


def make_aggregator(
    config: Config,
    model: Tensor,
    situation: Situation,
    guarantee: Guarantee | None,
    keys: Callable[[], NoiseKeys],
    canaries: Canaries | None = None,
) -> Aggregator:
    """The values of a run, private where that is promised. `keys`: asked whenever noise is needed."""
    layers: list[UploadLayer] = []
    if guarantee is not None:
        layers = _layers(config, guarantee, keys, canaries)
    return Aggregator(config.algorithm, model, situation, config.evaluation.model_average, layers)


def _layers(
    config: Config, guarantee: Guarantee, keys: Callable[[], NoiseKeys], canaries: Canaries | None
) -> list[UploadLayer]:
    """Return the upload layers of a private run."""
    if guarantee.noise_from == "seed":
        normals: Normals = lambda number: Seeded(key(config.seed, "noise", number))  # noqa: E731
    else:
        normals = lambda number: keys().normals(number)  # noqa: E731
    if isinstance(config.privacy, LocalPrivacy):
        return local_layers(guarantee, normals)
    return central_layers(guarantee, normals, canaries)


def privacy_text(config: Config, guarantee: Guarantee | None, population: int, made: int | None) -> str:
    """What is promised, and how much of it was used where it is known how many steps were made."""
    if guarantee is None or config.privacy is None:
        return NOTHING_PROMISED
    algorithm = config.algorithm.name
    return statement(guarantee, config.privacy, algorithm, population, made)


def open_releases(
    guarantee: Guarantee | None, folder: Path, guard: Path | None = None, moved: bool = False
) -> ReleaseLog | None:
    """Open the record of released versions; None where nothing is promised that a repetition could break."""
    check_guard(guarantee, folder, guard)
    if guarantee is None or guarantee.noise_from == "seed" or guarantee.noise_multiplier == 0:
        return None
    begun = has_begun(folder) or (folder / CHOSEN).exists()
    return ReleaseLog(folder / RELEASES, guard, moved, begun)


def check_guard(guarantee: Guarantee | None, folder: Path, guard: Path | None) -> None:
    """Raise a ConfigError if a guard cannot be used, before anything is written."""
    if guard is None:
        return
    if guarantee is None or guarantee.noise_from == "seed" or guarantee.noise_multiplier == 0:
        raise ConfigError("--guard: is for private runs, with noise from the system; leave it out")
    if guard.name and guard.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"--guard {guard}: must lie outside the run's folder, or a backup would include it")
    if not guard.name or guard.is_dir() or not guard.parent.is_dir():
        raise ConfigError(f"--guard {guard}: must be a file in a folder that exists")


def check_noise_keys(releases: ReleaseLog, keys: NoiseKeys, version: int) -> None:
    """Raise a RunError if a step that was released must be made again and its noise key is gone. `version`:
    that of the snapshot."""
    lost = [step for step in range(version, releases.last) if step not in keys]
    if lost:
        raise RunError(
            f"{KEYS}: version {lost[0] + 1} was released before, and the key of its noise is gone: the "
            f"snapshot or {KEYS} was deleted or put back from a backup; {NEW_RUN}"
        )


def keep_chosen(guarantee: Guarantee, folder: Path) -> None:
    """Store what a private run goes on with, before its first step."""
    if (folder / CHOSEN).exists():
        return
    if has_begun(folder):
        raise RunError(
            f"{folder / CHOSEN} is gone, so it is not known with which noise the run began; {NEW_RUN}"
        )
    guarantee.chosen.write(folder / CHOSEN)


def has_begun(folder: Path) -> bool:
    """Whether a private run may have released a step."""
    return (folder / SNAPSHOT).exists() or (folder / KEYS).exists()


def forget_secrets(folder: Path) -> None:
    """After a private run: what its noise and sampling were made of, and what the clients uploaded last."""
    for name in (KEYS, SAMPLING, SNAPSHOT):
        (folder / name).unlink(missing_ok=True)


def check_fit(flat: FlatModule, federation: Federation) -> None:
    """One forward pass: a model that does not fit the data is named before anything is trained."""
    features, labels, index = federation.clients.indexed(0)
    chosen = torch.arange(min(len(labels), 8)) if index is None else index[:8]
    x = features.index_select(0, chosen)
    flat.module.eval()
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            x = federation.transform.evaluate(x)
            outputs = flat.module(flat.prepared(x))
            federation.head.loss(outputs, labels[chosen])
    except TardigradError:
        raise
    except Exception as error:
        raise ConfigError(
            f"model: it does not fit the data, whose examples are {tuple(x.shape[1:])} of {x.dtype} and "
            f"whose labels are {labels.dtype} ({type(error).__name__}: {str(error).splitlines()[0]})"
        ) from None
    if isinstance(federation.head, MultiClass) and federation.classes > outputs.shape[1]:
        raise ConfigError(
            f"model: it has {outputs.shape[1]} outputs, but the labels go up to {federation.classes - 1}; "
            "labels count from 0"
        )
