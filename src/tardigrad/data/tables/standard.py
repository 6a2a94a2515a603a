"""The setting `prepare = "standard"`: scale numbers, encode categories, impute missing values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import PositiveInt, ValidationError

from tardigrad.core.setting import Setting, by_name
from tardigrad.data.tables.column_kinds import ColumnKind
from tardigrad.data.tables.column_statistics import ClientStatistics, Moments, combine
from tardigrad.data.tables.preparation import (
    OneHotColumn,
    Preparation,
    PreparedTarget,
    ScaledColumn,
    read_preparation,
)
from tardigrad.errors import ConfigError


class StandardPreparation(Setting):
    """Numbers and dates get mean 0 and variance 1, categories become columns of 0 and 1, and missing values
    become the mean.

    The means, variances and categories are combined from statistics of each client's training rows; rows are
    never pooled.
    """

    kind: Literal["standard"] = "standard"
    constants: Preparation | str | None = None
    """A file such as preparation.json, or its contents, in place of statistics of the clients."""
    indicators: bool = False
    """Whether each column of numbers or dates with missing values gets another column that marks them."""
    target: bool = False
    """Whether a target that is a number is scaled, too."""
    most_categories: PositiveInt = 100
    """The most categories that one column may have."""

    def given(self) -> Preparation | None:
        """Return the constants that the setting gives, or None if they must be found."""
        if isinstance(self.constants, str):
            return read_preparation(Path(self.constants).expanduser())
        return self.constants

    def find(
        self, kinds: Mapping[str, ColumnKind], target: PreparedTarget, clients: Iterable[ClientStatistics]
    ) -> Preparation:
        """Return the preparation of these columns from the statistics of each client, combined in order.

        `target`: without its scale; if it is scaled, its statistics are among those of the clients.
        """
        try:
            combined, count, size = combine(clients)
        except (ValidationError, OverflowError):
            raise ConfigError(
                "data.prepare: some numbers are so large that their variance is not finite; leave their "
                "column out of data.features"
            ) from None
        columns: list[ScaledColumn | OneHotColumn] = []
        for name, kind in kinds.items():
            found = combined.columns[name]
            if isinstance(found, Moments):
                assert kind != "category", name
                if not found.count:
                    raise ConfigError(f"data.features: {name!r} has no value at all; leave it out")
                missing: Literal["mean", "indicator"] = "mean"
                if self.indicators and found.missing:
                    missing = "indicator"
                columns.append(
                    ScaledColumn(name=name, kind=kind, mean=found.mean, scale=found.scale, missing=missing)
                )
                continue
            if len(found.counts) > self.most_categories:
                words = [value for value in sorted(found.counts) if not _is_number(value)]
                examples = ", ".join(map(repr, (words or sorted(found.counts))[:3]))
                if 0 < len(words) < len(found.counts) / 10:
                    raise ConfigError(
                        f"data.features: {name!r} has numbers, but also values that are none, such as "
                        f"{examples}; correct them, empty them, or leave the column out"
                    )
                raise ConfigError(
                    f"data.features: {name!r} has {len(found.counts):,} categories, such as {examples}; "
                    f"leave it out, or raise data.prepare.most_categories ({self.most_categories})"
                )
            columns.append(OneHotColumn(name=name, categories=tuple(sorted(found.counts))))
        scaled = combined.columns.get(target.name)
        if isinstance(scaled, Moments):
            target = target.model_copy(update={"mean": scaled.mean, "scale": scaled.scale})
        return Preparation(columns=tuple(columns), target=target, clients=count, bytes=size)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


Prepare = Annotated[StandardPreparation, by_name]
"""The type of a setting in which `"standard"` is short for `{kind = "standard"}`."""
