"""Counters of a server process, for metrics and `tardigrad status`.

>>> staleness = Histogram((0, 1, 5))
>>> for value in (0, 1, 3, 9): staleness.add(value)
>>> staleness.counts, staleness.mean
([1, 1, 1, 1], 3.25)
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import takewhile

from tardigrad.core.outcomes import Accepted, Reason, Rejected, UnknownTrip
from tardigrad.service.protocol.refusal_streaks import RefusalStreaks
from tardigrad.service.protocol.refusals import log

STALENESS = (0, 1, 2, 5, 10, 20, 50, 100, 200)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
LONGEST_SOFTWARE = 64
"""Characters that are kept of what a client says about its software."""
UPLOAD = "upload"
ACTIVE_SECONDS = 300.0
"""Seconds for which a client counts as active after a request."""


class Histogram:
    """Counts of values up to each bound, and of values above the last."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def mean(self) -> float:
        """The mean of all values; 0 if there are none."""
        return self.sum / max(1, sum(self.counts))


class Counters:
    """Counters since the process began. They cost a few additions for each upload and are not stored."""

    def __init__(self) -> None:
        self.staleness = Histogram(STALENESS)
        """Staleness of accepted uploads."""
        self.step_seconds = Histogram(SECONDS)
        """Seconds to add the last upload of a buffer and make the next version."""
        self.commit_seconds = Histogram(SECONDS)
        """Seconds to journal a batch of entries."""
        self.bytes_in = 0
        """Bytes of uploads that were received completely."""
        self.bytes_out = 0
        """Bytes of tasks."""
        self.expired = 0
        """Tickets that expired."""
        self.metrics_dropped = 0
        """Metrics of clients that the server did not take."""
        self.began = time.monotonic()
        self.uploads = RefusalStreaks()
        """Uploads that were received and do not count, by reason."""
        self._trip_seconds = 0.0  # the sum of the trips that ended in an upload that counts
        self._warned = -1.0  # when a refusal because of a norm was last logged
        self._seen: dict[str, float] = {}  # by client: the time of its last request, in ascending order
        self._software: dict[str, str] = {}

    def heard(self, client: str) -> None:
        """Note a request of a client whose signature was verified."""
        self._seen.pop(client, None)
        self._seen[client] = time.monotonic()

    def uses(self, client: str, software: str) -> None:
        """Note the software that an enrolled client says it is: printable ASCII characters, and not many.

        >>> counters = Counters()
        >>> counters.uses("ann", "tardigrad 0.1.0\\n<b>")
        >>> counters.software(["ann", "bob"])
        {'ann': 'tardigrad 0.1.0?<b>'}
        """
        cut = software[:LONGEST_SOFTWARE]
        kept = "".join(c if c.isascii() and c.isprintable() else "?" for c in cut)
        if kept:
            self._software[client] = kept

    def software(self, clients: Iterable[str]) -> dict[str, str]:
        """Return the software of those of these clients that have told it."""
        return {client: self._software[client] for client in clients if client in self._software}

    def dropped(self, client: str, metrics: Sequence[str]) -> None:
        """Count metrics that the server does not take. The first ones are named in the log."""
        if metrics and not self.metrics_dropped:
            log.warning(
                "metrics of %s are dropped (%s): only finite numbers under the names of the head and of "
                "evaluation.metrics are taken", client, ", ".join(metrics[:4]),
                extra={"event": "metrics", "client": client},
            )  # fmt: skip
        self.metrics_dropped += len(metrics)

    def delivered(self, delivery: Accepted | Rejected | UnknownTrip, norm: float) -> None:
        """Count an upload that was applied. A refusal because of its norm is logged as a warning, at most
        once a second."""
        now = time.monotonic()
        reason = None if isinstance(delivery, Accepted) else delivery.reason
        client, staleness = (
            (None, None) if isinstance(delivery, UnknownTrip) else (delivery.client, delivery.staleness)
        )
        if reason in (Reason.NORM, Reason.OUTLIER) and now - self._warned >= 1.0:
            self._warned = now
            log.warning(
                "trip %d of %s does not count (%s): its norm is %g", delivery.trip, client, reason, norm,
                extra={"event": "upload", "client": client, "trip": delivery.trip, "why": reason},
            )  # fmt: skip
        if isinstance(delivery, Accepted):
            self.staleness.add(delivery.staleness)
            self._trip_seconds += delivery.time - delivery.ticket.time
            self.uploads.answered(UPLOAD, now)
        elif isinstance(delivery, Rejected):
            self.uploads.refused(delivery.reason.value, UPLOAD, str(delivery.client), now)
        log.debug(
            "trip %d of %s: %s", delivery.trip, client, reason or "accepted",
            extra={"event": "upload", "client": client, "trip": delivery.trip, "why": reason,
                   "staleness": staleness},
        )  # fmt: skip

    @property
    def trip_seconds(self) -> float | None:
        """The mean seconds of a trip whose upload counts; None before the first."""
        count = sum(self.staleness.counts)
        return self._trip_seconds / count if count else None

    @property
    def clients(self) -> int:
        """How many different clients sent a request."""
        return len(self._seen)

    @property
    def active(self) -> int:
        """How many clients sent a request in the last `ACTIVE_SECONDS`."""
        return len(self.active_clients())

    def active_clients(self) -> list[str]:
        """Return the clients that sent a request in the last `ACTIVE_SECONDS`, the latest first."""
        since = time.monotonic() - ACTIVE_SECONDS
        return [name for name, _ in takewhile(lambda one: one[1] >= since, reversed(self._seen.items()))]

    def silence(self, client: str) -> float | None:
        """Return the seconds since a client's last request; None if this process has had none."""
        then = self._seen.get(client)
        return None if then is None else time.monotonic() - then

    def last_seen(self, most: int) -> dict[str, float]:
        """Return the clients with the latest requests, and how many seconds ago these were."""
        now = time.monotonic()
        names = [name for name, _ in zip(reversed(self._seen), range(most), strict=False)]
        return {name: round(now - self._seen[name], 1) for name in names}
