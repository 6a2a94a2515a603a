"""Reading a config: from TOML, with `--set`, and with errors that name the key."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tardigrad.core.own_code import absolute_place, is_place
from tardigrad.core.setting_errors import explain
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.dotted_keys import set_key
from tardigrad.experiments.config.schema import Config


def load_config(file: Path | str, settings: Iterable[str] = ()) -> Config:
    """Read a TOML file, change the `settings` and return the config.

    `settings` are texts such as "local.lr=0.1", as `--set` of the command line takes them. Raises a
    ConfigError that names the file and the key if something is wrong.

    >>> config = load_config("run.toml", ["local.lr=0.1"])  # doctest: +SKIP
    """
    return parse_config(read_toml(Path(file), f"`tardigrad init {file}` writes one"), str(file), settings)


def read_toml(file: Path, advice: str = "") -> dict[str, Any]:
    """Return the contents of a TOML file, or raise a ConfigError; `advice` is added if there is no file.

    The path in "path/to/file.py:name" is relative to the TOML file, or to the current folder if there is no
    such file beside the TOML file.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")  # with or without a byte order mark
    except FileNotFoundError:
        raise ConfigError("; ".join(filter(None, [f"{file}: there is no such file", advice]))) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read ({error})") from None
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    return {name: _anchored(value, file.parent) for name, value in values.items()}


def _anchored(value: object, folder: Path) -> object:
    """Return a value of a TOML file with absolute paths of the user's own code that is in this folder."""
    if isinstance(value, dict):
        return {name: _anchored(inner, folder) for name, inner in value.items()}
    if isinstance(value, list):
        return [_anchored(inner, folder) for inner in value]
    if is_place(value) and (folder / str(value).rpartition(":")[0]).is_file():
        return absolute_place(str(folder / str(value)))
    return value


def parse_config(values: Mapping[str, object], source: str, settings: Iterable[str] = ()) -> Config:
    """Return the config of a dict with the `settings` changed; errors name `source`."""
    if "entries" in values:
        raise ConfigError(
            f"{source}: is a comparison of several runs; `tardigrad compare {source}` makes them"
        )
    changed = copy.deepcopy(dict(values))
    for setting in settings:
        set_key(changed, setting, Config)
    try:
        return Config.model_validate(changed)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{source}: {line}" for line in explain(error, Config))) from None
