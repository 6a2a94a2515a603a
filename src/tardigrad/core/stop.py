"""When a run ends."""

from __future__ import annotations

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from tardigrad.core.setting import Setting


class Stop(Setting):
    """The run ends at whichever comes first."""

    trips: PositiveInt | None = None
    """Client trips that ended in an upload, whether it counted or not."""
    steps: PositiveInt | None = None
    """Server steps: the version to reach."""
    virtual_time: PositiveFloat | None = None
    """In the unit of the delays."""
    accuracy: NonNegativeFloat | None = None
    """End as soon as an evaluation reaches this accuracy."""

    @model_validator(mode="after")
    def _ends(self) -> Stop:
        if self.trips is None and self.steps is None and self.virtual_time is None:
            raise ValueError("give at least one of trips, steps and virtual_time, or the run may never end")
        return self

    def reason(
        self, trips: int, version: int, time: float, accuracy: float, objection: str | None = None
    ) -> str | None:
        """Return why a run that has come so far is over, or None if it goes on.

        `accuracy` is that of the last evaluation, 0 before the first. `objection` is what else forbids a
        further step, such as a spent privacy budget; the reasons of this class come first.
        """
        if self.accuracy is not None and accuracy >= self.accuracy:
            return "accuracy"
        if self.trips is not None and trips >= self.trips:
            return "trips"
        if self.steps is not None and version >= self.steps:
            return "steps"
        if self.virtual_time is not None and time > self.virtual_time:
            return "virtual_time"
        return objection
