"""The grid of a reproduction: which settings are tried for each entry, on seeds that do not judge."""

from __future__ import annotations

import itertools

from pydantic import Field, NonNegativeInt, model_validator

from tardigrad.core.setting import Setting
from tardigrad.experiments.compare.compare import Values
from tardigrad.experiments.tune.search_space import Value

Settings = dict[str, Value]
"""By key, such as "algorithm.lr"."""


class TuningGrid(Setting):
    """The settings that are tried for each entry: as many for each as for the others.

    >>> grid = TuningGrid(tried={"A": [{"algorithm.lr": [1, 2], "algorithm.momentum.beta": [0.9]}]})
    >>> grid.settings("A")[1]
    {'algorithm.lr': 2, 'algorithm.momentum.beta': 0.9}
    """

    seeds: tuple[NonNegativeInt, ...] = Field(default=(100,), min_length=1)
    """Every setting is run with each of these seeds, none of which judges."""
    tried: dict[str, tuple[dict[str, tuple[Value, ...]], ...]] = Field(min_length=1)
    """By entry: tables of values by key; every combination of the values of one table is tried."""

    @model_validator(mode="after")
    def _different_seeds(self) -> TuningGrid:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds: the same seed twice is the same run twice")
        return self

    @model_validator(mode="after")
    def _different_keys(self) -> TuningGrid:
        for label, tables in self.tried.items():
            for table in tables:
                for key in table:
                    inner = next((other for other in table if other.startswith(f"{key}.")), None)
                    if inner is not None:
                        raise ValueError(
                            f"tried.{label}: {key!r} and {inner!r} set the same table; give all settings "
                            f"within {key} by their whole keys, such as {key + '.kind'!r}"
                        )
        return self

    @model_validator(mode="after")
    def _same_number_for_all(self) -> TuningGrid:
        numbers = {label: len(self.settings(label)) for label in self.tried}
        for label, number in numbers.items():
            if number == 0:
                raise ValueError(
                    f"tried.{label}: there is nothing to try; give a table with at least one value of each "
                    'key, such as [{ "algorithm.lr" = [0.1, 1.0] }]'
                )
        if len(set(numbers.values())) > 1:
            most, least = max(numbers, key=numbers.__getitem__), min(numbers, key=numbers.__getitem__)
            raise ValueError(
                f"all entries must have the same number of settings, but {most} has {numbers[most]} and "
                f"{least} has {numbers[least]}"
            )
        return self

    def settings(self, label: str) -> list[Settings]:
        """Return the settings that are tried for an entry."""
        return [
            dict(zip(table, values))
            for table in self.tried[label]
            for values in itertools.product(*table.values())
        ]

    def edges(self, label: str, chosen: Settings) -> list[str]:
        """Return the keys whose chosen value is the smallest or largest of three or more that were tried
        beside it, so that a better one may lie outside the grid."""
        table = next(
            table
            for table in self.tried[label]
            if table.keys() == chosen.keys() and all(chosen[key] in values for key, values in table.items())
        )
        found = []
        for key, values in table.items():
            numbers = [value for value in values if isinstance(value, int | float)]
            if len(numbers) > 2 and chosen[key] in (min(numbers), max(numbers)):
                found.append(key)
        return found


def as_tables(settings: Settings) -> Values:
    """Return settings by key as they are written in a config.

    >>> as_tables({"algorithm.lr": 2, "algorithm.momentum.beta": 0.9})
    {'algorithm': {'lr': 2, 'momentum': {'beta': 0.9}}}
    """
    tables: Values = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        inner = tables
        for name in path:
            table = inner.setdefault(name, {})
            assert isinstance(table, dict), f"{key} is in a table"
            inner = table
        inner[last] = value
    return tables
