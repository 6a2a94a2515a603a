"""Rules that involve several tables of a config: defaults that depend on other tables, and combinations that
are refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tardigrad.algorithms.algorithm import Individual, SumOnly
from tardigrad.core.bookkeeping import Buffer
from tardigrad.core.momentum_approximation import Approximation
from tardigrad.core.pace import (
    Arrivals,
    Asynchronous,
    Pace,
    Poisson,
    Queued,
    SampledStaleness,
    Scripted,
    Synchronous,
)
from tardigrad.core.plural import counted
from tardigrad.data.sets.own_files import Files
from tardigrad.encodings.common_grid import Grid
from tardigrad.encodings.kinds import AnyEncoding
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.secure_rules import check_secure
from tardigrad.privacy.settings import LocalPrivacy
from tardigrad.simulation.availability import Always
from tardigrad.simulation.delay import read_trace

if TYPE_CHECKING:
    from tardigrad.experiments.config.schema import Config


def buffer_for(algorithm: SumOnly | Individual, pace: Pace, buffer: Buffer) -> Buffer:
    """Return the buffer with the size and the staleness bound that follow from algorithm and pace."""
    algorithm.check_pace(pace, buffer)
    if isinstance(pace, Synchronous):
        if buffer.size not in (None, pace.cohort):
            raise ConfigError(
                f"buffer.size: a synchronous round is closed by its cohort ({pace.cohort}); "
                f"leave buffer.size out, or set it to {pace.cohort}, not {buffer.size}"
            )
        size = pace.cohort
    else:
        size = buffer.size or algorithm.default_buffer
    if not isinstance(pace, Poisson) or buffer.size is not None:
        buffer = buffer.model_copy(update={"size": size})
    if buffer.staleness_bound is None and algorithm.default_staleness_bound is not None:
        buffer = buffer.model_copy(update={"staleness_bound": algorithm.default_staleness_bound})
    if algorithm.single_upload and buffer.size != 1:
        if isinstance(pace, Synchronous):
            raise ConfigError(
                f"pace.cohort: {algorithm.name} moves the model at every upload, and a round of "
                f"{pace.cohort} has one step; give another pace, such as 'asynchronous', or a cohort of 1"
            )
        raise ConfigError(
            f"buffer.size: {algorithm.name} moves the model at every upload, so it must be 1; "
            + (f"{buffer.size} was given" if buffer.size else "set it, or this pace takes all who joined")
        )
    return buffer


def encoding_for(
    encoding: AnyEncoding, algorithm: SumOnly | Individual, buffer: Buffer, population: int
) -> AnyEncoding:
    """Return the encoding, a grid with the largest number of uploads that a sum can have."""
    if not isinstance(encoding, Grid):
        return encoding
    if buffer.weights != "equal":
        raise ConfigError(
            "buffer.weights: on the common grid (encoding.kind 'grid') uploads weigh by their staleness "
            "alone, because sums of larger weights could overflow; leave it out"
        )
    sizes = [buffer.size or population, population if algorithm.opening else 0]
    return encoding.for_uploads(max(sizes))


def check_tables(config: Config, pace: Pace, population: int) -> None:
    """Raise a ConfigError if the tables of a resolved config do not fit each other or the population."""
    check_secure(config)
    _check_sampled_staleness(config, pace)
    _check_network(config, pace)
    _check_that_time_passes(config, pace)
    _check_that_steps_happen(config, pace)
    _check_population(config, pace, population)
    _check_optimiser(config)
    _check_privacy(config)
    _check_encoding(config)


def _check_sampled_staleness(config: Config, pace: Pace) -> None:
    bound = config.buffer.staleness_bound
    if isinstance(pace, SampledStaleness) and (
        config.delay.give_up or (bound is not None and bound < pace.maximum)
    ):
        raise ConfigError(
            "pace.kind 'sampled_staleness' draws the staleness of uploads that count: it needs "
            "delay.give_up = 0 and no buffer.staleness_bound below pace.maximum"
        )


def _check_network(config: Config, pace: Pace) -> None:
    used = [
        name
        for name, own in (("network", config.network), ("availability", config.availability))
        if own is not None and not isinstance(own, Always)
    ]
    if used and isinstance(pace, SampledStaleness | Scripted):
        raise ConfigError(
            f"{used[0]}: pace.kind {pace.kind!r} says itself when each trip starts and ends, so that "
            f"nothing is "
            f"left to simulate; leave [{used[0]}] out, or use another pace, such as 'asynchronous'"
        )


def _check_that_time_passes(config: Config, pace: Pace) -> None:
    stop, delay = config.stop, config.delay
    longest = {"constant": "duration", "uniform": "high"}.get(delay.kind)
    if (
        stop.trips is None
        and stop.steps is None
        and longest is not None
        and getattr(delay, longest) == 0
        and config.network is None
        and not isinstance(pace, Arrivals | Scripted | SampledStaleness)
    ):
        raise ConfigError(
            f"stop.virtual_time: with delay.{longest} = 0 no time passes and the run never ends; "
            "give stop.trips or stop.steps too"
        )


def _check_that_steps_happen(config: Config, pace: Pace) -> None:
    size, trips = config.buffer.size, config.stop.trips
    if size is None:
        return
    if isinstance(pace, Queued) and pace.concurrency < size:
        raise ConfigError(
            f"pace.concurrency: must be at least buffer.size ({size}), or no step can ever be made; "
            f"{pace.concurrency} was given"
        )
    if trips is not None and size > trips:
        raise ConfigError(
            f"buffer.size: {size} uploads make a step, but the run stops after {counted(trips, 'trip')} "
            f"(stop.trips): the model would never move; give at most {trips}"
        )
    if isinstance(pace, Scripted):
        script = len(pace.trips or read_trace(pace.file or Path(), "pace.file"))
        if size > script:
            raise ConfigError(
                f"buffer.size: {size} uploads make a step, but the script has {counted(script, 'trip')}: "
                f"the model would never move; give at most {script}"
            )


def _check_optimiser(config: Config) -> None:
    reason, kind = config.algorithm.assumes_sgd, config.local.optimiser.kind
    if reason is not None and kind != "sgd":
        raise ConfigError(
            f"local.optimiser: {config.algorithm.name} needs 'sgd', not {kind!r}, because {reason}; leave it "
            "out, or use an algorithm that only averages deltas, such as 'fedbuff' or 'fedavg'"
        )


def _check_privacy(config: Config) -> None:
    privacy, algorithm = config.privacy, config.algorithm
    if privacy is None:
        return
    name = algorithm.name
    if isinstance(config.data, Files) and config.data.finds_statistics:
        raise ConfigError(
            "data.prepare.constants: with privacy they must be given, because statistics of the clients' "
            "data are outside of what is promised; `tardigrad data prepare` writes them from public data"
        )
    if config.buffer.weights != "equal":
        raise ConfigError(
            "buffer.weights: with privacy all clients weigh the same, because the number of examples is "
            "private too; leave it out"
        )
    if algorithm.uses_local_steps and config.local.steps is None:
        raise ConfigError(
            f"local.steps: {name} derives its step sizes from the number of local steps, and epochs "
            "would tell how many examples the clients have; give steps"
        )
    if isinstance(privacy, LocalPrivacy):
        return
    if not isinstance(algorithm, SumOnly):
        raise ConfigError(
            f"privacy.kind: {name} looks at every upload by itself, so noise on their sum does not "
            "protect them; use privacy.kind 'local', or an algorithm that needs only the sum ('fedbuff')"
        )
    if privacy.versions == "private":
        if not algorithm.uses_versions:
            raise ConfigError(
                "privacy.versions: 'private' is for fedbuff with momentum approximation, which uses the "
                "versions of uploads; leave it out"
            )
        momentum = getattr(algorithm, "momentum", None)
        if isinstance(momentum, Approximation) and momentum.ridge == 0:
            raise ConfigError(
                "algorithm.momentum.ridge: with private versions no row is sure to have a fresh upload; "
                "give more than 0, such as 0.001"
            )
        bound = config.buffer.staleness_bound
        if bound is not None and algorithm.law(bound) == 0:
            raise ConfigError(
                "buffer.staleness_bound: with private versions every upload that is accepted must have a "
                f"weight, and {algorithm.law.kind} gives one of staleness {bound} none; give a smaller bound"
            )
    if config.buffer.size is None and (algorithm.remembers or algorithm.uses_member_count):
        raise ConfigError(
            f"buffer.size: {name} uses how many uploads a step has, which is private where all who "
            "joined make a step; give a size"
        )


def _check_encoding(config: Config) -> None:
    if isinstance(config.privacy, LocalPrivacy) and config.encoding.feeds_back:
        raise ConfigError(
            "encoding.error_feedback: with local privacy an upload is mostly noise, and so is what its "
            "encoding loses; a client would send the noise of earlier uploads again with each later one; set "
            "it to false, or use 'int8', which is right on average"
        )


def _check_population(config: Config, pace: Pace, population: int) -> None:
    size, share = config.buffer.size, config.buffer.share
    if isinstance(pace, Synchronous):
        selected = pace.selected or pace.cohort
        if selected > population:
            key = "pace.selected" if pace.selected else "pace.cohort"
            raise ConfigError(f"{key}: {selected} clients a round, but there are {population}")
    if isinstance(pace, Poisson) and pace.probability * population < 0.01:
        raise ConfigError(
            f"pace.probability: of {population} clients {pace.probability * population:g} would join "
            f"at a step on average; give at least {1 / population:g}, for one"
        )
    if config.algorithm.opening:
        if isinstance(pace, SampledStaleness):
            raise ConfigError(
                "pace.kind 'sampled_staleness' draws the version that a trip starts from, which does "
                "not go with algorithm.first_pass; use another pace, or first_pass = false"
            )
        if config.stop.trips is not None and size is not None and config.stop.trips < population + size:
            raise ConfigError(
                f"stop.trips: the first pass takes a trip of each of {population} clients, so the model "
                f"would not move in {config.stop.trips} trips; give at least {population + size}"
            )
    if isinstance(pace, SampledStaleness) and size is not None:
        needed = (pace.maximum + 1) * size + ((size - 1) // share if share is not None else 0)
        if needed > population:
            raise ConfigError(
                f"pace.maximum: a staleness of up to {pace.maximum} with buffer.size {size} keeps up to "
                f"{needed} clients at work, but there are {population}, and each makes one trip at a time"
            )
    if isinstance(pace, Asynchronous | Queued) and pace.concurrency > population:
        raise ConfigError(
            f"pace.concurrency: {pace.concurrency} clients at work, but there are {population}, "
            f"and each makes one trip at a time; give at most {population}"
        )
    if share == 1 and size is not None and size > population:
        key = "once_per_client" if config.buffer.once_per_client else "most_per_client"
        raise ConfigError(
            f"buffer.size: {size} different clients make a step (buffer.{key}), "
            f"but there are {population}; give at most {population}"
        )
    if share is not None and size is not None and size > share * population:
        raise ConfigError(
            f"buffer.most_per_client: with {share} uploads of each of {population} clients a buffer of "
            f"{size} is never full; give at least {-(-size // population)}"
        )
    config.algorithm.check_population(population)
