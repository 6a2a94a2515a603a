"""Stop rules: when a run ends."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from tardigrad.core.metric import Better, Metric
from tardigrad.core.setting import Setting


class Stop(Setting):
    """The limits of a run, which ends when the first of them is reached.

    >>> Stop(steps=100).reason(trips=700, version=100, time=3.5, metrics={})
    'steps'
    >>> stop = Stop(steps=100, metric="rmse", target=3.0)
    >>> stop.reason(trips=70, version=10, time=0.5, metrics={"rmse": 2.9})
    'target'
    """

    trips: PositiveInt | None = None
    """The number of trips that ended in an upload, accepted or not."""
    steps: PositiveInt | None = None
    """The number of server steps, which is the version to reach."""
    virtual_time: PositiveFloat | None = None
    """A time in the unit of the delays."""
    accuracy: NonNegativeFloat | None = None
    """End as soon as an evaluation reaches this accuracy."""
    target: float | None = None
    """End as soon as an evaluation reaches this value of `metric`."""
    metric: str | None = None
    """The metric that `target` is about, such as "auc" (default: evaluation.main)."""
    better: Better | None = None
    """Whether "higher" or "lower" values of `metric` are better (default: known for each metric)."""

    @model_validator(mode="after")
    def _ends(self) -> Stop:
        if self.trips is None and self.steps is None and self.virtual_time is None:
            raise ValueError("give at least one of trips, steps and virtual_time, or the run may never end")
        if self.target is None and (self.metric is not None or self.better is not None):
            raise ValueError("metric and better are about target; give target too")
        return self

    def reason(
        self,
        trips: int,
        version: int,
        time: float,
        metrics: Mapping[str, float],
        objection: str | None = None,
    ) -> str | None:
        """Return why a run is over that has come this far, or None if it continues.

        `metrics` are those of the last evaluation, empty before the first. `objection` is another reason why
        no further step may be made, such as a spent privacy budget; the reasons of this class come first.
        """
        if self.accuracy is not None and metrics.get("accuracy", 0.0) >= self.accuracy:
            return "accuracy"
        if self.target is not None:
            metric = Metric.named(self.metric or "accuracy", self.better)
            value = metrics.get(metric.name)
            if value is not None and metric.reached(value, self.target):
                return "target"
        if self.trips is not None and trips >= self.trips:
            return "trips"
        if self.steps is not None and version >= self.steps:
            return "steps"
        if self.virtual_time is not None and time > self.virtual_time:
            return "virtual_time"
        return objection
