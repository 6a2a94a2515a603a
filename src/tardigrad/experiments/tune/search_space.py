"""Search spaces: the ranges and choices of settings that tuning may try, by their key."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from tardigrad.core.setting import Setting
from tardigrad.core.stop import Stop
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.schema import Config

Value = bool | int | float | str


class Dimension(Setting):
    """The values of one setting: between two numbers, or one of several.

    >>> Dimension(low=0.01, high=1.0, log=True).holds(0.1), Dimension(choices=(0, 0.5)).holds(0.1)
    (True, False)
    """

    low: int | float | None = None
    """The smallest; whole numbers are tried where both ends are whole."""
    high: int | float | None = None
    """The largest."""
    log: bool = False
    """Whether orders of magnitude are equally likely, as for a learning rate."""
    choices: tuple[Value, ...] | None = Field(default=None, min_length=1)
    """In place of low and high."""

    @model_validator(mode="after")
    def _a_range_or_choices(self) -> Dimension:
        if (self.choices is None) == (self.low is None or self.high is None):
            raise ValueError("give low and high, or choices")
        if self.low is not None and self.high is not None:
            if self.low >= self.high:
                raise ValueError(f"low must be below high, not {self.low:g} and {self.high:g}")
            if self.log and self.low <= 0:
                raise ValueError(f"with log, low must be above 0, not {self.low:g}")
        return self

    def holds(self, value: object) -> bool:
        """Return whether this value is one of them."""
        if self.choices is not None:
            return value in self.choices
        assert self.low is not None
        assert self.high is not None
        return isinstance(value, int | float) and self.low <= value <= self.high

    def edges(self) -> tuple[Value, ...]:
        """Return a few values; if these are valid, all are."""
        if self.choices is not None:
            return self.choices
        assert self.low is not None
        assert self.high is not None
        inside = self.low + (self.high - self.low) * 0.37  # where ends are whole numbers, this need not be
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        return self.low, int(inside) if whole else inside, self.high


Space = dict[str, Dimension]
"""By key, such as "local.lr"."""


class Tune(Setting):
    """How a comparison's entries are tuned: each with as many trials as the others."""

    trials: PositiveInt = 20
    """Settings to try for each entry; the first is the entry as it stands."""
    budget: Stop | None = None
    """When a trial ends. Default: the entry's own `stop`."""
    objective: Literal["metric", "accuracy", "trips"] = "metric"
    """The best value of the run's metric at the budget ("accuracy" is its former name), or the fewest client
    trips to the first of `targets`."""
    seeds: tuple[NonNegativeInt, ...] | None = Field(default=None, min_length=1)
    """Every trial is run with each, and their mean counts. Default: one seed above all of `seeds`."""
    pruning: bool = True
    """End a trial early whose metric is worse than the median of earlier trials at the same evaluation."""
    ranges: Literal["practical", "papers", "none"] = "practical"
    """Which shipped search spaces to begin with: those that a few dozen trials can cover, those that the
    papers name (up to twelve orders of magnitude), or none."""
    spaces: dict[str, Space] = Field(default_factory=dict)
    """By entry and key: what to try in place of the shipped range, or in addition to it."""


def setting_at(config: Config, key: str) -> object:
    """Return the value of a setting, or None if there is none of this name."""
    found: object = config
    for part in key.split("."):
        found = getattr(found, part, None) if isinstance(found, Setting) else None
    return found


def with_settings(
    values: dict[str, object], config: Config, settings: dict[str, Value], source: str
) -> dict[str, object]:
    """Return a config's `values` with these settings, by key. `config` is the config of the values; it has
    the kinds of the tables that the values leave to the defaults."""
    changed = dict(values)
    for key, value in settings.items():
        *tables, last = key.split(".")
        inner = changed
        place: Setting = config
        for name in tables:
            below = getattr(place, name, None)
            if not isinstance(below, Setting):
                raise ConfigError(f"{source}: {key}: there is no table {name!r} here")
            place = below
            old = inner.get(name, {})
            table = dict(old) if isinstance(old, dict | Setting) else {"kind": old}
            if "kind" not in table and "kind" in type(place).model_fields:
                table["kind"] = place.model_dump(include={"kind"})["kind"]
            inner[name] = table
            inner = table
        if last not in type(place).model_fields and type(place).model_config.get("extra") != "allow":
            known = ", ".join(type(place).model_fields)
            raise ConfigError(f"{source}: {key}: there is no setting {last!r} here; known: {known}")
        inner[last] = value
        given = values.get(tables[0]) if tables else None
        if isinstance(given, Setting):  # in Python, a table may be an object, whose class has no name in TOML
            changed[tables[0]] = type(given).model_validate(changed[tables[0]])
    return changed
