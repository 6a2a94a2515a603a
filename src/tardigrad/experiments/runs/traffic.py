"""The traffic between a server and its clients: the layers of uploads, broadcasts, and their sizes."""

from __future__ import annotations

import torch

from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.algorithms.layers import UploadLayer
from tardigrad.algorithms.shared_vectors import SharedVectors
from tardigrad.core.draws import key
from tardigrad.core.precision import is_short
from tardigrad.core.upload import Vectors, bytes_of
from tardigrad.encodings.broadcasts import Float32Broadcast
from tardigrad.encodings.layer import encoding_layers
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.schema import Config
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.keys import NoiseKeys
from tardigrad.privacy.layers.canaries import Canaries
from tardigrad.privacy.layers.central_noise import Normals
from tardigrad.privacy.layers.stack import central_layers, local_layers
from tardigrad.privacy.normal import Seeded
from tardigrad.privacy.releases import digest_of
from tardigrad.privacy.settings import LocalPrivacy
from tardigrad.secure.masked_grid import MaskedGridLayer
from tardigrad.secure.policy_of_run import SecureRun
from tardigrad.secure.secure_audit import audited_layers
from tardigrad.secure.simulated_helpers import SimulatedHelpers
from tardigrad.simulation.network import TripBytes


def upload_layers(
    config: Config,
    guarantee: Guarantee | None,
    keys: NoiseKeys,
    canaries: Canaries | None,
) -> list[UploadLayer]:
    """Return the upload layers of a run that is not secure. Local noise is added before an upload is encoded;
    central privacy clips what was decoded."""
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


def secure_layers(
    run: SecureRun, start: Vectors, keys: NoiseKeys | None, canaries: Canaries | None
) -> list[UploadLayer]:
    """Return the upload layers of a secure run.

    `start`: version 0, as clients download it. `keys`: of the noise of simulated helpers; None on a server,
    whose helpers are elsewhere. `canaries`: in an audit.
    """

    def trip_seed(trip: int) -> int:
        return key(run.seed, "trip", trip)

    if keys is None:
        return [
            MaskedGridLayer(run.grid, run.algorithm, trip_seed, run.guarantee, sealed_bytes=run.sealed_bytes)
        ]
    identities = tuple(f"simulated helper {number + 1}" for number in range(run.secure.helper_count))
    policy = run.policy("simulation", "", digest_of(start), identities, "")
    seeded = policy.noise is not None and policy.noise.seed is not None
    helpers = SimulatedHelpers(policy, run.secure.masks, None if seeded else keys.__getitem__)
    if canaries is not None and run.guarantee is not None:
        return audited_layers(run, run.guarantee, trip_seed, helpers, canaries)
    grid = MaskedGridLayer(run.grid, run.algorithm, trip_seed, run.guarantee, helpers, run.sealed_bytes)
    return [grid]


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


def trip_bytes(aggregator: Aggregator) -> TripBytes:
    """Return the sizes of downloads and uploads, which all trips of a run have in common."""
    extra = sum(layer.wire.extra_bytes for layer in aggregator.layers)
    sizes = aggregator.download_sizes()
    return TripBytes(sizes.whole, bytes_of(aggregator.upload_layout()) + extra, sizes.difference)
