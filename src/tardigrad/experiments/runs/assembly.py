"""The one assembly: the parts that a config, a model and data make, for all drivers.

A simulation (`simulation_assembly.py`) and a server (`server_assembly.py`) are built from the same
`Assembly`, and the plan uses its functions. An assembly writes nothing to disk: whatever can be refused about
a run is refused before the run's folder is created. Then the secrets are opened (`private_run.py`), and after
them the aggregator is built, which is given them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.algorithms.layers import Wire
from tardigrad.core.bookkeeping import Bookkeeping
from tardigrad.core.events import ModelEvaluated
from tardigrad.core.own_code import class_source
from tardigrad.core.participation import Limits
from tardigrad.core.situation import Situation
from tardigrad.core.staleness import RoundedLaw, StalenessLaw
from tardigrad.core.upload import Vectors
from tardigrad.data.clients import Clients, Federation
from tardigrad.data.tables.preparation import FILE, Preparation
from tardigrad.encodings.common_grid import Grid
from tardigrad.errors import ConfigError, RunError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.fingerprints import Inputs, fingerprints, model_classes
from tardigrad.experiments.runs.model_and_data import check_fit, check_personal
from tardigrad.experiments.runs.result import Result, RunTotals
from tardigrad.experiments.runs.run_folder import RunFolder
from tardigrad.experiments.runs.run_metrics import run_baseline, with_metrics
from tardigrad.experiments.runs.single_examples import check_single_examples
from tardigrad.experiments.runs.traffic import secure_layers, shared_vectors, trip_bytes, upload_layers
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.memory_format import choose_memory_format
from tardigrad.learning.models.own_model import is_own_model
from tardigrad.privacy.chosen import Chosen
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.keys import NoiseKeys
from tardigrad.privacy.layers.canaries import Canaries
from tardigrad.privacy.releases import digest_of
from tardigrad.privacy.settings import LocalPrivacy, Participation
from tardigrad.privacy.statement import NOTHING_PROMISED, statement
from tardigrad.secure.integer_noise import COARSER
from tardigrad.secure.policy import Policy
from tardigrad.secure.policy_of_run import SecureRun, grid_with_headroom
from tardigrad.secure.secure_statement import hidden_only, secure_aggregation
from tardigrad.simulation.adversaries import AdversaryLayer
from tardigrad.simulation.network import TripBytes

NOT_KNOWN = TripBytes(0, 0)

log = logging.getLogger("tardigrad.experiments")


@dataclass(frozen=True)
class Assembly:
    """The parts of a run that do not depend on its folder."""

    config: Config
    """Resolved."""
    federation: Federation | None
    """None on a server without data."""
    clients: Clients
    population: int
    flat: FlatModule
    situation: Situation
    guarantee: Guarantee | None
    """None if no privacy is promised."""
    preparation: Preparation | None = None
    """How tables are turned into features; None if examples are taken as they are."""
    declaration: str = ""
    """The requirements for a client of a server that has a table and no code, or a Flower app; "" if it needs
    other code."""
    trip_bytes: TripBytes = NOT_KNOWN
    """The size of a download and of an upload."""
    lengths: Mapping[str, int] = field(default_factory=dict)
    """The lengths of the vectors of an upload, in their order."""
    served: bool = False
    """Whether clients, and the helpers of a secure run, are elsewhere."""

    def inputs(self) -> Inputs:
        """Return fingerprints of what the config only names; a resumed run must have the same."""
        found = fingerprints(self.config, self.federation, self.flat)
        if self.serves_app:
            found["the app's config"] = hashlib.sha256(self.declaration.encode()).hexdigest()
        return found

    @property
    def serves_app(self) -> bool:
        """Whether the clients train with a Flower app, whose arrays and config are declared to them."""
        return bool(self.declaration) and self.preparation is None

    def own_source(self) -> str:
        """Return the source of the classes of algorithm, model and head that are the user's own."""
        head = () if self.federation is None else (type(self.federation.head),)
        return class_source([type(self.config.algorithm), *model_classes(self.flat), *head])

    def bookkeeping(self) -> Bookkeeping:
        """Return new bookkeeping."""
        limits = None if self.guarantee is None else self.guarantee.limits
        return make_bookkeeping(self.config, self.population, limits)

    def aggregator(self, keys: NoiseKeys, canaries: Canaries | None = None) -> Aggregator:
        """Return a new aggregator, with the layers of the encoding and of a private run."""
        if self.config.secure is None:
            layers = upload_layers(self.config, self.guarantee, keys, canaries)
        else:
            own = None if self.served else keys
            layers = secure_layers(self.secure_run(), self.start(), own, canaries)
        if self.config.adversaries is not None:  # what they send passes through all other layers
            encoded = self.guarantee is None and any(layer.wire != Wire() for layer in layers)
            layers = [AdversaryLayer(self.config.adversaries, self.config.seed, encoded), *layers]
        average = self.config.evaluation.model_average
        model = self.flat.shared.clone()
        shared = shared_vectors(self.config, model.dtype)
        return Aggregator(self.config.algorithm, model, self.situation, average, layers, shared)

    def start(self) -> Vectors:
        """Return version 0 as clients download it, where it travels as it is."""
        model = self.flat.shared.clone()
        return Aggregator(self.config.algorithm, model, self.situation).broadcast()

    def secure_run(self) -> SecureRun:
        """Return the settings of a secure run that its policy follows from."""
        config = self.config
        assert config.secure is not None
        assert config.pace is not None
        assert isinstance(config.encoding, Grid), "resolved"
        assert config.privacy is None or isinstance(config.privacy, Participation), "resolved"
        return SecureRun(
            config.secure, config.encoding, config.algorithm, config.pace, config.buffer, self.situation,
            self.lengths, config.privacy, self.guarantee, config.seed,
        )  # fmt: skip

    def policy(self, run: str, settings: str, helpers: tuple[str, ...], server: str) -> Policy:
        """Return the policy of a secure run.

        `run`: its identifier. `settings`: what tasks ask for. `helpers`, `server`: their identities.
        """
        start = digest_of(self.start())
        return self.secure_run().policy(run, settings, start, helpers, server, self.declaration)

    def privacy_text(self, steps: int | None = None) -> str:
        """Return the text of privacy.md: what is promised, and how much of it `steps` have used."""
        secure = None if self.config.secure is None else self.secure_run()
        if self.guarantee is None or self.config.privacy is None:
            return NOTHING_PROMISED if secure is None else hidden_only(secure, not self.served)
        aggregation = None if secure is None else secure_aggregation(secure, not self.served)
        return statement(
            self.guarantee, self.config.privacy, self.config.algorithm.name, self.population, steps,
            self.flat.has_personal, aggregation,
        )  # fmt: skip

    def write_texts(self, folder: RunFolder) -> None:
        """Write the files that say how the data was prepared and what privacy is promised."""
        if self.preparation is not None:
            folder.write(FILE, self.preparation.to_json())
        folder.write("privacy.md", self.privacy_text())

    def result(
        self,
        totals: RunTotals,
        wall_seconds: float,
        trips_per_second: float,
        profile: dict[str, float] | None = None,
        history: list[ModelEvaluated] | None = None,
    ) -> Result:
        """Return the result of a run that is over; raise a RunError if its model is not finite."""
        model = totals.model.cpu()
        if not torch.isfinite(model).all():
            raise RunError(
                f"the model is not finite at version {totals.version}: training has diverged; "
                "lower local.lr or algorithm.lr"
            )
        return Result(
            client_trips=totals.trips,
            steps=totals.version,
            virtual_time=totals.time,
            bytes=totals.bytes,
            bytes_up=totals.trips * self.trip_bytes.up,
            accuracy=totals.metrics.get("accuracy"),
            main=self.config.evaluation.metric.name,
            baseline=None
            if self.flat.has_personal
            else run_baseline(self.config, self.federation, self.served),
            loss=totals.metrics.get("loss"),
            model_sha256=hashlib.sha256(model.view(torch.uint8).numpy().data).hexdigest(),
            wall_seconds=round(wall_seconds, 3),
            profile=profile or {},
            trips_per_second=round(trips_per_second, 1),
            refused=totals.refused,
            given_up=totals.given_up,
            stopped_by=totals.stopped_by,
            epsilon=self._epsilon(totals.version),
            privacy_void=None if self.guarantee is None else self.guarantee.void,
            oracle=self.config.algorithm.oracle,
            metrics=totals.metrics,
            history=history or [],
            model=self.flat.state_dict(totals.model),
        )

    def _epsilon(self, steps: int) -> float | None:
        """Return the privacy loss of a run of so many steps."""
        if self.guarantee is None or self.guarantee.noise_multiplier == 0:
            return None
        local = isinstance(self.config.privacy, LocalPrivacy)  # an upload is released without a step, too
        return self.guarantee.epsilon(None if local else steps)


def assemble(
    config: Config,
    federation: Federation | None,
    module: nn.Module,
    clients: Clients,
    population: int,
    chosen: Chosen | None = None,
    served: bool = False,
) -> Assembly:
    """Put together the parts of a run.

    `config`: resolved. `federation`: None on a server without data. `chosen`: the constants of the noise that
    a private run began with, if it goes on. `served`: the module is trained elsewhere.

    Raises a ConfigError if the parts do not fit each other. An aggregator is built and dropped for that,
    because algorithms and layers check what they are given, and the run's own is built when its folder exists
    already.
    """
    flat = FlatModule(module, config.local.personal, config.local.batch_norm)
    config = with_metrics(config, federation)
    if federation is not None:
        if config.model is None or is_own_model(config.model):  # others work with channels last
            choose_memory_format(flat, federation.head, *federation.some_examples())
        check_fit(flat, federation)
        check_single_examples(flat, federation, config.local)
        check_personal(flat, federation, config)
    flat = flat.on(config.device.torch_device())
    if served:
        flat.drop_gradient()
    blocks = tuple(shape.numel() for shape in flat.shared_shapes)
    situation = replace(situation_of(config, clients), population=population, blocks=blocks)
    trial = Aggregator(config.algorithm, flat.shared, situation, config.evaluation.model_average)
    caution = config.algorithm.caution(situation, config.local.lr)
    if caution is not None:
        log.warning(caution, extra={"event": "algorithm"})
    lengths = {name: vector.numel() for name, vector in trial.empty_upload().items()}
    guarantee = _guarantee(config, situation, sum(lengths.values()), chosen)
    if config.secure is not None:
        assert isinstance(config.encoding, Grid), "resolved"
        helpers, dimension = config.secure.helper_count, sum(lengths.values())
        grid = grid_with_headroom(config.encoding, dimension, guarantee, helpers)
        config = config.model_copy(update={"encoding": grid})
        norm = grid.norm(dimension)
        if guarantee is not None and norm is not None and grid.clip is not None:
            guarantee = replace(guarantee, overhead=norm * grid.step / grid.clip)
    preparation = None if federation is None else federation.preparation
    assembly = Assembly(
        config, federation, clients, population, flat, situation, guarantee, preparation, lengths=lengths,
        served=served,
    )  # fmt: skip
    if guarantee is not None or config.encoding.kind != "float32" or config.broadcast.kind != "float32":
        trial = assembly.aggregator(NoiseKeys())
    return replace(assembly, trip_bytes=trip_bytes(trial))


def make_bookkeeping(config: Config, population: int, limits: Limits | None) -> Bookkeeping:
    """Return the bookkeeping of a resolved config. `limits`: on participation, in a private run."""
    assert config.pace is not None, "resolved"
    opening = population if config.algorithm.opening else 0
    law: StalenessLaw | RoundedLaw = config.algorithm.law
    if isinstance(config.encoding, Grid):
        law = RoundedLaw(config.algorithm.law, config.encoding.denominator)
    return Bookkeeping(config.pace, config.buffer, law, opening, limits)


def situation_of(config: Config, clients: Clients) -> Situation:
    """Return the facts that algorithms may know of a run before it begins."""
    seen = range(min(len(clients), 1000))
    local_steps = sum(config.local.steps_for(clients.examples(c)) for c in seen) / len(seen)
    steps = config.stop.steps
    trips, size = config.stop.trips, config.buffer.size
    if trips is not None and size is not None:
        if config.algorithm.opening:  # the first step takes a trip of every client
            by_trips = 1 + (trips - len(clients)) // size
        else:
            by_trips = trips // size
        steps = by_trips if steps is None else min(steps, by_trips)
    buffer, examples = config.buffer, None
    if buffer.weights == "examples" and config.algorithm.averages_memories:
        examples = sum(clients.examples(c) for c in range(len(clients)))
    return Situation(len(clients), buffer.size, buffer.staleness_bound, steps, local_steps, examples)


def _guarantee(
    config: Config, situation: Situation, dimension: int, chosen: Chosen | None
) -> Guarantee | None:
    """Return what the config promises, with its noise worked out, or None if it promises nothing.

    `dimension`: the numbers in an upload.
    """
    if config.privacy is None:
        return None
    if situation.steps is None:
        raise ConfigError(
            "privacy: the noise is planned for a number of steps; give stop.steps (or stop.trips, where "
            "buffer.size is fixed)"
        )
    assert config.pace is not None
    guarantee = config.privacy.guarantee(
        situation.steps,
        situation.population,
        config.pace,
        config.buffer,
        dimension if config.secure is None else COARSER * dimension,
        chosen,
    )
    if config.algorithm.opening and guarantee.limits is not None and guarantee.limits.separation > 1:
        raise ConfigError(
            "algorithm.first_pass: the first step takes a contribution of everybody, and with a separation "
            f"of {guarantee.limits.separation} nobody could come for the second; set it to false, or "
            "privacy.separation to 1"
        )
    return guarantee
