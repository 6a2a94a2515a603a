"""metrics.csv in a run's folder: a row for each evaluation."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from tardigrad.core.event_log import to_record
from tardigrad.core.events import Event, ModelEvaluated, evaluations
from tardigrad.core.files import write_text


class MetricsTable:
    """A CSV file that is appended to. It is made from the recorded events again when a run goes on."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._columns: list[str] = []
        self._rows: list[dict[str, object]] = []  # not written yet

    def begin(self, events: Iterable[Event]) -> None:
        """Replace the file by the table of these events."""
        self._columns, self._rows = [], []
        for evaluation in evaluations(events):
            self.add(evaluation)
        self._file.unlink(missing_ok=True)
        if self._rows:
            self.write()

    def add(self, evaluation: ModelEvaluated) -> None:
        """Add a row with the next `write`."""
        record = to_record(evaluation)
        del record["event"]
        self._rows.append(record)

    def write(self) -> None:
        """Append the new rows. If there is a new column, which is rare, the whole table is written again."""
        new = dict.fromkeys(name for row in self._rows for name in row)
        text = io.StringIO()
        if not self._columns or new.keys() - set(self._columns):
            before = list(csv.DictReader(io.StringIO(self._file.read_text()))) if self._columns else []
            self._columns = list(dict.fromkeys([*self._columns, *new]))
            writer = csv.DictWriter(text, self._columns, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows([*before, *self._rows])
            write_text(self._file, text.getvalue())
        elif self._rows:
            writer = csv.DictWriter(text, self._columns, extrasaction="ignore", lineterminator="\n")
            writer.writerows(self._rows)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(text.getvalue())
        self._rows = []
