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
