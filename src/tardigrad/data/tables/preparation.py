"""The preparation of a table for a model: which columns there are, and the constants that turn them into
numbers. It is one JSON document, which a run saves and others can apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, FiniteFloat, PositiveFloat, PositiveInt, ValidationError, model_validator

from tardigrad.core.setting import Setting
from tardigrad.data.tables.column_kinds import ColumnKind
from tardigrad.errors import ConfigError

FILE = "preparation.json"
"""The name of the document in a run's folder."""
MOST_COLUMNS = 100_000
"""Most columns of a prepared table."""

Refuse = Callable[[np.ndarray, str, str], None]
"""Raises an error for the first row of a mask, if it has one; is given the column and what is wrong."""
Name = Annotated[str, Field(min_length=1, max_length=1000)]


class ScaledColumn(Setting):
    """A column of numbers or dates: it becomes (value - mean) / scale."""

    name: Name
    """The column in the table."""
    kind: Literal["number", "date"] = "number"
    mean: FiniteFloat = 0.0
    """In days since 1970 for dates."""
    scale: PositiveFloat = 1.0
    """Usually the standard deviation; in days for dates."""
    missing: Literal["refuse", "mean", "indicator"] = "refuse"
    """How missing values are treated: an error, the mean, or the mean and a 1 in a column of its own."""

    @property
    def outputs(self) -> list[str]:
        """The names of the columns that it becomes."""
        return [self.name, f"{self.name} is missing"] if self.missing == "indicator" else [self.name]

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Return rows of numbers; the caller has refused missing values if they are to be refused."""
        gone = np.isnan(values)
        with np.errstate(over="ignore"):  # far too large values become infinite; the caller refuses them
            scaled = np.where(gone, 0.0, (values - self.mean) / self.scale).astype(np.float32)
        return np.stack([scaled, gone.astype(np.float32)][: len(self.outputs)], axis=1)


class OneHotColumn(Setting):
    """A column of categories: each becomes a column of 0 and 1; unknown and missing ones share the last."""

    name: Name
    """The column in the table."""
    kind: Literal["category"] = "category"
    categories: tuple[str, ...]
    """The known categories, in the order of their columns."""

    @model_validator(mode="after")
    def _each_once(self) -> OneHotColumn:
        if len(set(self.categories)) != len(self.categories) or "" in self.categories:
            raise ValueError("must have each category once, and no empty one")
        return self

    @property
    def outputs(self) -> list[str]:
        """The names of the columns that it becomes."""
        return [f"{self.name} = {category}" for category in self.categories] + [f"{self.name} is unknown"]

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Return rows with a single 1 each."""
        rows = np.zeros((len(values), len(self.categories) + 1), dtype=np.float32)
        rows[np.arange(len(values)), self.numbers(values)] = 1.0
        return rows

    def numbers(self, values: np.ndarray) -> np.ndarray:
        """Return the number of each value's category; unknown and missing ones have the last."""
        order = {category: number for number, category in enumerate(self.categories)}
        return np.fromiter((order.get(value, len(order)) for value in values), np.int64, len(values))


PreparedColumn = Annotated[ScaledColumn | OneHotColumn, Field(discriminator="kind")]


class PreparedTarget(Setting):
    """The column that the model predicts: one of the classes, or a number."""

    name: Name
    """The column in the table."""
    classes: tuple[str, ...] | None = Field(default=None, min_length=1)
    """The classes in the order of their numbers; None if the target is a number."""
    mean: FiniteFloat = 0.0
    """The mean of a target that is a number; not used for classes."""
    scale: PositiveFloat = 1.0
    """A target that is a number becomes (value - mean) / scale."""

    @model_validator(mode="after")
    def _classes_once(self) -> PreparedTarget:
        if self.classes is not None and len(set(self.classes)) != len(self.classes):
            raise ValueError("must have each class once")
        return self


class Preparation(Setting):
    """The columns that a model gets, in order, and the target.

    >>> sex = OneHotColumn(name="sex", categories=("f", "m"))
    >>> preparation = Preparation(columns=(ScaledColumn(name="age", mean=50, scale=10), sex))
    >>> preparation.outputs
    ['age', 'sex = f', 'sex = m', 'sex is unknown']
    >>> preparation.apply({"age": np.array([60.0]), "sex": np.array(["m"], dtype=object)}).tolist()
    [[1.0, 0.0, 1.0, 0.0]]
    """

    columns: tuple[PreparedColumn, ...] = Field(min_length=1)
    """The columns that the model gets, in order."""
    target: PreparedTarget | None = None
    """The column that the model predicts; None if the table has none."""
    clients: PositiveInt | None = None
    """The number of clients whose statistics were combined; None if the constants were given."""
    bytes: PositiveInt | None = None
    """The bytes that these clients would have sent, as JSON."""

    @model_validator(mode="after")
    def _consistent(self) -> Preparation:
        names = [column.name for column in self.columns] + ([self.target.name] if self.target else [])
        if len(set(names)) != len(names):
            raise ValueError("must have each column once")
        if self.width > MOST_COLUMNS:
            raise ValueError(
                f"would give the model {self.width} columns; at most {MOST_COLUMNS} are possible"
            )
        return self

    @property
    def width(self) -> int:
        """The number of columns that a model gets."""
        return sum(
            len(column.categories) + 1 if isinstance(column, OneHotColumn) else len(column.outputs)
            for column in self.columns
        )

    @property
    def outputs(self) -> list[str]:
        """The names of the columns that a model gets."""
        return [name for column in self.columns for name in column.outputs]

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """The kinds of the table's columns."""
        return {column.name: column.kind for column in self.columns}

    def apply(
        self,
        columns: Mapping[str, np.ndarray],
        refuse: Refuse | None = None,
    ) -> np.ndarray:
        """Return the float32 features of parsed columns.

        `refuse`: called with a mask of rows, the column and what is wrong, where a value is missing that must
        not be, or where a value is so far from the mean that float32 cannot hold it.
        """
        return np.concatenate(
            [apply_column(column, columns[column.name], refuse) for column in self.columns], axis=1
        )

    def to_json(self) -> str:
        """Return the document as text."""
        return self.model_dump_json(indent=2, exclude_none=True) + "\n"


def apply_column(
    column: ScaledColumn | OneHotColumn, values: np.ndarray, refuse: Refuse | None = None
) -> np.ndarray:
    """Return the float32 features of one parsed column; `refuse` as in `Preparation.apply`."""
    prepared = column.apply(values)
    if refuse is not None and isinstance(column, ScaledColumn):
        if column.missing == "refuse":
            refuse(np.isnan(values), column.name, NO_VALUE)
        refuse(~np.isfinite(prepared[:, 0]), column.name, TOO_FAR)
    return prepared


TOO_FAR = "too far from the mean for a float32"
NO_VALUE = "no value (missing, or NaN); data.prepare = 'standard' would put the mean there"


def read_preparation(file: Path) -> Preparation:
    """Return the preparation that a file holds; raise a ConfigError if it holds none."""
    try:
        return Preparation.model_validate_json(file.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{file}: cannot be read ({error.strerror}); preparation.json is in the folder of a run "
            "with data.prepare, and `tardigrad data prepare` writes one"
        ) from None
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        raise ConfigError(f"{file}: not a preparation ({key}: {problem['msg']})") from None
