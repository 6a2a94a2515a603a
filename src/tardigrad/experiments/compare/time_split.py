"""Where the time of trips went: download, training, upload, and waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tardigrad.core.events import UploadReceived


class TimeSplit(NamedTuple):
    """Shares of the time of all trips that ended with an upload. They add up to 1.

    >>> TimeSplit(0.1, 0.2, 0.7, 0.0).sentence()
    '80 % of a trip is network (download 10 %, upload 70 %), 20 % is training'
    """

    download: float
    compute: float
    upload: float
    waiting: float
    """For the server's uplink, or for an earlier task of the client."""

    def sentence(self) -> str:
        """Return the shares in words."""
        network = self.download + self.upload
        waiting = f", {self.waiting:.0%} is waiting" if self.waiting >= 0.005 else ""
        text = (
            f"{network:.0%} of a trip is network (download {self.download:.0%}, upload {self.upload:.0%}), "
            f"{self.compute:.0%} is training{waiting}"
        )
        return text.replace("%", " %")

    @classmethod
    def mean(cls, splits: Sequence[TimeSplit]) -> TimeSplit:
        """Return the means over several runs."""
        return cls(*(sum(column) / len(splits) for column in zip(*splits)))


class TripTimeSum:
    """Adds up the times in events."""

    def __init__(self) -> None:
        self._parts = [0.0, 0.0, 0.0]
        self._whole = 0.0

    def add(self, event: UploadReceived) -> None:
        """Add a trip, if its event has times."""
        parts = event.download_time, event.compute_time, event.upload_time
        if event.start_time is None or None in parts:
            return
        self._whole += event.time - event.start_time
        for n, part in enumerate(parts):
            self._parts[n] += part or 0.0

    def split(self) -> TimeSplit | None:
        """Return the shares, or None if no event had times."""
        if self._whole <= 0:
            return None
        download, compute, upload = (part / self._whole for part in self._parts)
        return TimeSplit(download, compute, upload, max(0.0, 1.0 - download - compute - upload))
