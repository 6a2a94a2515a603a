"""The secrets of a private run and the checks that keep it from being repeated.

The files of a private run are opened before its parts are built: the noise keys, the sampling key and the log
of releases then exist when the aggregator, the planner and the engine are given them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tardigrad.core.pace import Poisson
from tardigrad.core.upload import Vectors
from tardigrad.errors import ConfigError, RunError
from tardigrad.experiments.config.schema import Config
from tardigrad.privacy.chosen import CHOSEN
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.keys import NoiseKeys
from tardigrad.privacy.releases import NEW_RUN, ReleaseLog
from tardigrad.privacy.sampling import SamplingKey
from tardigrad.privacy.settings import LocalPrivacy, PoissonSampling

KEYS = "noise.keys"
"""In a run's folder: the keys of the noise since the last snapshot."""
RELEASES = "releases.log"
"""In the folder of a private run: a digest of each version that was released."""
SNAPSHOT = "snapshot.safetensors"
SAMPLING = "sampling.key"
"""In a run's folder: the key of Poisson sampling, until the run is over."""


@dataclass(frozen=True)
class Secrets:
    """The secrets of one run. Those of a run without a folder are in memory only."""

    noise: NoiseKeys = field(default_factory=NoiseKeys)
    """The keys of the noise since the last snapshot."""
    sampling: SamplingKey | None = None
    """The key of Poisson sampling; None if clients are drawn from the seed."""
    releases: ReleaseLog | None = None
    """The record of released versions; None if a repetition would break no promise."""

    def release(self, version: int, vectors: Vectors) -> None:
        """Record a new version before it is published; raise if it was released before with other values."""
        if self.releases is not None:
            self.releases.release(version, vectors)

    def close(self) -> None:
        """Close the files."""
        if self.releases is not None:
            self.releases.close()


def secrets_in_memory(config: Config) -> Secrets:
    """Return the secrets of a run without a folder."""
    return Secrets(sampling=SamplingKey() if samples_secretly(config) else None)


def open_secrets(
    config: Config,
    guarantee: Guarantee | None,
    folder: Path,
    version: int,
    guard: Path | None = None,
    moved: bool = False,
    noisy: bool = True,
) -> Secrets:
    """Open the secrets in a run's folder, or create them. `version`: that of the snapshot, or 0. `noisy`:
    whether this process draws the noise of the steps.

    Raises a ConfigError or a RunError if the run must not go on because it could be repeated.
    """
    if guarantee is None:
        return Secrets(NoiseKeys(folder / KEYS))
    releases = _open_releases(guarantee, folder, guard, moved)
    try:
        _keep_chosen(guarantee, folder)
        sampling = None
        if samples_secretly(config):
            sampling = SamplingKey(folder / SAMPLING, _has_begun(folder))
        noise = NoiseKeys(folder / KEYS)
        noisy = noisy and not isinstance(config.privacy, LocalPrivacy)  # which has keys of trips, not steps
        if releases is not None and noisy:
            _check_noise_keys(releases, noise, version)
    except BaseException:
        if releases is not None:
            releases.close()
        raise
    return Secrets(noise, sampling, releases)


def samples_secretly(config: Config) -> bool:
    """Return whether the guarantee depends on nobody knowing which clients were sampled."""
    privacy = config.privacy
    return (
        isinstance(privacy, PoissonSampling)
        and privacy.noise_from == "system"
        and isinstance(config.pace, Poisson)
    )


def check_guard(guarantee: Guarantee | None, folder: Path, guard: Path | None) -> None:
    """Raise a ConfigError if the guard file cannot be used. Nothing is written."""
    if guard is None:
        return
    if not _must_not_repeat(guarantee):
        raise ConfigError("--guard: is for private runs, with noise from the system; leave it out")
    if guard.name and guard.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"--guard {guard}: must lie outside the run's folder, or a backup would include it")
    if not guard.name or guard.is_dir() or not guard.parent.is_dir():
        raise ConfigError(f"--guard {guard}: must be a file in a folder that exists")


def forget_secrets(folder: Path) -> None:
    """Delete the secrets of a private run that is over, and the last uploads, which its snapshot holds."""
    for name in (KEYS, SAMPLING, SNAPSHOT):
        (folder / name).unlink(missing_ok=True)


def _must_not_repeat(guarantee: Guarantee | None) -> bool:
    """Return whether a second history of the same run would break its promise."""
    return guarantee is not None and guarantee.noise_from != "seed" and guarantee.noise_multiplier != 0


def _open_releases(guarantee: Guarantee, folder: Path, guard: Path | None, moved: bool) -> ReleaseLog | None:
    """Open the record of released versions; return None if a repetition would break no promise."""
    check_guard(guarantee, folder, guard)
    if not _must_not_repeat(guarantee):
        return None
    begun = _has_begun(folder) or (folder / CHOSEN).exists()
    return ReleaseLog(folder / RELEASES, guard, moved, begun)


def _check_noise_keys(releases: ReleaseLog, keys: NoiseKeys, version: int) -> None:
    """Raise a RunError if a step that was released must be made again and its noise key is gone. `version`:
    that of the snapshot."""
    lost = [step for step in range(version, releases.last) if step not in keys]
    if lost:
        raise RunError(
            f"{KEYS}: version {lost[0] + 1} was released before, and the key of its noise is gone: the "
            f"snapshot or {KEYS} was deleted or put back from a backup; {NEW_RUN}"
        )


def _keep_chosen(guarantee: Guarantee, folder: Path) -> None:
    """Store the constants of the noise before the first step, so that a resumed run has the same."""
    if (folder / CHOSEN).exists():
        return
    if _has_begun(folder):
        raise RunError(
            f"{folder / CHOSEN} is gone, so it is not known with which noise the run began; {NEW_RUN}"
        )
    guarantee.chosen.write(folder / CHOSEN)


def _has_begun(folder: Path) -> bool:
    """Return whether a private run may have released a step."""
    return (folder / SNAPSHOT).exists() or (folder / KEYS).exists()
