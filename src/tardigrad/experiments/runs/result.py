"""The result of a run, whether it was simulated or served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from tardigrad.core.event_log import read_events
from tardigrad.core.events import ModelEvaluated, evaluations
from tardigrad.experiments.runs.notebook_tables import data_frame, html_table
from tardigrad.experiments.runs.run_folder import RunFolder
from tardigrad.learning.heads.baseline import Baseline

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from rich.table import Table


@dataclass(frozen=True)
class RunTotals:
    """The counts and the model at the end of a run, as its driver gives them."""

    model: Tensor
    """The model that is evaluated and saved, as one flat vector."""
    trips: int
    version: int
    time: float
    bytes: int
    given_up: int
    refused: dict[str, int]
    metrics: dict[str, float]
    stopped_by: str


@dataclass(frozen=True)
class Result:
    """The result of a finished run, as `run` and `serve` return it.

    >>> result = run(stop=Stop(trips=500))  # doctest: +SKIP
    >>> result.accuracy, result.steps, len(result.history)  # doctest: +SKIP
    >>> module.load_state_dict(result.model)  # doctest: +SKIP
    """

    client_trips: int
    """Trips that ended with an upload, accepted or refused."""
    steps: int
    """How many times the model moved."""
    virtual_time: float
    """The time at the end: virtual in a simulation, seconds of service on a server."""
    bytes: int
    """Bytes sent in both directions."""
    bytes_up: int | None = field(default=None, kw_only=True)
    """Bytes of uploads; the rest of `bytes` are downloads. None in results of earlier versions."""
    accuracy: float | None
    """The accuracy in the last evaluation; None if it has none."""
    main: str = field(default="accuracy", kw_only=True)
    """The metric that targets, tables and charts are about; its value is `result.metrics[result.main]`."""
    baseline: Baseline | None = field(default=None, kw_only=True)
    """The metrics of a model that ignores its input, on the test set; None if they are not known."""
    loss: float | None
    """The loss in the last evaluation; None if it has none."""
    model_sha256: str
    """SHA-256 of the final parameters; equal for two runs with the same bits."""
    wall_seconds: float
    """Duration of the run, over all sessions of a simulation."""
    profile: dict[str, float]
    """Seconds by kind of work in the last session, of this process and of all "workers" together; empty
    unless `run` was called with `profile=True`."""
    trips_per_second: float
    """Client trips in a second of `wall_seconds`."""
    refused: dict[str, int]
    """Uploads that were refused, by reason."""
    given_up: int
    """Trips that ended without an upload."""
    stopped_by: str
    """The limit that ended the run, such as "trips"."""
    epsilon: float | None
    """The privacy loss of the run at privacy.delta; None if no privacy is promised."""
    privacy_void: str | None = field(default=None, kw_only=True)
    """Why this run is not private although it has a privacy table; None if epsilon holds."""
    oracle: bool
    """Whether the algorithm used information that only a simulation has."""
    metrics: dict[str, float]
    """All metrics of the last evaluation."""
    history: list[ModelEvaluated] = field(repr=False, default_factory=list)
    """All evaluations in order."""
    model: dict[str, Tensor] = field(repr=False, default_factory=dict)
    """The final model, for `load_state_dict`."""

    def summary(self) -> dict[str, object]:
        """Return all fields except the history and the model, as `--json` prints them."""
        return {k: v for k, v in asdict(self).items() if k not in ("history", "model")}

    def plot(self, path: Path | str | None = None, metrics: Sequence[str] = ()) -> Figure:
        """Return a matplotlib figure with the metrics over client trips and their baseline, which notebooks
        show.

        `path`: also write it to this file (.png, .svg or .pdf).
        `metrics`: the metrics to draw; default: the main one, loss and the next ones, at most four.

        >>> result.plot("curves.png", metrics=["loss"])  # doctest: +SKIP
        """
        from tardigrad.experiments.runs.result_picture import draw_history, save_picture

        figure = draw_history(self.history, metrics, self.main, self.baseline)
        if path is not None:
            save_picture(figure, path)
        return figure

    def to_pandas(self) -> pandas.DataFrame:
        """Return the evaluations as a pandas data frame, with a row for each and a column for each metric.

        >>> result.to_pandas().set_index("trips")["accuracy"]  # doctest: +SKIP
        """
        counts = ("version", "trips", "time", "bytes", "federated")
        return data_frame(
            {**{name: getattr(one, name) for name in counts}, **one.metrics} for one in self.history
        )

    def __rich__(self) -> Table:
        from tardigrad.experiments.runs.run_tables import summary_table

        return summary_table(self.summary())

    def _repr_html_(self) -> str:
        from tardigrad.experiments.runs.run_tables import summary_rows

        return html_table(summary_rows(self.summary()))


def result_of(folder: RunFolder) -> Result:
    """Return the result of a finished run from its folder."""
    summary = folder.summary
    assert summary is not None
    return Result(**summary, history=evaluations(read_events(folder.events)), model=folder.model())
