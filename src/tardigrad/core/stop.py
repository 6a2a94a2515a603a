"""Stop rules: when a run ends."""

from __future__ import annotations

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from tardigrad.core.setting import Setting


class Stop(Setting):
    """The limits of a run, which ends when the first of them is reached.

    >>> Stop(steps=100).reason(trips=700, version=100, time=3.5, accuracy=0.0)
    'steps'
    """

    trips: PositiveInt | None = None
    """The number of trips that ended in an upload, accepted or not."""
    steps: PositiveInt | None = None
    """The number of server steps, which is the version to reach."""
    virtual_time: PositiveFloat | None = None
    """A time in the unit of the delays."""
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
        """Return why a run is over that has come this far, or None if it continues.

        `accuracy` is that of the last evaluation, or 0 before the first. `objection` is another reason why no
        further step may be made, such as a spent privacy budget; the reasons of this class take precedence.
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
