"""Tuning in Python: `td.tune` and its result."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text
from torch import nn

from tardigrad.experiments.compare.compared import Entries, read_entries
from tardigrad.experiments.compare.tabulate import TuningTable
from tardigrad.experiments.config.keywords import Table
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.in_memory import InMemory
from tardigrad.experiments.runs.notebook_tables import data_frame, html_table
from tardigrad.experiments.tune.search_space import Tune
from tardigrad.experiments.tune.tune import run_tuning
from tardigrad.learning.heads import Head

if TYPE_CHECKING:
    import pandas

HEADINGS = ("entry", "trials", "failed", "trips spent", "value", "best settings")


@dataclass(frozen=True)
class Tuned:
    """The result of tuning, as `td.tune` returns it. A notebook and `rich.print` show it as a table."""

    table: TuningTable
    """The settings that each entry's trials found, and their cost, as in tuning.json."""
    out: Path
    """The folder with the studies, tuning.json and tuned.toml."""

    @property
    def file(self) -> Path:
        """The comparison file with the best settings, which `td.compare` takes."""
        return self.out / "tuned.toml"

    @property
    def best(self) -> dict[str, dict[str, bool | int | float | str]]:
        """The best settings that were found, by entry and key; empty if no trial finished."""
        return {label: one["best"] for label, one in self.table["per_entry"].items()}

    def to_pandas(self) -> pandas.DataFrame:
        """Return a pandas data frame with a row for each entry and a column for each setting."""
        entries = self.table["per_entry"].items()
        return data_frame(
            {"entry": label, **{k: v for k, v in one.items() if k != "best"}, **one["best"]}
            for label, one in entries
        )

    def _rows(self) -> list[list[str]]:
        return [
            [
                label,
                *(f"{number:,}" for number in (one["trials"], one["failed"], one["trips"])),
                "missed" if one["value"] is None else f"{one['value']:.4g}",
                ", ".join(f"{name} = {value}" for name, value in one["best"].items()) or "none",
            ]
            for label, one in self.table["per_entry"].items()
        ]

    def __rich__(self) -> RichTable:
        shown = RichTable(*HEADINGS)
        for row in self._rows():
            shown.add_row(*map(Text, row))
        return shown

    def _repr_html_(self) -> str:
        return html_table(self._rows(), HEADINGS)


def tune(
    entries: Entries | Path | str,
    *,
    out: Path | str,
    base: Config | Table | None = None,
    settings: Tune | Table | None = None,
    seeds: Sequence[int] | None = None,
    targets: Sequence[float] | None = None,
    model: nn.Module | None = None,
    clients: Mapping[Hashable, object] | None = None,
    test: object | None = None,
    head: Head | None = None,
    workers: int | str = 0,
    progress: bool | None = None,
) -> Tuned:
    """Tune every entry with the same number of trials, and return what was found (docs/tuning.md).

    `entries`, `base`: what to tune, as in `td.compare`: entries by label, or a comparison file.
    `out`: the folder for the studies and tuned.toml. Trials that it holds are not repeated.
    `settings`: how to search: trials, budget, objective, search spaces; a dict or `td.Tune`.
    `seeds`, `targets`: those of the comparison; trials use another seed.
    `model`, `clients`, `test`, `head`: the caller's own, as in `td.run`. With them, or with an algorithm of
    one's own, trials are made in this process, each with `workers` as in `td.run`; otherwise entries are
    tuned in parallel processes.
    `progress`: show a progress bar; default: in a notebook and on a terminal.

    Raises a ConfigError if the settings are wrong, or if Optuna is not installed.

    >>> found = tune({"FedBuff": {}}, settings={"trials": 10}, out="runs/tuned")  # doctest: +SKIP
    >>> compare(found.file, out="runs/compared")  # doctest: +SKIP
    """
    file, comparison = read_entries(entries, base, seeds=seeds, targets=targets, tune=settings)
    console = Console(stderr=True)
    quiet = progress is False or (progress is None and not (console.is_terminal or console.is_jupyter))
    own = InMemory(model, clients, test, head, workers)
    source = "tune" if file is None else str(file)
    table = run_tuning(comparison, source, Path(out), console, "quiet" if quiet else "normal", own)
    return Tuned(table, Path(out))
