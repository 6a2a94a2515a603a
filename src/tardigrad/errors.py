"""Errors that are shown to the user as one sentence, each with its exit code."""

from collections.abc import Iterator
from contextlib import contextmanager


class TardigradError(Exception):
    """An error that a user can put right. The command line exits with `exit_code`."""

    exit_code = 3


class ConfigError(TardigradError):
    """The request is wrong: a key, a type, a value, a combination of settings, or a missing file."""

    exit_code = 2


class RunError(TardigradError):
    """The run failed: training diverged, a snapshot is damaged, or no client is left to train."""

    exit_code = 3


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Name what an error is about, at the beginning of its sentence, unless `where` is "".

    >>> with naming("heart.toml"):
    ...     raise ConfigError("seed: must be a number")
    Traceback (most recent call last):
    tardigrad.errors.ConfigError: heart.toml: seed: must be a number
    """
    try:
        yield
    except TardigradError as error:
        if not where or str(error).startswith(where):
            raise
        raise (ConfigError if isinstance(error, ConfigError) else RunError)(f"{where}: {error}") from error
