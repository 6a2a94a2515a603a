"""Forecast a run without training, with the planner alone: what a choice of K, concurrency or delays means.

Delays do not depend on parameters. So bookkeeping in virtual time finds out in seconds how stale uploads
would be, how often the model would move, how often clients would take part, and the cost in bytes and
privacy."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.core.download_sizes import DownloadSizes
from tardigrad.core.outcomes import Accepted, GivenUp, Rejected, Ticket
from tardigrad.data.clients import Clients, Federation
from tardigrad.errors import ConfigError, TardigradError
from tardigrad.experiments.config.reading import parse_config, read_toml
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.assembly import make_bookkeeping, situation_of
from tardigrad.experiments.runs.model_and_data import make_federation, make_module
from tardigrad.experiments.runs.traffic import shared_vectors, trip_bytes, upload_layers
from tardigrad.learning.flat import FlatModule
from tardigrad.privacy.accounting import ByParticipation
from tardigrad.privacy.blt import BLT
from tardigrad.privacy.keys import NoiseKeys
from tardigrad.privacy.settings import Participation
from tardigrad.simulation.delay import Durations
from tardigrad.simulation.network import Links, TripBytes, durations_of
from tardigrad.simulation.planner import Planner
from tardigrad.simulation.presence import Presence
from tardigrad.simulation.roster import make_presence

MOST_TRIPS = 100_000
"""Trips that are planned unless another number is asked for; a longer run goes on as it does there."""
EPSILON_NOISE = 10.0
"""The noise multiplier for which epsilon is told, where the config names none."""


@dataclass(frozen=True)
class Forecast:
    """The consequences of one setting."""

    settings: dict[str, str]
    """The settings that differ between the forecasts."""
    trips: int
    steps: int
    virtual_time: float
    steps_per_time: float
    trips_per_time: float
    megabytes_up: float | None
    """The size of one upload in megabytes; None if the size of the model is not known."""
    megabytes_down: float | None
    """The mean size of one download in megabytes."""
    megabytes_per_time: float | None
    """Downloads and uploads together; None if the size of the model is not known."""
    in_flight: float
    """Clients at work, on average over time."""
    staleness_mean: float
    staleness_median: float
    staleness_95: float
    staleness_max: int
    refused: dict[str, int]
    given_up: int
    split: dict[str, float] | None
    """Mean time of a trip that ended with an upload: "download", "compute", "upload", and "waiting" for the
    server's uplink or an earlier task. None without a network."""
    never_there: int
    """Clients that were not there at any time until the end of the plan."""
    clients_taking_part: int
    participations_max: int
    """The number of participations of the client that took part most often."""
    separation_min: int | None
    """Fewest steps between two contributions of one client; None if no client came twice."""
    fast_over_slow: float | None
    """Contributions of the faster half of the clients over those of the slower; None if all are alike."""
    rich_over_poor: float | None
    """The same for clients with many examples over those with few."""
    epsilon: float | None
    """The privacy cost of those participations with the noise multiplier of the config (or 10), at its delta
    (or 1e-7); None beyond the limits of BLT noise."""

    def summary(self) -> dict[str, object]:
        """Return all numbers by name."""
        return asdict(self)


def forecasts(
    file: Path, grid: Sequence[str], trips: int | None, settings: Sequence[str] = ()
) -> Iterator[Forecast]:
    """Yield a forecast for each combination of the grid ("buffer.size=1,10,100")."""
    axes = [_axis(text) for text in grid]
    for values in itertools.product(*(options for _, options in axes)):
        chosen = dict(zip((name for name, _ in axes), values))
        changes = [*settings, *(f"{name}={value}" for name, value in chosen.items())]
        config = parse_config(read_toml(file, f"`tardigrad init {file}` writes one"), str(file), changes)
        yield forecast(config, trips, chosen)


def _axis(text: str) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=")
    options = [value.strip() for value in values.split(",") if value.strip()]
    if not equals or not options:
        raise ConfigError(f"--grid {text}: must be KEY=VALUE,VALUE,..., such as buffer.size=1,10,100")
    return name.strip(), options


def forecast(config: Config, trips: int | None = None, chosen: dict[str, str] | None = None) -> Forecast:
    """Return the forecast of a config, by running the planner for so many trips. Default: those of the run,
    but at most `MOST_TRIPS`."""
    if config.data is None:
        raise ConfigError("data: a plan needs to know the clients; name a data set (synthetic will do)")
    federation = make_federation(config)
    clients = federation.clients
    config = config.resolved(len(clients))
    limits, size = None, config.buffer.size or 1
    if trips is None:
        steps = MOST_TRIPS if config.stop.steps is None else config.stop.steps * size
        trips = min(MOST_TRIPS, steps, config.stop.trips or MOST_TRIPS)
    if isinstance(config.privacy, Participation):
        limits = config.privacy.limits(max(1, trips // size))
    book = make_bookkeeping(config, len(clients), limits)
    durations = durations_of(config.delay, config.network, clients, config.seed)
    message, links = _bytes(config, federation), None
    if config.network is not None:
        if message is None:
            raise ConfigError("model: with a network a plan needs to know the size of the model; name one")
        links = Links(config.network, config.seed, message)
    presence = make_presence(config.availability, len(clients), config.seed)
    tally = _PlanCounts(Planner(book, clients, durations, config.seed, None, links, presence), message)
    tally.run(trips)
    return tally.forecast(config, clients, durations, message, links, presence, chosen or {})


def _bytes(config: Config, federation: Federation) -> TripBytes | None:
    """Return the size of a download and of an upload; None without a model."""
    if config.model is None:
        return None
    flat = FlatModule(make_module(config, None, federation), config.local.personal, config.local.batch_norm)
    layers = upload_layers(config, None, NoiseKeys(), None)
    situation = situation_of(config, federation.clients)
    shared = shared_vectors(config, flat.shared.dtype)
    return trip_bytes(Aggregator(config.algorithm, flat.shared, situation, None, layers, shared))


class _PlanCounts:
    """Count the events of the planner."""

    def __init__(self, planner: Planner, size: TripBytes | None) -> None:
        self._planner = planner
        self._sizes = None if size is None else DownloadSizes(size.down, size.difference)
        self._downloaded = 0  # bytes
        self._staleness: Counter[int] = Counter()
        self._steps_of: dict[int, list[int]] = {}
        self._refused: Counter[str] = Counter()
        self._given_up = self._trips = self._started = 0
        self._times = np.zeros(3)  # of download, training and upload, of all trips that ended with an upload
        self._work = 0.0  # client time at work
        self._whole = 0.0  # the same, of trips that ended with an upload
        self._now = 0.0

    def run(self, trips: int) -> None:
        while self._trips < trips:
            try:
                planned = self._planner.advance()
            except TardigradError:
                if not self._trips:
                    raise
                return  # no client is left: the plan ends here, with fewer trips
            if not planned:
                return
            for item in planned:
                if isinstance(item, Accepted | Rejected):
                    self._arrived(item)
                elif isinstance(item, GivenUp):
                    self._given_up += 1
                    self._work += item.time - item.ticket.time
                    self._now = item.time
                elif isinstance(item, Ticket):
                    self._started += 1
                    if self._sizes is not None:
                        self._downloaded += self._sizes.take(item.client, item.version)

    def _arrived(self, item: Accepted | Rejected) -> None:
        self._trips += 1
        self._now = item.time
        self._work += item.time - item.ticket.time
        self._whole += item.time - item.ticket.time
        assert isinstance(item.client, int)
        times = self._planner.times(item.trip, item.client)
        if times is not None:
            self._times += times
        if isinstance(item, Accepted):
            self._staleness[item.staleness] += 1
            self._steps_of.setdefault(item.client, []).append(item.step)
        else:
            self._refused[str(item.reason)] += 1

    def forecast(
        self,
        config: Config,
        clients: Clients,
        durations: Durations,
        size: TripBytes | None,
        links: Links | None,
        presence: Presence | None,
        chosen: dict[str, str],
    ) -> Forecast:
        counts = {client: len(steps) for client, steps in self._steps_of.items()}
        gaps = [b - a for steps in self._steps_of.values() for a, b in itertools.pairwise(steps)]
        most = max(counts.values(), default=0)
        separation = min(gaps) if gaps else None
        steps, now = self._planner.book.version, max(self._now, 1e-12)
        stale = np.repeat(list(self._staleness.keys()), list(self._staleness.values()))
        return Forecast(
            settings=chosen,
            trips=self._trips,
            steps=steps,
            virtual_time=self._now,
            steps_per_time=steps / now,
            trips_per_time=self._trips / now,
            megabytes_up=None if size is None else size.up / 1e6,
            megabytes_down=None if size is None else self._downloaded / max(self._started, 1) / 1e6,
            megabytes_per_time=None
            if size is None
            else (self._downloaded + self._trips * size.up) / now / 1e6,
            in_flight=self._work / now,
            staleness_mean=float(stale.mean()) if len(stale) else 0.0,
            staleness_median=float(np.median(stale)) if len(stale) else 0.0,
            staleness_95=float(np.quantile(stale, 0.95)) if len(stale) else 0.0,
            staleness_max=int(stale.max()) if len(stale) else 0,
            refused=dict(self._refused),
            given_up=self._given_up,
            split=None if config.network is None else self._split(),
            never_there=0 if presence is None else presence.never_there(self._now),
            clients_taking_part=len(counts),
            participations_max=most,
            separation_min=separation,
            fast_over_slow=_share(counts, len(clients), lambda c: -self._slowness(c, durations, links)),
            rich_over_poor=_share(counts, len(clients), clients.examples),
            epsilon=_epsilon(config, steps, most, separation),
        )

    def _slowness(self, client: int, durations: Durations, links: Links | None) -> float:
        """Return by what the faster clients are told from the slower ones: the factor of the device, or with
        a network the time of a typical trip."""
        factor = durations.factor(client)
        if links is None:
            return factor
        return sum(links.seconds(client)) + factor * float(self._times[1]) / max(self._trips, 1)

    def _split(self) -> dict[str, float]:
        trips = max(self._trips, 1)
        means = dict(zip(("download", "compute", "upload"), (self._times / trips).tolist()))
        whole = self._whole / trips
        waiting = whole - sum(means.values())
        return means | {"waiting": waiting if waiting > 1e-9 * whole else 0.0}  # else it is rounding


def _share(counts: dict[int, int], population: int, by: Callable[[int], float]) -> float | None:
    """Return the contributions of the upper half of the clients over those of the lower half. At most 10,000
    evenly spaced clients are counted."""
    seen = range(0, population, -(-population // 10_000))
    values = np.array([by(client) for client in seen], dtype=float)
    own = np.array([counts.get(client, 0) for client in seen], dtype=float)
    middle = np.median(values)
    upper, lower = own[values > middle], own[values < middle]
    if not len(upper) or not len(lower) or lower.mean() == 0:
        return None
    return float(upper.mean() / lower.mean())


def _epsilon(config: Config, steps: int, participations: int, separation: int | None) -> float | None:
    privacy = config.privacy
    noise = (privacy.noise_multiplier if privacy is not None else None) or EPSILON_NOISE
    delta = privacy.delta if privacy is not None else 1e-7
    kind = privacy.noise if isinstance(privacy, Participation) else BLT()
    if steps == 0 or separation == 0:  # a client is twice in one buffer: no guarantee is possible
        return None
    try:
        mode = ByParticipation(kind, max(1, participations), separation or steps)
        epsilon = mode.epsilon(noise, steps, delta)
    except ConfigError:
        return None
    return epsilon if math.isfinite(epsilon) else None
