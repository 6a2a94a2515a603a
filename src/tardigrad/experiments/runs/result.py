"""The result of a run, whether it was simulated or served."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from torch import Tensor

from tardigrad.core.event_log import read_events
from tardigrad.core.events import ModelEvaluated, evaluations
from tardigrad.experiments.runs.run_folder import RunFolder
from tardigrad.learning.heads.baseline import Baseline


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
    accuracy: float | None
    """Of the last evaluation; None if it has none."""
    main: str = field(default="accuracy", kw_only=True)
    """The metric that targets, tables and charts are about; its value is `result.metrics[result.main]`."""
    baseline: Baseline | None = field(default=None, kw_only=True)
    """What a model that ignores its input gets on the test set; None if that is not known."""
    loss: float | None
    """Of the last evaluation; None if it has none."""
    model_sha256: str
    """SHA-256 of the final parameters; equal for two runs with the same bits."""
    wall_seconds: float
    """Duration of the run, over all sessions of a simulation."""
    profile: dict[str, float]
    """Seconds by kind of work in the last session, of this process and of all "workers" together; empty
    unless `run` was called with `profile=True`."""
    trips_per_second: float
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


def result_of(folder: RunFolder) -> Result:
    """Return the result of a finished run from its folder."""
    summary = folder.summary
    assert summary is not None
    return Result(**summary, history=evaluations(read_events(folder.events)), model=folder.model())
