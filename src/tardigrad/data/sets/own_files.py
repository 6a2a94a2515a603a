"""Your own data in files: a table with a client column, or a folder with a part for each client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from tardigrad.data.by_user import Users, UserSource, federate
from tardigrad.data.clients import Federation
from tardigrad.data.dataset import Holders
from tardigrad.data.folder import data_folder
from tardigrad.data.partition import Dirichlet, DirichletByLabel, Natural, Shards
from tardigrad.data.tables.column_kinds import ColumnKind, find_kind
from tardigrad.data.tables.preparation import Preparation, PreparedTarget, ScaledColumn
from tardigrad.data.tables.reading_tables import TableFile, read_columns, table_files
from tardigrad.data.tables.standard import Prepare
from tardigrad.data.tables.table_features import (
    Parsed,
    parse_columns,
    plain_features,
    prepared_features,
    statistics_of_clients,
)
from tardigrad.data.tables.targets import (
    OwnedTable,
    class_numbers,
    find_classes,
    scaled_targets,
    target_numbers,
)
from tardigrad.errors import ConfigError
from tardigrad.learning.heads import Head
from tardigrad.learning.transform import Transform

Classes = Annotated[tuple[str, ...], Field(min_length=1)]


class Files(UserSource):
    """Your own data: a table (CSV, Parquet, Arrow, npz) with a column that names the client of each row, or a
    folder with a table, or a folder of tables, for each client.

    Features are columns of numbers, or one array of any shape in an npz file; the model gets them as
    float32, unscaled. With `prepare = "standard"` they may also be categories and dates, with missing values.
    Labels are whole numbers or words. The distinct labels, sorted by value or alphabetically, are the
    classes, numbered from 0.
    """

    kind: Literal["files"] = "files"
    path: str | None = None
    """The table or folder: a path from the current folder, or one below the data folder. A server whose
    clients have the data leaves it out, and declares columns and label."""
    client: str = "client"
    """The column that names the client of each row. In a folder, the names of its entries do."""
    label: str | None = None
    """The column of labels (default: label, or y in npz files)."""
    features: tuple[str, ...] = ()
    """The columns of features (default: all others)."""
    columns: dict[str, ColumnKind | Classes] | None = None
    """The kinds of columns: number, category or date; for the label also the list of its classes (default:
    as the values are)."""
    prepare: Prepare | None = None
    """"standard": scale numbers, encode categories and dates, impute missing values (default: nothing)."""
    separator: str | None = Field(default=None, min_length=1, max_length=1)
    """The separator of CSV files (default: the one of , ; tab | that the heading has)."""
    decimal: Literal[".", ","] | None = None
    """The decimal point of CSV files (default: a point)."""
    test_path: str | None = None
    """A table or folder like `path` with the test set, in place of a share of the examples."""
    test_examples: PositiveInt | None = None
    """Maximum size of the test set; a larger one is reduced to a random sample, drawn once (default: all)."""

    def federation(self, seed: int) -> Federation:
        return self.federation_for(None, seed)

    def federation_for(self, head: Head | None, seed: int) -> Federation:
        regression = head is not None and head.task == "regression"
        tables, test_tables = self.tables()
        every, decimal = [*tables, *test_tables], self.decimal or "."
        constants = None if self.prepare is None else self.prepare.given()
        parsed: list[Parsed] = []
        if self.prepare is None:
            self._check_numbers(tables[0].features)
            features = plain_features(every, decimal)
        else:
            parsed = parse_columns(
                every, self.kinds(every) if constants is None else constants.kinds, decimal
            )
        if regression:
            numbers, target = self._targets(every, constants)
        else:
            numbers, target = self._labels(tables, test_tables, constants)
        names: dict[str, int] = {}
        of = [names.setdefault(client, len(names)) for table in tables for client in table.clients]
        tested = len(numbers) - len(of)
        test_user = len(names)  # one user, who does not train, has all rows of the test file
        users = Users(np.array(of + [test_user] * tested), [*names, "test"])
        test = users.of == test_user if tested else users.aside(self.test, seed)
        rows = torch.arange(len(numbers))
        held, central = federate((rows, torch.from_numpy(numbers)), users, test, self, seed)
        parts = [part.numpy() for part in held.parts]
        preparation = None
        if self.prepare is not None:
            preparation = constants
            if preparation is None:  # from the rows that clients train on
                scaled = {target.name: numbers} if regression and self.prepare.target else {}
                statistics = statistics_of_clients(parsed, parts, scaled)
                preparation = self.prepare.find(self.kinds(every), target, statistics)
                target = preparation.target or target
            elif preparation.target is None:
                preparation = preparation.model_copy(update={"target": target})
            features = prepared_features(every, parsed, preparation)
        if regression:
            numbers = scaled_targets(every, numbers, target)
        labels = torch.from_numpy(numbers)
        clients = Holders(features, labels, parts, [held.name(client) for client in range(len(held))])
        evaluated = None if central is None else (features[central[0]], labels[central[0]])
        classes = 1 if target.classes is None else len(target.classes)
        return Federation(
            clients, evaluated, tuple(features.shape[1:]), classes, transform=Floats(),
            preparation=preparation,
        )  # fmt: skip

    def tables(self) -> tuple[list[OwnedTable], list[OwnedTable]]:
        """Read the tables of the clients, and those of the test set."""
        if self.path is None:
            raise ConfigError(
                "data.path: name the table or folder; only a server whose clients have the data (`tardigrad "
                "serve`) leaves it out"
            )
        constants = None if self.prepare is None else self.prepare.given()
        tables = self._read(self.path, constants)
        test_tables = [] if self.test_path is None else self._read(self.test_path, constants, "test")
        first, every = tables[0], [*tables, *test_tables]
        for name in self.columns or ():
            if not any(name in table.table.columns for table in every):
                raise ConfigError(
                    f"data.columns.{name}: there is no such column; {first.table.file} has "
                    f"{', '.join(first.table.columns)}"
                )
        for table in every:
            if set(table.features) != set(first.features):
                raise ConfigError(
                    f"{table.table.file}: features {', '.join(table.features)}, but {first.table.file} has "
                    f"{', '.join(first.features)}"
                )
        same = [replace(table, features=first.features) for table in every]  # in the order of the first
        return same[: len(tables)], same[len(tables) :]

    def kinds(self, tables: Sequence[OwnedTable]) -> dict[str, ColumnKind]:
        """Return the kind of each feature column: as it is set, or as its values are."""
        kinds: dict[str, ColumnKind] = {}
        for name in tables[0].features:
            kind = (self.columns or {}).get(name)
            if isinstance(kind, tuple):
                raise ConfigError(
                    f"data.columns.{name}: a list has the classes of the label; give 'category' for a feature"
                )
            kinds[name] = kind or find_kind(
                (table.table.columns[name] for table in tables), self.decimal or "."
            )
        return kinds

    def preparation_of(self, files: Sequence[Path], head: Head | None = None) -> Preparation:
        """Return the preparation from tables at hand, each of which is one client's; every row counts."""
        if self.prepare is None:
            raise ConfigError("data.prepare: is not set, so there is nothing to find; set it to 'standard'")
        tables = [self._owned(read_columns(file, self.separator), None, file.stem) for file in files]
        kinds = self.kinds(tables)
        parsed = parse_columns(tables, kinds, self.decimal or ".")
        scaled: Parsed = {}
        if head is not None and head.task == "regression":
            numbers, target = self._targets(tables, None)
            scaled = {target.name: numbers} if self.prepare.target else {}
        else:
            _, target = self._labels(tables, [], None)
        ends = np.cumsum([len(table.clients) for table in tables])
        parts = [np.arange(end - len(table.clients), end) for table, end in zip(tables, ends)]
        return self.prepare.find(kinds, target, statistics_of_clients(parsed, parts, scaled))

    @property
    def remote(self) -> bool:
        return self.path is None

    def resolved(self) -> Self:
        if self.prepare is None:
            return self
        prepare = self.prepare.model_copy(update={"constants": self.prepare.given()})
        return self.model_copy(update={"prepare": prepare})

    @property
    def finds_statistics(self) -> bool:
        """Whether a first pass over the clients finds the constants of the preparation."""
        return self.prepare is not None and self.prepare.constants is None

    def declared(self, head: Head | None = None) -> Preparation:
        """Return what a server without data declares: the columns and the target of each client's table.

        `head`: the one that was chosen; None for classes.
        """
        regression = head is not None and head.task == "regression"
        declared = (self.columns or {}).get(self._label)
        classes = declared if isinstance(declared, tuple) else None
        if self.prepare is not None:
            given = self.prepare.given()
            if given is None:
                raise ConfigError(
                    "data.prepare.constants: a server without data cannot find them; `tardigrad data "
                    "prepare` writes preparation.json from tables at hand, such as public or older ones"
                )
            if given.target is not None and self.label not in (None, given.target.name):
                raise _other_target(self._label, given.target)
            if given.target is None or (given.target.classes is None) != regression:
                wanted = "a number, for head 'regression'" if regression else "its classes"
                raise ConfigError(f"data.prepare.constants: must name the target, and {wanted}")
            return given
        if regression and declared not in (None, "number"):
            raise ConfigError(
                f"data.columns.{self._label}: head 'regression' predicts a number; give 'number'"
            )
        if classes is None and not regression:
            raise ConfigError(
                f"data.columns.{self._label}: a server without data must know the classes; give their list, "
                "such as ['no', 'yes']"
            )
        kinds = self.columns or {}
        names = self.features or tuple(name for name in kinds if name != self._label)
        for name in names:
            if kinds.get(name) != "number":
                raise ConfigError(
                    f"data.columns.{name}: must be 'number' on a server without data, or give "
                    "data.prepare.constants, as `tardigrad data prepare` writes them"
                )
        if not names:
            raise ConfigError(
                "data.columns: declare the columns that a client must bring: {age = 'number', ...}"
            )
        return Preparation(
            columns=tuple(ScaledColumn(name=name) for name in names),
            target=PreparedTarget(name=self._label, classes=classes),
        )

    @property
    def _label(self) -> str:
        return self.label or "label"

    def _read(self, path: str, constants: Preparation | None, client: str | None = None) -> list[OwnedTable]:
        """Read every table of a path; if `client` is given, all rows belong to it."""
        root = _root(path)
        if not root.exists():
            raise ConfigError(f"data.path: there is neither {path} nor {root}")
        return [
            self._owned(read_columns(file, self.separator), constants, client or owner)
            for file, owner in table_files(root)
        ]

    def named_files(self) -> dict[str, list[Path]]:
        """Return the files that the settings name, by the key that names them."""
        named: dict[str, list[Path]] = {}
        for key, path in (("data.path", self.path), ("data.test_path", self.test_path)):
            if path is not None and (root := _root(path)).exists():
                named[key] = [file for file, _ in table_files(root)]
        if self.prepare is not None and isinstance(self.prepare.constants, str):
            named["data.prepare.constants"] = [Path(self.prepare.constants).expanduser()]
        return named

    def _owned(self, table: TableFile, constants: Preparation | None, client: str | None) -> OwnedTable:
        """Return a table whose rows belong to `client`, or to the clients that its client column names."""
        columns, file = table.columns, table.file
        label = self.label or ("y" if file.suffix == ".npz" else "label")
        chosen = self.features or tuple(name for name in columns if name not in (label, self.client))
        if constants is not None:
            chosen = tuple(column.name for column in constants.columns)
            if self.features and set(chosen) != set(self.features):
                raise ConfigError(
                    f"data.features: must be those of data.prepare.constants ({', '.join(chosen)}), or "
                    "be left out"
                )
            if constants.target is not None and constants.target.name != label:
                raise _other_target(label, constants.target)
        for key, name in (("label", label), *(("features", name) for name in chosen)):
            if name not in columns:
                raise ConfigError(
                    f"data.{key}: {file} has no column {name!r}; its columns are {', '.join(columns)}"
                )
        if not chosen:
            raise ConfigError(f"data.features: {file} has no columns beside {label!r} and {self.client!r}")
        rows = len(columns[label])
        if client is not None or (self.client not in columns and not isinstance(self.partition, Natural)):
            clients = [client or "all"] * rows
        elif self.client in columns:
            clients = [str(value) for value in columns[self.client]]
            says = "no name of a client; fill it in, or leave the row out"
            table.refuse([not name.strip() for name in clients], self.client, says)
        else:
            raise ConfigError(
                f"data.client: {file} has no column {self.client!r}; its columns are {', '.join(columns)}. "
                "Name the one that says whose a row is, or set data.partition to 'iid' or 'dirichlet'"
            )
        return OwnedTable(table, chosen, label, clients)

    def _labels(
        self, tables: Sequence[OwnedTable], test_tables: Sequence[OwnedTable], constants: Preparation | None
    ) -> tuple[np.ndarray, PreparedTarget]:
        """Return the labels of all rows, those of the test tables last, and what they are."""
        label = tables[0].label
        kind = (self.columns or {}).get(label)
        number = constants is not None and constants.target is not None and constants.target.classes is None
        if number or kind in ("number", "date"):
            raise ConfigError(f"data.columns.{label}: to predict a number, set head = 'regression'")
        classes: Sequence[str] | None = kind if isinstance(kind, tuple) else None
        if constants is not None and constants.target is not None:
            classes = constants.target.classes
        if classes is None:
            numbers, classes = find_classes(tables, test_tables, words=kind == "category")
            return numbers, PreparedTarget(name=label, classes=tuple(classes))
        target = PreparedTarget(name=label, classes=tuple(classes))
        return np.concatenate([class_numbers(table, classes) for table in [*tables, *test_tables]]), target

    def _targets(
        self, every: Sequence[OwnedTable], constants: Preparation | None
    ) -> tuple[np.ndarray, PreparedTarget]:
        """Return the targets of all rows, unscaled, and what they are."""
        if isinstance(self.partition, Dirichlet | DirichletByLabel | Shards):
            raise ConfigError(
                f"data.partition.kind: {self.partition.kind!r} goes by classes, but the target is a number; "
                "use 'natural', 'iid' or one that goes by sizes"
            )
        label = every[0].label
        target = PreparedTarget(name=label)
        if constants is not None and constants.target is not None:
            target = constants.target
        if target.classes is not None or (self.columns or {}).get(label, "number") != "number":
            raise ConfigError(f"data.columns.{label}: has classes, but head 'regression' predicts a number")
        return np.concatenate([target_numbers(table, self.decimal or ".") for table in every]), target

    def _check_numbers(self, features: Sequence[str]) -> None:
        """Raise a ConfigError if a feature is set to a kind that needs a preparation."""
        for name, kind in (self.columns or {}).items():
            if name in features and kind != "number":
                raise ConfigError(f"data.columns.{name}: {kind!r} needs data.prepare = 'standard'")


def _other_target(label: str, target: PreparedTarget) -> ConfigError:
    return ConfigError(f"data.label: is {label!r}, but data.prepare.constants are for {target.name!r}")


def _root(path: str) -> Path:
    """Return where a path is: from the current folder, or else below the data folder."""
    here = Path(path).expanduser()
    return here if here.exists() else data_folder() / path


class Floats(Transform):
    """Converts numbers of any type to float32."""

    def evaluate(self, features: Tensor) -> Tensor:
        return features.float()
