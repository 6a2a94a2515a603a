"""The network in virtual time: how long a client's download and upload take.

Every client has a bandwidth in each direction, which is drawn once. A trip's duration is download + training
+ upload; `delay` is the law of the training alone if there is a network. Times are in seconds, because
bandwidths are in bytes per second.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PositiveFloat, model_validator

from tardigrad.core.download_sizes import DownloadSizes
from tardigrad.core.draws import BLOCK, key
from tardigrad.core.setting import Setting
from tardigrad.data.clients import Clients
from tardigrad.simulation.delay import Delay, Durations
from tardigrad.simulation.device_profiles import DEVICES, LATENCY, MIXES, SPREAD
from tardigrad.simulation.trace_file import TraceRow, read_rows

ASYMMETRY = 10.0
"""The download bandwidth of a client over its upload bandwidth, where a law is given for only one of them."""

SLOWEST = 1e-3
"""The smallest bandwidth in bytes per second. With a far smaller one, times would not be finite."""

Rate = Annotated[float, Field(ge=SLOWEST)]
Block = Callable[[int, int], NDArray[np.float64]]
"""block(first, n): a number for each of n clients, from this one on. It is asked only for whole blocks."""


class _Bandwidth(Setting):
    @abstractmethod
    def rates(self, direction: str, seed: int) -> Block:
        """Return the clients' bandwidths in bytes per second. `direction`: "download" or "upload"."""


class ConstantBandwidth(_Bandwidth):
    """Every client has the same bandwidth. A number alone means this."""

    kind: Literal["constant"] = "constant"
    rate: Rate
    """Bytes per second."""

    def rates(self, direction: str, seed: int) -> Block:
        return lambda first, n: np.full(n, self.rate)


class LogNormalBandwidth(_Bandwidth):
    """Log-normal over the clients: a few are very slow, for good."""

    kind: Literal["log_normal"] = "log_normal"
    median: Rate
    """The median bandwidth, in bytes per second."""
    spread: float = Field(default=1.0, gt=0, le=10)
    """Standard deviation of the logarithm."""

    def rates(self, direction: str, seed: int) -> Block:
        return lambda first, n: self.median * _random(seed, direction, first).lognormal(0.0, self.spread, n)


class BandwidthTrace(_Bandwidth):
    """Measured bandwidths: those of the client's row, or of a random row if the file has none of this
    client."""

    kind: Literal["trace"] = "trace"
    file: Path
    """A CSV file with the columns client, download, upload, of which the column of this direction is read;
    clients are counted from 0, and bandwidths are in bytes per second."""

    def rates(self, direction: str, seed: int) -> Block:
        own = read_bandwidths(self.file, direction)
        rows = np.array(list(own.values()))

        def block(first: int, n: int) -> NDArray[np.float64]:
            drawn = _random(seed, "bandwidth row", first).random(n)  # the same row in both directions
            rates = rows[(drawn * len(rows)).astype(int)]
            for client in range(first, first + n):
                if client in own:
                    rates[client - first] = own[client]
            return rates

        return block


def _random(seed: int, purpose: str, first: int) -> np.random.Generator:
    return np.random.default_rng(key(seed, purpose, first))


def _rate(value: object) -> object:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"kind": "constant", "rate": value} if number else value


Bandwidth = Annotated[
    ConstantBandwidth | LogNormalBandwidth | BandwidthTrace,
    Field(discriminator="kind"),
    BeforeValidator(
        _rate, json_schema_input_type=float | ConstantBandwidth | LogNormalBandwidth | BandwidthTrace
    ),
]


class Network(Setting):
    """The bandwidth of the clients and of the server. Times are in seconds if there is a network.

    >>> Network(download=2_500_000).download
    ConstantBandwidth(kind='constant', rate=2500000.0)
    """

    download: Bandwidth | None = None
    """The clients' bandwidth for downloads, in bytes per second: a number, or a law over the clients.
    Default: ten times the client's upload bandwidth."""
    upload: Bandwidth | None = None
    """The same for uploads. Default: a tenth of the client's download bandwidth."""
    profile: str | dict[str, PositiveFloat] | None = None
    """Devices in place of `download` and `upload`: the name of a device or of a mix of devices, or a share
    for each device, such as {old_phone = 0.3, new_phone = 0.7} (docs/network.md has the table)."""
    latency: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """Seconds that pass before the first byte of a download arrives, and again of an upload. Default: 0, or
    0.04 with a profile."""
    server_uplink: Rate | None = None
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
    """The bytes of a whole version."""
    up: int
    difference: int | None = None
    """The bytes of the difference to the next version, if a client that has a version downloads only that."""


class TripTimes(NamedTuple):
    """How long the parts of one trip take, in virtual time. The trip may take longer, because it waits for
    the server's uplink or for an earlier task of its client."""

    download: float
    compute: float
    upload: float


class Links:
    """The network of a population: how long each client's download and upload take.

    >>> links = Links(Network(download=1000, upload=100, latency=0.5), seed=0, size=TripBytes(2000, 2000))
    >>> links.seconds(client=7)
    (2.5, 20.5)
    """

    def __init__(self, network: Network, seed: int, size: TripBytes) -> None:
        if network.profile is not None:
            devices = _Devices(network, seed)
            self._latency = LATENCY if network.latency is None else network.latency
            self._down = self._seconds(devices.rates("download"), size.down)
            self._up = self._seconds(devices.rates("upload"), size.up)
        else:
            down = None if network.download is None else network.download.rates("download", seed)
            up = None if network.upload is None else network.upload.rates("upload", seed)
            self._latency = network.latency or 0.0
            self._down = self._seconds(down or up, size.down / (1.0 if down else ASYMMETRY))
            self._up = self._seconds(up or down, size.up * (1.0 if up else ASYMMETRY))
        self.server_seconds = 0.0 if network.server_uplink is None else size.down / network.server_uplink
        """How long the server's uplink is occupied by a download of a whole version; 0 if it has no limit."""
        self.downloads = None if size.difference is None else DownloadSizes(size.down, size.difference)
        """The sizes of downloads, if they are not all of whole versions."""

    def _seconds(self, rates: Block | None, size: float) -> _ByClient:
        assert rates is not None, "a network has a profile or a bandwidth"
        return _ByClient(lambda first, n: self._latency + size / rates(first, n))

    def seconds(self, client: int, share: float = 1.0) -> tuple[float, float]:
        """Return how long the client's download and its upload take, if nobody else needs the server.
        `share`: the size of the download over that of a whole version."""
        down = self._down[client]
        if share != 1.0:
            down = self._latency + share * (down - self._latency)
        return down, self._up[client]

    def behind_uplink(self, seconds: float, share: float = 1.0) -> float:
        """Return how long a download takes from when the server begins to send it, which would take so many
        seconds if the server were infinitely fast."""
        return max(seconds, self._latency + share * self.server_seconds)


class _ByClient:
    """A number for each client, worked out for a block of clients at once."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._blocks: dict[int, list[float]] = {}

    def __getitem__(self, client: int) -> float:
        number, offset = divmod(client, BLOCK)
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = self._block(number * BLOCK, BLOCK).tolist()
        return block[offset]


class _Devices:
    """The device of each client."""

    def __init__(self, network: Network, seed: int) -> None:
        shares = network.devices()
        self._seed, self._names = seed, list(shares)
        self._bounds = np.cumsum(list(shares.values()))[:-1]

    def column(self, name: str) -> Block:
        """Return a number of the clients' devices, such as "compute"."""
        values = np.array([getattr(DEVICES[device], name) for device in self._names])

        def block(first: int, n: int) -> NDArray[np.float64]:
            drawn = _random(self._seed, "device profile", first).random(n)
            chosen: NDArray[np.float64] = values[np.searchsorted(self._bounds, drawn, "right")]
            return chosen

        return block

    def rates(self, direction: str) -> Block:
        """Return the clients' bandwidths, which are spread around those of their devices."""
        typical = self.column(direction)

        def block(first: int, n: int) -> NDArray[np.float64]:
            return typical(first, n) * _random(self._seed, "network spread", first).lognormal(0.0, SPREAD, n)

        return block


def durations_of(delay: Delay, network: Network | None, clients: Clients, seed: int) -> Durations:
    """Return the durations of training: those of the delay law, times the factor of the client's device."""
    factor: Callable[[int], float] | None = None
    if network is not None and network.profile is not None:
        factor = _ByClient(_Devices(network, seed).column("compute")).__getitem__
    return Durations(delay, clients, seed, factor)


def read_bandwidths(file: Path, column: str) -> dict[int, float]:
    """Return the bandwidth of every client of a file. Raise a ConfigError that names the line if a row is
    malformed."""
    found: dict[int, float] = {}

    def parse(row: TraceRow) -> None:
        client, rate = row.client(), row.number(column)
        if not SLOWEST <= rate < float("inf"):
            raise ValueError(f"a bandwidth must be {SLOWEST} or more and finite; {rate} was given")
        if client < 0 or client in found:
            raise ValueError(f"client {client}: give one row for each, counted from 0")
        found[client] = rate

    read_rows(file, f"network.{column}.file", ("client", column), "rows", parse)
    return found
