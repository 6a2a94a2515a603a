"""Errors that are shown to the user as one sentence, each with its exit code."""


class TardigradError(Exception):
    """An error that a user can put right. The command line exits with `exit_code`."""

    exit_code = 3


class ConfigError(TardigradError):
    """The request is wrong: a key, a type, a value, a combination of settings, or a missing file."""

    exit_code = 2


class RunError(TardigradError):
    """The run failed: training diverged, a snapshot is damaged, or no client is left to train."""

    exit_code = 3
