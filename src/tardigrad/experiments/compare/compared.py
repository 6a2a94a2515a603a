"""Comparisons in Python: `td.compare` and its result."""

from __future__ import annotations

import io
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions
from rich.text import Text
from torch import nn

from tardigrad.errors import ConfigError
from tardigrad.experiments.compare.compare import Comparison, Values, checked, load_comparison, run_comparison
from tardigrad.experiments.compare.tables import comma_separated, markdown, show
from tardigrad.experiments.compare.tabulate import ComparisonTable
from tardigrad.experiments.config.keywords import Table
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.in_memory import InMemory
from tardigrad.experiments.runs.notebook_tables import read_frame
from tardigrad.learning.heads import Head

if TYPE_CHECKING:
    import pandas

Entries = Mapping[str, Config | Table]
"""By label: a config, or what an entry changes in the settings that all share."""


@dataclass(frozen=True)
class Compared:
    """A finished comparison, as `td.compare` returns it. A notebook and `rich.print` show its tables."""

    table: ComparisonTable = field(repr=False)
    """Everything that the tables show, as in comparison.json."""
    out: Path
    """The folder with the runs, the tables as files, and the picture."""

    @property
    def failed(self) -> dict[str, list[str]]:
        """The errors of runs that failed, by entry."""
        return {row["entry"]: row["failed"] for row in self.table["rows"] if row["failed"]}

    def to_pandas(self) -> pandas.DataFrame:
        """Return a pandas data frame with a row for each entry and target, as in comparison.csv."""
        return read_frame(comma_separated(self.table))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        inner = Console(file=io.StringIO(), width=options.max_width, force_terminal=console.is_terminal)
        with inner.capture() as shown:
            show(self.table, inner)
        yield Text.from_ansi(shown.get())

    def _repr_markdown_(self) -> str:
        return markdown(self.table)


def compare(
    entries: Entries | Path | str,
    *,
    out: Path | str,
    base: Config | Table | None = None,
    seeds: Sequence[int] | None = None,
    targets: Sequence[float] | None = None,
    title: str | None = None,
    model: nn.Module | None = None,
    clients: Mapping[Hashable, object] | None = None,
    test: object | None = None,
    head: Head | None = None,
    workers: int | str = 0,
    progress: bool | None = None,
) -> Compared:
    """Compare algorithms on the same data and delays over several seeds, and return the tables.

    `entries`: by label, a config or a dict of what the entry changes in `base`; or a comparison file.
    `out`: the folder for the runs, the tables and the picture. Runs that it holds are not repeated.
    `base`: the settings that all entries share: a config, or a dict with the fields of one.
    `seeds`: every entry is run once with each; default 0, 1 and 2.
    `targets`: the accuracies to reach; default 0.9.
    `title`: the title of the tables.
    `model`, `clients`, `test`, `head`: the caller's own, as in `td.run`.
    `progress`: show a progress bar; default: in a notebook and on a terminal.

    Runs are made in parallel processes. If objects of the caller are needed (a model, clients, a head, an
    algorithm of one's own), they are made in this process one after another, each with `workers` as in
    `td.run`.

    Raises a ConfigError if the settings are wrong. A run that fails does not stop the others; `failed` of the
    result has the errors.

    >>> found = compare(
    ...     {"FedBuff": {"algorithm": "fedbuff"}, "FedAsync": Config(algorithm=FedAsync(alpha=0.5))},
    ...     base={"stop": {"trips": 1000}, "local": Local(lr=0.05)}, out="runs/mine",
    ... )  # doctest: +SKIP
    >>> found.to_pandas()  # doctest: +SKIP
    """
    source, comparison = read_entries(entries, base, seeds=seeds, targets=targets, title=title)
    own = InMemory(model, clients, test, head, workers)
    console = Console(stderr=True)
    quiet = progress is False or (progress is None and not (console.is_terminal or console.is_jupyter))
    table = run_comparison(comparison, source, Path(out), console, "quiet" if quiet else "normal", own)
    return Compared(table, Path(out))


def read_entries(
    entries: Entries | Path | str, base: Config | Table | None, **changes: object
) -> tuple[Path | None, Comparison]:
    """Return the file, if there is one, and the comparison. `changes`: fields to replace; None keeps one."""
    given = {name: value for name, value in changes.items() if value is not None}
    if isinstance(entries, Path | str):
        if base is not None:
            raise ConfigError("base: the file has a [base] of its own; give entries as a dict, or no base")
        whole = load_comparison(Path(entries))
        return Path(entries), checked(dict(whole) | given, str(entries))
    values = {label: _values(entry) for label, entry in entries.items()}
    return None, checked({"base": _values(base or {}), "entries": values} | given, "compare")


def _values(settings: Config | Table) -> Values:
    """Return the settings that were given, as in a file; tables may be objects."""
    if isinstance(settings, Config):
        return {name: getattr(settings, name) for name in settings.model_fields_set}
    return dict(settings)
