"""The one assembly: the parts that a config, a model and data make, for all drivers.

A simulation (`simulation_assembly.py`) and a server (`server_assembly.py`) are built from the same
`Assembly`, and the plan uses its functions. An assembly writes nothing to disk: whatever can be refused about
a run is refused before the run's folder is created. Then the secrets are opened (`private_run.py`), and after
them the aggregator is built, which is given them.
"""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.algorithms.layers import UploadLayer
from tardigrad.algorithms.shared_vectors import SharedVectors
from tardigrad.core.bookkeeping import Bookkeeping
from tardigrad.core.draws import key
from tardigrad.core.events import ModelEvaluated
from tardigrad.core.own_code import class_source
from tardigrad.core.participation import Limits
from tardigrad.core.precision import is_short
from tardigrad.core.situation import Situation
from tardigrad.core.staleness import RoundedLaw, StalenessLaw
from tardigrad.core.upload import bytes_of
from tardigrad.data.clients import Clients, Federation, HoldingOut, given
from tardigrad.data.sets.own_data import is_own_data
from tardigrad.data.tables.preparation import FILE, Preparation
from tardigrad.encodings.broadcasts import Float32Broadcast
from tardigrad.encodings.common_grid import Grid
from tardigrad.encodings.layer import encoding_layers
from tardigrad.errors import ConfigError, RunError, TardigradError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.fingerprints import Inputs, fingerprints, model_classes
from tardigrad.experiments.runs.result import Result, RunTotals
from tardigrad.experiments.runs.run_folder import RunFolder
from tardigrad.experiments.runs.run_metrics import chosen_head, run_baseline, with_head, with_metrics
from tardigrad.experiments.runs.single_examples import check_single_examples
from tardigrad.learning.examples import described, predicted
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.heads import Head, MultiClass
from tardigrad.learning.memory_format import choose_memory_format
from tardigrad.learning.models import Architecture
from tardigrad.learning.models.own_model import is_own_model
from tardigrad.learning.start import load_start
from tardigrad.privacy.chosen import Chosen
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.keys import NoiseKeys
from tardigrad.privacy.layers.canaries import Canaries
from tardigrad.privacy.layers.central_noise import Normals
from tardigrad.privacy.layers.stack import central_layers, local_layers
from tardigrad.privacy.normal import Seeded
from tardigrad.privacy.settings import LocalPrivacy
from tardigrad.privacy.statement import NOTHING_PROMISED, statement
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
    """What a client of a server must bring that has a table and no code; "" if it needs code."""
    trip_bytes: TripBytes = NOT_KNOWN
    """The size of a download and of an upload."""

    def inputs(self) -> Inputs:
        """Return fingerprints of what the config only names; a resumed run must have the same."""
        return fingerprints(self.config, self.federation, self.flat)

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
        layers = upload_layers(self.config, self.guarantee, keys, canaries)
        average = self.config.evaluation.model_average
        model = self.flat.shared.clone()
        shared = shared_vectors(self.config, model.dtype)
        return Aggregator(self.config.algorithm, model, self.situation, average, layers, shared)

    def privacy_text(self, steps: int | None = None) -> str:
        """Return the text of privacy.md: what is promised, and how much of it `steps` have used."""
        if self.guarantee is None or self.config.privacy is None:
            return NOTHING_PROMISED
        algorithm, personal = self.config.algorithm.name, self.flat.has_personal
        return statement(self.guarantee, self.config.privacy, algorithm, self.population, steps, personal)

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
            baseline=None if self.flat.has_personal else run_baseline(self.config, self.federation),
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
        _check_personal(flat, federation, config)
    flat = flat.on(config.device.torch_device())
    if served:
        flat.drop_gradient()
    situation = replace(situation_of(config, clients), population=population)
    trial = Aggregator(config.algorithm, flat.shared, situation, config.evaluation.model_average)
    guarantee = _guarantee(config, situation, trial, chosen)
    preparation = None if federation is None else federation.preparation
    assembly = Assembly(config, federation, clients, population, flat, situation, guarantee, preparation)
    if guarantee is not None or config.encoding.kind != "float32" or config.broadcast.kind != "float32":
        trial = assembly.aggregator(NoiseKeys())
    return replace(assembly, trip_bytes=trip_bytes(trial))


def make_federation(
    config: Config,
    clients: Mapping[Hashable, object] | None = None,
    test: object | None = None,
    head: Head | None = None,
    dtype: torch.dtype = torch.float32,
) -> Federation:
    """Return the clients' data, without the examples that each holds out for its own evaluation.

    `clients`, `test`, `head`: the caller's own, in place of those of the config.
    """
    head = chosen_head(config, head)
    if clients is not None:
        federation = given(clients, test, dtype, head)
    elif is_own_data(config.data):
        federation = config.data.federation(key(config.seed, "data"), head, dtype)
    elif config.data is not None:
        try:
            federation = config.data.federation_for(head, key(config.seed, "data"))
        except MemoryError as error:
            raise ConfigError(f"data: it does not fit into the memory of this machine ({error})") from None
    else:
        raise ConfigError("data: name a data set in the config, or give clients in Python")
    federation = with_head(federation, head, config.privacy is not None)
    if config.evaluation.held_out > 0:
        kept = HoldingOut(federation.clients, config.evaluation.held_out, key(config.seed, "held out"))
        federation = replace(federation, clients=kept)
    return federation


def make_module(config: Config, model: nn.Module | None, federation: Federation | None) -> nn.Module:
    """Return a copy of the caller's module, or build that of the config, which takes a federation unless it
    is from a file of the user's own."""
    if model is not None:
        return _copied(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(config.seed, "model"))
        if federation is None and is_own_model(config.model):
            module = config.model.make({})
        elif config.model is None or federation is None:
            raise ConfigError("model: name a model in the config, or give a torch.nn.Module in Python")
        else:
            module = _built(config.model, federation)
    if config.model.start is not None:
        load_start(module, config.model.start, config.local.batch_norm == "group_norm")
    return module


def _copied(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as error:  # of the caller's own module
        raise ConfigError(
            f"model: it cannot be copied ({type(error).__name__}: {(str(error).splitlines() or [''])[0]}); "
            "give a new module that was not called yet, and parametrizations.weight_norm in place of "
            "torch.nn.utils.weight_norm"
        ) from None


def trip_bytes(aggregator: Aggregator) -> TripBytes:
    """Return the sizes of downloads and uploads, which all trips of a run have in common."""
    extra = sum(layer.wire.extra_bytes for layer in aggregator.layers)
    sizes = aggregator.download_sizes()
    return TripBytes(sizes.whole, bytes_of(aggregator.upload_layout()) + extra, sizes.difference)


def _built(model: Architecture, federation: Federation) -> nn.Module:
    """Return the module of a config for this data."""
    try:
        return model.build_with(federation.vectors, federation.shape, federation.classes)
    except (RuntimeError, MemoryError, OverflowError) as error:  # of torch, if a layer is too large
        said = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            f"model: it cannot be built for examples of the shape {federation.shape}; is one of its sizes "
            f"too large? ({said})"
        ) from None


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
    config: Config, situation: Situation, aggregator: Aggregator, chosen: Chosen | None
) -> Guarantee | None:
    """Return what the config promises, with its noise worked out, or None if it promises nothing."""
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
        sum(vector.numel() for vector in aggregator.empty_upload().values()),
        chosen,
    )
    if config.algorithm.opening and guarantee.limits is not None and guarantee.limits.separation > 1:
        raise ConfigError(
            "algorithm.first_pass: the first step takes a contribution of everybody, and with a separation "
            f"of {guarantee.limits.separation} nobody could come for the second; set it to false, or "
            "privacy.separation to 1"
        )
    return guarantee


def upload_layers(
    config: Config, guarantee: Guarantee | None, keys: NoiseKeys, canaries: Canaries | None
) -> list[UploadLayer]:
    """Return the upload layers of a run. Local noise is added before an upload is encoded; central privacy
    clips what was decoded."""
    local = isinstance(config.privacy, LocalPrivacy)
    encoding = encoding_layers(
        config.encoding,
        config.algorithm,
        lambda trip: key(config.seed, "trip", trip),
        feedback=not local,
        private=guarantee is not None,
    )
    if guarantee is None:
        return [*encoding]
    normals: Normals = keys.normals
    if guarantee.noise_from == "seed":
        normals = lambda number: Seeded(key(config.seed, "noise", number))  # noqa: E731
    if local:
        return [*local_layers(guarantee, normals), *encoding]
    return [*encoding, *central_layers(guarantee, normals, canaries)]


def shared_vectors(config: Config, dtype: torch.dtype) -> SharedVectors | None:
    """Return what clients download, if it is not exactly the algorithm's broadcast."""
    if isinstance(config.broadcast, Float32Broadcast):
        return None
    if is_short(dtype):
        raise ConfigError(
            f"broadcast.kind: the model's own numbers are {str(dtype).removeprefix('torch.')}, so that "
            "versions travel in half of the bytes already; leave it out"
        )
    return SharedVectors(config.broadcast, config.seed)


def _check_personal(flat: FlatModule, federation: Federation, config: Config) -> None:
    """Raise a ConfigError if the run could be evaluated only with personal parts that nobody has trained."""
    if flat.has_personal and federation.test is not None and config.evaluation.held_out == 0:
        raise ConfigError(
            "evaluation.held_out: parts of this model stay with their clients (local.personal or "
            "local.batch_norm), so that only clients can evaluate it, and none keeps examples for that; give "
            "a share such as 0.2, or leave the central test set out"
        )
    if flat.has_personal and federation.test is not None:
        log.warning(
            "the central test set is not used, because parts of this model stay with their clients; they "
            "evaluate it on the examples that they hold out (evaluation.held_out)",
            extra={"event": "evaluation"},
        )


def check_fit(flat: FlatModule, federation: Federation) -> None:
    """Raise a ConfigError if the model does not fit the data, found with one forward pass."""
    x, labels = federation.some_examples()
    flat.module.eval()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            flat.load(flat.shared, {})
            outputs = predicted(flat.module, federation.head, flat.prepared(x), labels)
            federation.head.loss(outputs, labels)
    except TardigradError:
        raise
    except Exception as error:
        raise ConfigError(
            f"model: it does not fit the data, whose examples are {described(x)} and whose labels are "
            f"{labels.dtype} ({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"
        ) from None
    finally:
        flat.reset_buffers()  # the module may have changed them, and they are part of fingerprints
    if isinstance(federation.head, MultiClass) and federation.classes > outputs.shape[1]:
        raise ConfigError(
            f"model: it has {outputs.shape[1]} outputs, but the labels go up to {federation.classes - 1}; "
            "labels count from 0"
        )
