"""Errors that are shown to a person as one sentence, each with its exit code."""


class TardigradError(Exception):
    """Anything a user can put right. `exit_code` is what the command line exits with."""

    exit_code = 3


class ConfigError(TardigradError):
    """What was asked for cannot be done: a bad key, type, value, combination or missing file."""

    exit_code = 2


class RunError(TardigradError):
    """The run itself went wrong: a diverged loss, a damaged snapshot, nobody left to train."""

    exit_code = 3
