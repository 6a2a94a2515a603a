"""A client that is made of a table in a file and the server's declaration, without code of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tardigrad.core.draws import key
from tardigrad.data.tables.reading_tables import TableFile, read_columns
from tardigrad.data.tables.table_features import parse_columns, prepared_features
from tardigrad.data.tables.targets import OwnedTable, class_numbers, scaled_targets, target_numbers
from tardigrad.errors import ConfigError
from tardigrad.service.client.app import Client
from tardigrad.service.protocol.site_declaration import SiteDeclaration, held_out_rows, read_declaration

LARGEST_TABLE = 1 << 33
"""Most bytes of a prepared table in memory."""


@dataclass(frozen=True)
class SiteTable:
    """A site's table."""

    file: Path
    separator: str | None = None
    """The separator of a CSV file; None to find it in the heading."""
    decimal: str = "."
    """The decimal point of a CSV file."""

    def read(self) -> TableFile:
        """Read the file."""
        return read_columns(self.file, self.separator)

    def client(self, name: str, text: str) -> Client:
        """Return the client that this table and the server's declaration make."""
        declaration = read_declaration(text)
        preparation, target = declaration.preparation, declaration.preparation.target
        assert target is not None
        table = self.read()
        features = tuple(column.name for column in preparation.columns)
        absent = [column for column in (*features, target.name) if column not in table.columns]
        if absent:
            raise ConfigError(
                f"--data {self.file}: has no column {', '.join(map(repr, absent))}; the run needs it, and "
                f"the table has {', '.join(table.columns)}"
            )
        size = 4 * len(table) * preparation.width
        if size > LARGEST_TABLE:
            raise ConfigError(
                f"--data {self.file}: {len(table):,} rows of {preparation.width:,} columns would take "
                f"{size >> 30} GiB of memory; at most {LARGEST_TABLE >> 30} are possible"
            )
        owned = OwnedTable(table, features, target.name, [name] * len(table))
        module = declaration.model.build(preparation.width, declaration.outputs, declaration.model_seed)
        parsed = parse_columns([owned], preparation.kinds, self.decimal)
        x = prepared_features([owned], parsed, preparation)
        if target.classes is None:
            y = torch.from_numpy(scaled_targets([owned], target_numbers(owned, self.decimal), target))
        else:
            y = torch.from_numpy(class_numbers(owned, target.classes))
        kept, own = _split(declaration, name, len(table))
        held_out = (x[own], y[own]) if len(own) else None
        return Client(module, examples=(x[kept], y[kept]), held_out=held_out, head=declaration.head)


def _split(declaration: SiteDeclaration, name: str, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows that a site trains on and those that it evaluates on, each in the order of the file."""
    order = np.random.default_rng(key(declaration.seed, f"held out/{name}")).permutation(rows)
    count = held_out_rows(declaration.held_out, rows)
    return torch.from_numpy(np.sort(order[count:])), torch.from_numpy(np.sort(order[:count]))
