"""The network in virtual time: how long a client's download and upload take.

Every client has a bandwidth in each direction, which is drawn once. A trip's duration is download + training +
upload; `delay` is the law of the training alone if there is a network. Times are in seconds, because
bandwidths are in bytes per second.
"""

from __future__ import annotations

import csv
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, model_validator

from tardigrad.core.draws import Draws, uniform
from tardigrad.core.setting import Setting
from tardigrad.data.clients import Clients
from tardigrad.errors import ConfigError
from tardigrad.simulation.delay import Delay, Durations, client_number
from tardigrad.simulation.device_profiles import DEVICES, LATENCY, MIXES, SPREAD

ASYMMETRY = 10.0
"""The download bandwidth of a client over its upload bandwidth, where a law is given for only one of them."""


class _Bandwidth(Setting):
    @abstractmethod
    def sample(self, random: np.random.Generator, n: int) -> np.ndarray:
        """Return the bandwidths of n clients, in bytes per second."""


class ConstantBandwidth(_Bandwidth):
    """Every client has the same bandwidth. A number alone means this."""

    kind: Literal["constant"] = "constant"
    rate: PositiveFloat
    """Bytes per second."""

    def sample(self, random: np.random.Generator, n: int) -> np.ndarray:
        return np.full(n, self.rate)


class LogNormalBandwidth(_Bandwidth):
    """Log-normal over the clients: a few are very slow, for good."""

    kind: Literal["log_normal"] = "log_normal"
    median: PositiveFloat
    """The median bandwidth, in bytes per second."""
    spread: PositiveFloat = 1.0
    """Standard deviation of the logarithm."""

    def sample(self, random: np.random.Generator, n: int) -> np.ndarray:
        return self.median * random.lognormal(0.0, self.spread, n)


class BandwidthTrace(_Bandwidth):
    """Measured bandwidths: that of the client's row, or of a random row if the file has none of this client.
    If both directions have a file of the same length, both are from the same row."""

    kind: Literal["trace"] = "trace"
    file: Path
    """A CSV file with the columns client, download, upload, of which the column of this direction is read;
    clients are counted from 0, and bandwidths are in bytes per second."""

    def sample(self, random: np.random.Generator, n: int) -> np.ndarray:
        return random.random(n)  # selects one of the rows


def _rate(value: object) -> object:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"kind": "constant", "rate": value} if number else value


Bandwidth = Annotated[
    ConstantBandwidth | LogNormalBandwidth | BandwidthTrace,
    Field(discriminator="kind"),
    BeforeValidator(_rate),
]


class Network(Setting):
    """The bandwidth of the clients and of the server. Times are in seconds if there is a network.

    >>> Network(download=2_500_000).download
    ConstantBandwidth(kind='constant', rate=2500000.0)
    """

    download: Bandwidth | None = None
    """The clients' bandwidth for downloads, in bytes per second: a number, or a law over the clients. Default:
    ten times the client's upload bandwidth."""
    upload: Bandwidth | None = None
    """The same for uploads. Default: a tenth of the client's download bandwidth."""
    profile: str | dict[str, PositiveFloat] | None = None
    """Devices in place of `download` and `upload`: the name of a device or of a mix of devices, or a share for
    each device, such as {old_phone = 0.3, new_phone = 0.7} (docs/network.md has the table)."""
    latency: NonNegativeFloat | None = None
    """Seconds that pass before the first byte of a download arrives, and again of an upload. Default: 0, or
    that of the device with a profile."""
    server_uplink: PositiveFloat | None = None
    """Bytes per second that all downloads share; they are sent one after the other, in the order in which
    clients start. Default: no limit."""

    @model_validator(mode="after")
    def _one_source(self) -> Network:
        given = self.download is not None or self.upload is not None
        if (self.profile is not None) == given:
            raise ValueError(
                "give either the clients' bandwidth in bytes per second (download, upload, or both), or a "
                "profile, such as 'phones'"
            )
        if self.profile is not None:
            self.devices()
        return self

    def devices(self) -> dict[str, float]:
        """Return the share of each device of the profile; the shares add up to 1."""
        profile = self.profile
        if isinstance(profile, str):
            profile = MIXES.get(profile, {profile: 1.0})
        shares = dict(profile or {})
        unknown = [name for name in shares if name not in DEVICES]
        if unknown or not shares:
            raise ValueError(
                f"profile: there is no device {', '.join(map(repr, unknown)) or 'in it'}; known are "
                f"{', '.join(DEVICES)}, and the mixes {', '.join(MIXES)}"
            )
        whole = sum(shares.values())
        return {name: share / whole for name, share in shares.items()}


class TripBytes(NamedTuple):
    """The size of one trip's messages."""

    down: int
    up: int


class TripTimes(NamedTuple):
    """How long the parts of one trip take, in virtual time. The trip may take longer, because it waits for the
    server's uplink or for an earlier task of its client."""

    download: float
    compute: float
    upload: float


class Links:
    """The network of a population: how long each client's download and upload take."""

    def __init__(self, network: Network, seed: int, size: TripBytes) -> None:
        self._network, self._size = network, size
        self._devices = _Devices(network, seed) if network.profile is not None else None
        self._spread = Draws(seed, "network spread", lambda random, n: random.lognormal(0.0, SPREAD, n))
        self._down = None if network.download is None else _Rates(network.download, "download", seed)
        self._up = None if network.upload is None else _Rates(network.upload, "upload", seed)
        self._latency = network.latency or 0.0
        if network.latency is None and network.profile is not None:
            self._latency = LATENCY
        self.server_seconds = 0.0 if network.server_uplink is None else size.down / network.server_uplink
        """How long the server's uplink is occupied by one download; 0 if it has no limit."""

    def rates(self, client: int) -> tuple[float, float]:
        """Return the client's bandwidth for downloads and for uploads, in bytes per second."""
        if self._devices is not None:
            device, spread = DEVICES[self._devices.name(client)], self._spread[client]
            return device.download * spread, device.upload * spread
        if self._down is None:
            assert self._up is not None, "a network has a profile or a bandwidth"
            up = self._up(client)
            return ASYMMETRY * up, up
        down = self._down(client)
        return down, down / ASYMMETRY if self._up is None else self._up(client)

    def seconds(self, client: int) -> tuple[float, float]:
        """Return how long the client's download and its upload take, if nobody else needs the server."""
        down, up = self.rates(client)
        return self._latency + self._size.down / down, self._latency + self._size.up / up

    def behind_uplink(self, seconds: float) -> float:
        """Return how long a download takes from when the server begins to send it, which would take so many
        seconds if the server were infinitely fast."""
        return max(seconds, self._latency + self.server_seconds)


class _Rates:
    """A law of bandwidths over the clients."""

    def __init__(self, law: ConstantBandwidth | LogNormalBandwidth | BandwidthTrace, column: str, seed: int):
        self._of_client: dict[int, float] = {}
        self._rows: list[float] = []
        purpose = column
        if isinstance(law, BandwidthTrace):
            self._of_client = read_bandwidths(law.file, column)
            self._rows = list(self._of_client.values())
            purpose = "bandwidth row"  # the same row for both directions
        self._draws = Draws(seed, purpose, law.sample)

    def __call__(self, client: int) -> float:
        if self._rows:
            own = self._of_client.get(client)
            return self._rows[int(self._draws[client] * len(self._rows))] if own is None else own
        return self._draws[client]


class _Devices:
    """The device of each client."""

    def __init__(self, network: Network, seed: int) -> None:
        shares = network.devices()
        self._names = list(shares)
        self._bounds = list(accumulate(shares.values()))[:-1]
        self._draws = Draws(seed, "device profile", uniform)

    def name(self, client: int) -> str:
        return self._names[bisect_right(self._bounds, self._draws[client])]


def durations_of(delay: Delay, network: Network | None, clients: Clients, seed: int) -> Durations:
    """Return the durations of training: those of the delay law, times the factor of the client's device."""
    factor: Callable[[int], float] | None = None
    if network is not None and network.profile is not None:
        devices = _Devices(network, seed)
        factor = lambda client: DEVICES[devices.name(client)].compute  # noqa: E731
    return Durations(delay, clients, seed, factor)


def read_bandwidths(file: Path, column: str) -> dict[int, float]:
    """Return the bandwidth of every client of a file. Raise a ConfigError that names the line if a row is
    malformed."""
    key = f"network.{column}.file"
    if not file.is_file():
        raise ConfigError(f"{key}: there is no file {file}; give a CSV with the columns client,{column}")
    found: dict[int, float] = {}
    with file.open(newline="", encoding="utf-8", errors="replace") as lines:
        rows = csv.DictReader(lines)
        try:
            if not {"client", column} <= set(rows.fieldnames or ()):
                raise ConfigError(
                    f"{key}: {file} has the columns {', '.join(rows.fieldnames or ['none'])[:200]}; "
                    f"it must have client and {column} in its first line"
                )
            for row in rows:
                client, rate = client_number(row["client"]), float(row[column])
                if not 0 < rate < float("inf"):
                    raise ValueError(f"a bandwidth must be more than 0 and finite; {rate} was given")
                if client < 0:
                    raise ValueError(f"client is {client}; clients are counted from 0")
                if client in found:
                    raise ValueError(f"client {client} is there a second time; give one row for each")
                found[client] = rate
        except (TypeError, ValueError, csv.Error) as error:
            raise ConfigError(f"{key}: {file}, line {rows.line_num}: {error}") from None
    if not found:
        raise ConfigError(f"{key}: {file} has no rows")
    return found
