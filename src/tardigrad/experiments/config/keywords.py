"""The fields of a config as keyword arguments of `td.run` and `td.serve`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from tardigrad.core.setting_errors import explain
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.schema import Config

Table = Mapping[str, object]
"""A table of a config as a dict, as it is written in TOML: `{"kind": "fedbuff", "lr": 0.5}`."""
Named = str | Table
"""A table of one of several kinds, by the name of its kind or as a dict."""


class _Kept:
    def __repr__(self) -> str:
        return "KEPT"


KEPT: Any = _Kept()
"""The default of a keyword that leaves the field of the config as it is. None would be a value for some."""


def with_keywords(config: Config | None, **keywords: object) -> Config:
    """Return the config with the fields that are given as keywords; a keyword that is `KEPT` is not given.

    >>> with_keywords(Config(seed=1), seed=KEPT, stop={"trips": 500}).stop.trips
    500
    """
    fields = {} if config is None else {name: getattr(config, name) for name in config.model_fields_set}
    given = {name: value for name, value in keywords.items() if value is not KEPT}
    try:
        return Config.model_validate(fields | given)
    except ValidationError as error:
        raise ConfigError("; ".join(explain(error, Config))) from None
