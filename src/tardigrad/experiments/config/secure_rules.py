"""Rules of a secure run: defaults that follow from other tables, and combinations that are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tardigrad.algorithms.algorithm import SumOnly
from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.core.bookkeeping import Buffer
from tardigrad.core.staleness import Constant
from tardigrad.encodings.broadcasts import Float32Broadcast
from tardigrad.encodings.common_grid import Grid
from tardigrad.encodings.float32 import Float32
from tardigrad.encodings.kinds import AnyEncoding
from tardigrad.errors import ConfigError
from tardigrad.privacy.settings import LocalPrivacy, Participation, PoissonSampling, Privacy
from tardigrad.secure.secure_settings import Secure

if TYPE_CHECKING:
    from tardigrad.experiments.config.schema import Config


def secure_buffer(secure: Secure | None, buffer: Buffer) -> Buffer:
    """Return the buffer of a run: in a secure one, a client is in it once."""
    if secure is None:
        return buffer
    if buffer.most_per_client not in (None, 1):
        raise ConfigError(
            f"buffer.most_per_client: in a secure run a client is in a buffer once, not "
            f"{buffer.most_per_client} times, because its uploads would not hide each other; leave it out"
        )
    if "once_per_client" in buffer.model_fields_set and not buffer.once_per_client:
        raise ConfigError(
            "buffer.once_per_client: must be true in a secure run, because the uploads of one client would "
            "not hide each other; leave it out"
        )
    if buffer.weights != "equal":
        raise ConfigError(
            "buffer.weights: in a secure run all clients weigh the same, because the server does not know "
            "their examples; leave it out"
        )
    return buffer.model_copy(update={"once_per_client": True, "most_per_client": None})


def resolved_secure(secure: Secure | None, buffer: Buffer, privacy: Privacy | None) -> Secure | None:
    """Return the secure table with the defaults that follow from buffer and privacy."""
    if secure is None:
        return None
    least = secure.least_clients or max(2, -(-(buffer.size or 0) // 2))
    limit = secure.limit if secure.limit is not None else 1.0 if privacy is None else privacy.clip
    noise = secure.noise or ("nobody" if privacy is None else "helper")
    return secure.model_copy(update={"least_clients": least, "limit": limit, "noise": noise})


def secure_encoding(secure: Secure, encoding: AnyEncoding, privacy: Privacy | None) -> Grid:
    """Return the grid of a resolved secure table. `encoding`: of the config, which must not have another."""
    assert secure.limit is not None, "resolved"
    clip = None if privacy is None else privacy.clip
    grid = Grid(bits=secure.bits, limit=secure.limit, denominator=secure.denominator, clip=clip)
    if isinstance(encoding, Grid):  # a config that was resolved before
        grid = grid.model_copy(update={"uploads": encoding.uploads, "headroom": encoding.headroom})
    if not isinstance(encoding, Float32) and encoding != grid:
        raise ConfigError(
            f"encoding.kind: in a secure run uploads travel on the common grid that [secure] describes, so "
            f"that {encoding.kind!r} has no place; leave [encoding] out"
        )
    return grid


def check_secure(config: Config) -> None:
    """Raise a ConfigError if a resolved config cannot be a secure run."""
    secure, algorithm = config.secure, config.algorithm
    if secure is None:
        return
    if not isinstance(algorithm, SumOnly):
        raise ConfigError(
            f"algorithm.kind: {algorithm.name} looks at every upload by itself, and a secure run knows only "
            "their sum; use an algorithm that needs only the sum, such as 'fedbuff', or leave [secure] out"
        )
    if algorithm.single_upload:
        raise ConfigError(
            f"algorithm.kind: {algorithm.name} makes a step of each upload, which would be the whole sum; "
            "use an algorithm that adds up several, such as 'fedbuff', or leave [secure] out"
        )
    size, least = config.buffer.size, secure.least_clients
    assert least is not None, "resolved"
    if size is None:
        raise ConfigError(
            "buffer.size: the batches of a secure run have a fixed size, so that nobody can choose a smaller "
            "one; give a size"
        )
    if size < least:
        raise ConfigError(
            f"buffer.size: {size} uploads make a step, but at least {least} clients must hide each other "
            f"(secure.least_clients); give at least {least}"
        )
    if algorithm.averages_memories and not isinstance(algorithm.law, Constant):
        raise ConfigError(
            f"algorithm.staleness: {algorithm.name} keeps a mean of what clients remember, which is wrong "
            "for ever after a batch that is not released, and late uploads that weigh less make such "
            "batches; use 'constant'"
        )
    if not isinstance(config.broadcast, Float32Broadcast):
        raise ConfigError(
            "broadcast.kind: the helpers of a secure run repeat each step and compare what clients download, "
            "which must be the model itself; leave it out"
        )
    for name in ("norm_bound", "examples_bound"):
        if config.service is not None and getattr(config.service, name) is not None:
            raise ConfigError(
                f"service.{name}: the server of a secure run does not see uploads, so that it cannot refuse "
                "one by its values; leave it out"
            )
    _check_noise(config, secure)


def check_secure_server(config: Config) -> None:
    """Raise a ConfigError if a config cannot be a secure run on a server."""
    secure = config.secure
    if secure is None:
        return
    if isinstance(secure.helpers, int):
        raise ConfigError(
            "secure.helpers: a server must know its helpers; give each as { address = 'HOST:PORT', identity "
            "= '...' }, with the identity that `tardigrad helper` prints"
        )
    if not secure.masks:
        raise ConfigError("secure.masks: false is for simulations; leave it out")
    if not isinstance(config.algorithm, BUILT_IN):
        raise ConfigError(
            f"algorithm.kind: {config.algorithm.name} is not built in, and the helpers of a secure run could "
            "not repeat its steps; use an algorithm that is built in, or leave [secure] out"
        )


def _check_noise(config: Config, secure: Secure) -> None:
    privacy = config.privacy
    if privacy is None:
        if secure.noise == "helper":
            raise ConfigError(
                "secure.noise: a helper adds the noise that [privacy] describes; give [privacy], or 'nobody'"
            )
        return
    if secure.noise == "nobody":
        raise ConfigError(
            "secure.noise: [privacy] promises noise, and only the helpers of a secure run can add it; leave "
            "it out, or leave [privacy] out"
        )
    if isinstance(privacy, LocalPrivacy):
        raise ConfigError(
            "privacy.kind: 'local' hides uploads by noise of their own, so that masks add nothing; use "
            "'participation', whose noise the helpers add, or leave [secure] out"
        )
    if isinstance(privacy, PoissonSampling):
        raise ConfigError(
            "privacy.kind: 'poisson' rests on nobody knowing who takes part, and the server and the helpers "
            "of a secure run know it; use 'participation'"
        )
    assert isinstance(privacy, Participation)
    if privacy.versions == "private":
        raise ConfigError(
            "privacy.versions: the helpers of a secure run weigh uploads by their versions, so that they are "
            "known; leave it out"
        )
    if privacy.adaptive is not None:
        raise ConfigError(
            "privacy.adaptive: clients of a secure run clip by themselves, to what the policy says from the "
            "beginning; leave it out"
        )
