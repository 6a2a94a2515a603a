"""Limits on the norms of uploads, for runs without privacy.

The decision about an upload is made once, when it is received, and journaled with it. A recovery repeats the
decision and never makes it again, so that limits may be changed between two starts of one run.

>>> admission = Admission(largest=1e18, multiple=100.0)
>>> for norm in [1.0] * 20: admission.accepted(norm)
>>> admission.refusal(99.0), admission.refusal(101.0), admission.refusal(1e30)
(None, <Reason.OUTLIER: 'norm far above the others'>, <Reason.NORM: 'norm too large'>)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median

from tardigrad.core.bookkeeping import Buffer
from tardigrad.core.outcomes import Reason

WINDOW = 200
"""How many norms of accepted uploads are kept."""
ENOUGH = 20
"""How many uploads must be accepted before the median is used as a limit."""
LARGEST_NORM = 1e18
"""Adaptive algorithms square the mean of a buffer: the square must be well below the largest number of
float32, which is 3.4e38."""
LARGEST_SUM = 1e38


def largest_norm(buffer: Buffer, opening: int, most_examples: int) -> float:
    """Return the largest norm with which the weighted sum of a full buffer cannot overflow in float32."""
    uploads = max(buffer.size or 1, opening)
    weight = most_examples if buffer.weights == "examples" else 1
    return min(LARGEST_NORM, LARGEST_SUM / (uploads * weight))


class Admission:
    """Decides by their norms which uploads count. The limit follows from the norms of accepted uploads."""

    def __init__(self, largest: float, bound: float | None = None, multiple: float = 0.0) -> None:
        """`bound`: a limit that the operator has set. `multiple`: how many times the median a norm may be, or
        0 for no such limit."""
        self._largest = largest if bound is None else min(largest, bound)
        self._multiple = multiple
        self._norms: deque[float] = deque(maxlen=WINDOW)
        self._median: float | None = None

    def refusal(self, norm: float) -> Reason | None:
        """Return why an upload of this norm does not count, or None. May be called from any thread."""
        median_norm = self._median
        if not norm <= self._largest:
            return Reason.NORM
        return Reason.OUTLIER if median_norm is not None and norm > self._multiple * median_norm else None

    def accepted(self, norm: float) -> None:
        """Add the norm of an upload that counts."""
        self._norms.append(norm)
        self._update_median()

    def _update_median(self) -> None:
        known = self._multiple > 0 and len(self._norms) >= ENOUGH
        self._median = (median(self._norms) or None) if known else None  # no limit while most are 0

    def state(self) -> list[float]:
        """Return the norms as JSON."""
        return list(self._norms)

    def restore(self, norms: Iterable[float]) -> None:
        """Go on from `state()`."""
        self._norms = deque(norms, maxlen=WINDOW)
        self._update_median()
