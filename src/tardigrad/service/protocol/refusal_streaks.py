"""Streaks of refusals: since when something is refused for one reason, and whether anything else succeeded.

>>> streaks = RefusalStreaks()
>>> streaks.refused("not enrolled", "Join", "ann", now=10.0)
>>> streaks.refused("not enrolled", "Join", "ann", now=12.0)
>>> streaks.found["not enrolled"].count, streaks.unanswered(streaks.found["not enrolled"])
(2, True)
>>> streaks.answered("Join", now=13.0)
>>> streaks.unanswered(streaks.found["not enrolled"])
False
"""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_GAP = 300.0
"""Seconds without a refusal after which the next one of the same reason begins a new streak."""


@dataclass
class RefusalStreak:
    """Refusals of one reason that followed each other within minutes."""

    reason: str
    method: str
    """The last refusal: the name of a call, or "upload" for an upload that was received and does
    not count."""
    client: str
    """Who was refused last; "" if that is not known."""
    first: float
    """The time of the first refusal, by the clock of the caller."""
    last: float
    count: int = 1
    sentence: str = ""
    """The error message that was sent last."""


class RefusalStreaks:
    """The last streak of each reason, and when each kind of call succeeded last."""

    def __init__(self) -> None:
        self.found: dict[str, RefusalStreak] = {}
        """By reason."""
        self._answered: dict[str, float] = {}

    def refused(self, reason: str, method: str, client: str, now: float, sentence: str = "") -> None:
        """Note a refusal. `sentence`: what the client is told."""
        streak = self.found.get(reason)
        if streak is None or now - streak.last > LONGEST_GAP:
            self.found[reason] = RefusalStreak(reason, method, client, now, now, sentence=sentence)
        else:
            streak.method, streak.client, streak.last, streak.sentence = method, client, now, sentence
            streak.count += 1

    def answered(self, method: str, now: float) -> None:
        """Note a call that was not refused."""
        self._answered[method] = now

    def last_answer(self, method: str) -> float | None:
        """Return when such a call succeeded last, or None if none did."""
        return self._answered.get(method)

    def unanswered(self, streak: RefusalStreak) -> bool:
        """Return whether no call of this kind succeeded since the streak began."""
        return self._answered.get(streak.method, float("-inf")) < streak.first
