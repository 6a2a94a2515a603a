"""Why a served run makes no progress, since when, and what can be done: a pure function of `RunFacts`.

>>> explain(RunFacts(came=False, began=90.0))[0].sentence
'No client has come since the server began.'
>>> explain(RunFacts(came=True, in_flight=3, missing=2))[0].sentence
'Nothing is wrong: 3 trips are under way, and the next step needs 2 more uploads.'
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tardigrad.core.outcomes import Reason
from tardigrad.core.plural import counted
from tardigrad.service.monitor.refusal_remedies import PASSING, remedy_of
from tardigrad.service.monitor.run_facts import RunFacts, StreakFacts, TripUnderWay
from tardigrad.service.protocol.refusal_streaks import LONGEST_GAP
from tardigrad.service.protocol.refusals import Cause

MOST_NAMED = 5
"""Clients that a sentence names."""
LONGEST_QUOTE = 120
"""Characters of what a client was told that a sentence quotes."""
USUAL_SILENCE = 3.0
"""A client that trains is silent; so many times the mean trip is too long."""
SHORTEST_SILENCE, UNKNOWN_SILENCE = 60.0, 300.0
"""Seconds of silence that mean nothing: at least, and while no trip has ended yet."""

Severity = Literal["error", "warning", "info"]
ORDER = ("error", "warning", "info")


@dataclass(frozen=True)
class Explanation:
    """One reason why the run is where it is."""

    severity: Severity
    """error: the run stands still until somebody acts; warning: somebody should look; info: all is well."""
    sentence: str
    remedy: str = ""
    """The remedy; "" if there is none."""
    since: float | None = None
    """Seconds for which this has been so; None if that is not known."""


def explain(facts: RunFacts) -> list[Explanation]:
    """Return why the run is where it is, the gravest reason first; at least one."""
    if facts.over:
        return [_over(facts)]
    found = [*_helper(facts), *_refused_uploads(facts), *_refused_requests(facts)]
    if facts.paused_by:  # and what hinders the uploads of trips under way
        found.append(_paused(facts))
    else:
        found += [*_buffer(facts), *_silent_trips(facts)]
        if not any(one.severity == "error" for one in found):
            found += _clients(facts, alone=not found)
    return sorted(found, key=lambda one: ORDER.index(one.severity))


def _over(facts: RunFacts) -> Explanation:
    if not facts.steps_waiting:
        return Explanation("info", f"The run is over ({facts.over}).", "Its result: tardigrad show DIR.")
    steps = counted(facts.steps_waiting, "step")
    return Explanation(
        "error",
        f"The run is over ({facts.over}), but for {steps} that the helpers must release and sign.",
        "Keep the server running, and start the helper that is away.",
        facts.helper_away,
    )


def _paused(facts: RunFacts) -> Explanation:
    trips = (
        f"{counted(facts.in_flight, 'trip')} under way may end" if facts.in_flight else "none is under way"
    )
    return Explanation(
        "warning",
        f"The operator {facts.paused_by} has paused the run: no trip begins, and {trips}.",
        "Resume it: tardigrad admin resume HOST:PORT --key KEY.",
        facts.paused,
    )


def _helper(facts: RunFacts) -> Iterator[Explanation]:
    if facts.helper_away is not None:
        yield Explanation(
            "error",
            "A helper of this secure run cannot be reached, so that no upload counts and no step is made.",
            "Start the helper again, or restore the network to it. Nothing is lost: clients keep their "
            "uploads.",
            facts.helper_away,
        )
    elif facts.steps_waiting:
        yield Explanation(
            "info",
            f"{counted(facts.steps_waiting, 'step')} of this secure run "
            f"{'waits' if facts.steps_waiting == 1 else 'wait'} for the helpers' signatures.",
        )


# -- refusals --------------------------------------------------------------------------------------


def _refused_uploads(facts: RunFacts) -> Iterator[Explanation]:
    """Yield why uploads that are received do not count, if none does since."""
    for streak in facts.upload_refusals:
        if streak.unanswered:
            yield Explanation(
                "error",
                f"All uploads are refused: {streak.reason} ({counted(streak.count, 'time')}; the last was of "
                f"{streak.client}).",
                remedy_of(streak.reason),
                streak.first,
            )


def _refused_requests(facts: RunFacts) -> Iterator[Explanation]:
    """Yield why requests are refused. It is an error if nothing else happens."""
    for streak in sorted(facts.refusals, key=lambda one: -one.count):
        if streak.reason == Cause.HELPER_AWAY and facts.helper_away is not None:
            continue
        progress = facts.accepted is not None and facts.accepted < streak.first
        if streak.unanswered and not progress and (streak.method == "Deliver" or not _busy(facts)):
            what = "All uploads are" if streak.method == "Deliver" else "All requests are"
            yield _of_requests("error", what, streak)
        elif streak.reason == Cause.DISK and streak.unanswered:
            yield _of_requests("error", "Requests are", streak)
        elif streak.reason not in PASSING and streak.last < LONGEST_GAP:
            yield _of_requests("warning", "Some requests are", streak)


def _of_requests(severity: Severity, what: str, streak: StreakFacts) -> Explanation:
    who = f" of {streak.client}" if streak.client else ""
    text = streak.sentence[:LONGEST_QUOTE] + ("..." if len(streak.sentence) > LONGEST_QUOTE else "")
    said = f', answered with "{text}"' if text else ""
    times = counted(streak.count, "time")
    return Explanation(
        severity,
        f"{what} refused: {streak.reason} ({times}; the last was {streak.method}{who}{said}).",
        remedy_of(streak.reason),
        streak.first,
    )


def _busy(facts: RunFacts) -> bool:
    return facts.in_flight > 0 or facts.waiting > 0


# -- the buffer ------------------------------------------------------------------------------------


def _buffer(facts: RunFacts) -> Iterator[Explanation]:
    """Yield why the buffer cannot be filled by the clients that there are."""
    missing = facts.missing
    if missing is None or facts.enrolled is None:
        return
    since = facts.accepted if facts.accepted is not None else facts.began
    needs = f"The next step needs {counted(missing, 'more upload')}, but"
    if facts.possible is not None and facts.possible < missing:
        yield Explanation(
            "error",
            f"{needs} the {counted(facts.enrolled, 'enrolled client')} may give only {facts.possible:,} to it"
            f"{_limits(facts)}.",
            f"Enroll {counted(_more(facts, missing - facts.possible), 'more client')} (`tardigrad "
            f"enroll NAME`). " + _for_next_run(facts),
            since,
        )
    elif not facts.came:
        return  # that nobody has come is the better explanation
    elif facts.possible_now is not None and facts.possible_now < missing:
        yield Explanation(
            "warning",
            f"{needs} the {counted(facts.active or 0, 'client')} that came in the last minutes may give only "
            f"{facts.possible_now:,} to it{_limits(facts)}. It waits for others.",
            "Start the enrolled clients that are away, or enroll more. " + _for_next_run(facts),
            since,
        )


def _more(facts: RunFacts, uploads: int) -> int:
    return -(-uploads // (facts.share or 1))


def _limits(facts: RunFacts) -> str:
    """Return what limits the uploads of a client, in brackets."""
    told = {
        Reason.RESTING: "rest after a step (privacy.separation)",
        Reason.FINISHED: "took part as often as allowed (privacy.participations)",
        Reason.CONTRIBUTED: "have given their share of this buffer",
    }
    parts = [f"{count:,} {told[Reason(reason)]}" for reason, count in facts.objections]
    if facts.share is not None:
        parts.append(f"at most {facts.share:,} of each: buffer.most_per_client or once_per_client")
    return f" ({'; '.join(parts)})" if parts else ""


def _for_next_run(facts: RunFacts) -> str:
    resting = dict(facts.objections).get(Reason.RESTING, 0)
    finished = dict(facts.objections).get(Reason.FINISHED, 0)
    setting = (
        "a larger buffer.most_per_client" if facts.share is not None else "a larger privacy.participations"
    )
    if resting > finished:
        setting = "a smaller privacy.separation"
    return f"For the next run: a smaller buffer.size, or {setting}."


# -- clients ---------------------------------------------------------------------------------------


def _silent_trips(facts: RunFacts) -> Iterator[Explanation]:
    """Yield that all trips under way are with clients that are silent for longer than a trip takes."""
    usual = facts.trip_seconds
    limit = UNKNOWN_SILENCE if usual is None else max(SHORTEST_SILENCE, USUAL_SILENCE * usual)
    if not facts.trips or any(one.silent <= limit for one in facts.trips):
        return
    least, most = (shown_seconds(pick(one.left for one in facts.trips)) for pick in (min, max))
    expire = f"in {least}" if least == most else f"in {least} to {most}"
    mean = "" if usual is None else f", and a trip takes {shown_seconds(usual)} on average"
    yield Explanation(
        "warning",
        f"All {counted(facts.in_flight, 'trip')} under way belong to clients that are silent: "
        f"{_named(facts.trips)}{mean}. Their tickets expire {expire}.",
        "Look after these clients. When the tickets expire, others get the tasks; if trips are never "
        "that long, "
        f"start the server again with a service.ticket_seconds below {facts.ticket_seconds or 0:g}.",
        min(one.silent for one in facts.trips),
    )


def _clients(facts: RunFacts, alone: bool) -> Iterator[Explanation]:
    """Yield what the clients do. `alone`: whether there is no other explanation."""
    join = "Start clients: tardigrad join HOST:PORT --key KEY. Check that they reach this address and port."
    if facts.came is False and not _busy(facts):
        if alone:
            yield Explanation("warning", "No client has come since the server began.", join, facts.began)
    elif facts.in_flight:
        yield from _under_way(facts, alone)
    elif facts.waiting:
        yield Explanation("info", f"No trip is under way; {_wait(facts.waiting)} for a task.")
    elif alone:
        yield Explanation("warning", "No trip is under way, and no client waits for one.", join, facts.heard)


def _under_way(facts: RunFacts, alone: bool) -> Iterator[Explanation]:
    trips = f"{facts.in_flight:,} {'trip is' if facts.in_flight == 1 else 'trips are'} under way"
    needs = (
        "" if facts.missing is None else f", and the next step needs {counted(facts.missing, 'more upload')}"
    )
    well = "Nothing is wrong: " if alone and facts.came is not None else ""
    yield Explanation("info", f"{well}{trips}{needs}.")
    if facts.waiting and facts.capacity is not None and facts.capacity <= 0:
        yield Explanation(
            "info", f"The pace allows no more than these trips; {_wait(facts.waiting)} for one to end."
        )


# -- words -----------------------------------------------------------------------------------------


def _named(trips: tuple[TripUnderWay, ...]) -> str:
    """Return the names of the clients that are silent longest, and for how long."""
    longest = sorted(trips, key=lambda one: -one.silent)
    names = [f"{one.client} ({shown_seconds(one.silent)})" for one in longest[:MOST_NAMED]]
    return ", ".join(names) + (", ..." if len(trips) > MOST_NAMED else "")


def _wait(clients: int) -> str:
    return f"{counted(clients, 'client')} {'waits' if clients == 1 else 'wait'}"


def shown_seconds(seconds: float) -> str:
    """Return a duration in the unit that suits it.

    >>> shown_seconds(45), shown_seconds(610), shown_seconds(9000)
    ('45 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
