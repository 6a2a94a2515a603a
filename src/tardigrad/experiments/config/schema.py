"""The tables of a config file, which are the same objects in Python."""

from __future__ import annotations

from typing import Annotated

import tomli_w
from pydantic import NonNegativeInt

from tardigrad.algorithms.registry import DEFAULT, AnyAlgorithm
from tardigrad.core.bookkeeping import Buffer
from tardigrad.core.pace import Pace
from tardigrad.core.setting import Setting, by_name
from tardigrad.core.stop import Stop
from tardigrad.data.catalogue import Source
from tardigrad.data.evaluation import Evaluation
from tardigrad.data.sets.digits import Digits
from tardigrad.encodings.broadcasts import AnyBroadcast, Float32Broadcast
from tardigrad.encodings.float32 import Float32
from tardigrad.encodings.kinds import AnyEncoding
from tardigrad.experiments.config.rules import buffer_for, check_tables, encoding_for
from tardigrad.experiments.config.secure_rules import resolved_secure, secure_buffer, secure_encoding
from tardigrad.learning.heads.head_choice import AnyHead
from tardigrad.learning.local import Local
from tardigrad.learning.models import MLP, Model
from tardigrad.privacy.settings import Privacy
from tardigrad.secure.secure_settings import Secure
from tardigrad.service.server.service_settings import ServiceSettings
from tardigrad.simulation.adversaries import Adversaries
from tardigrad.simulation.availability import Always, Availability
from tardigrad.simulation.delay import Delay, HalfNormal
from tardigrad.simulation.device import Device
from tardigrad.simulation.network import Network


class Config(Setting):
    """All settings of a run. Each field is a key or a table of the TOML file that `load_config` reads.

    A config is immutable, and unknown keys are refused. A table can be given as an object, as a dict, or by
    the name of its kind:

    >>> config = Config(seed=1, algorithm="fedbuff", stop={"trips": 500})
    >>> config.algorithm.lr, config.stop.trips
    (1.0, 500)
    """

    seed: NonNegativeInt = 0
    """Every random draw depends on it."""
    algorithm: AnyAlgorithm = DEFAULT
    """How the model moves. `tardigrad list algorithms`"""
    data: Source | None = Digits()
    """The data set and how it is divided among clients. `tardigrad list datasets`"""
    model: Model | None = MLP()
    """The model that is trained. `tardigrad list models`"""
    head: AnyHead | None = None
    """The task: the loss that clients minimise, and the metrics (docs/metrics.md). Default: that of the data.
    `tardigrad list heads`"""
    local: Local = Local()
    """How a client trains."""
    pace: Pace | None = None
    """Which clients may start when. Default: asynchronous, or synchronous for algorithms that work in rounds.
    `tardigrad list paces`"""
    buffer: Buffer = Buffer()
    """Which uploads count, and how many make a step."""
    delay: Delay = HalfNormal()
    """How long a trip takes; with a network, how long a client trains. `tardigrad list delays`"""
    network: Network | None = None
    """The clients' bandwidth, which makes downloads and uploads take time (docs/network.md). Default: they
    take none."""
    availability: Availability = Always()
    """In which windows of time clients are there (docs/network.md). `tardigrad list availability`"""
    adversaries: Adversaries | None = None
    """Clients of a simulation that send something else than what they trained (docs/adversaries.md).
    `tardigrad list adversaries`"""
    encoding: AnyEncoding = Float32()
    """How uploads travel: in fewer bytes (docs/encodings.md). `tardigrad list encodings`"""
    broadcast: AnyBroadcast = Float32Broadcast()
    """How versions travel to the clients: in fewer bytes (docs/encodings.md). `tardigrad list broadcasts`"""
    privacy: Privacy | None = None
    """The privacy that is promised to the clients. Default: none. `tardigrad list privacy`"""
    secure: Secure | None = None
    """Secure aggregation, in which the server sees only sums of uploads. Default: none."""
    device: Annotated[Device, by_name] = Device()
    """Where models and examples are: "cpu", or "cuda" (docs/gpu.md)."""
    stop: Stop = Stop(trips=2000)
    """When the run ends."""
    evaluation: Evaluation = Evaluation()
    """When and on what the model is evaluated."""
    service: ServiceSettings | None = None
    """Limits of `tardigrad serve` for its clients; a simulation does not use them."""

    def resolved(self, population: int) -> Config:
        """Return a copy with the defaults that depend on other settings, for this number of clients.

        Raises a ConfigError if the settings do not fit each other.
        """
        pace = self.pace if self.pace is not None else self.algorithm.default_pace(population)
        buffer = secure_buffer(self.secure, buffer_for(self.algorithm, pace, self.buffer))
        secure = resolved_secure(self.secure, buffer, self.privacy)
        data = None if self.data is None else self.data.resolved()
        given = self.encoding if secure is None else secure_encoding(secure, self.encoding, self.privacy)
        encoding = encoding_for(given, self.algorithm, buffer, population)
        tables = {"pace": pace, "buffer": buffer, "data": data, "encoding": encoding, "secure": secure}
        config = self.model_copy(update=tables)
        check_tables(config, pace, population)
        return config

    def to_toml(self) -> str:
        """Return the config as TOML, which `load_config` reads back."""
        tables = self.model_dump(mode="json", exclude_none=True)
        if self.secure is not None and "once_per_client" not in self.buffer.model_fields_set:
            del tables["buffer"]["once_per_client"]  # follows from [secure]
        return tomli_w.dumps(tables)
