"""Events of a small asynchronous run, made by arithmetic."""

from tardigrad.core.events import (
    CheckInRefused,
    ModelEvaluated,
    ModelMoved,
    RunEnded,
    RunStarted,
    TripGivenUp,
    UploadReceived,
)


def a_run(trips=60, buffer=4, clients=7, end=True, private=False, seed=5):
    """A run in which each tenth upload is refused and some trips are given up."""
    version = filled = accepted = 0
    events = [RunStarted(1, seed), ModelEvaluated(0, 0, 0.0, metrics={"loss": 2.3, "accuracy": 0.1})]
    for trip in range(trips):
        time, client = 0.5 + trip * 0.25, f"client-{trip % clients}"
        stale = min(version, trip % 3)
        refused = trip % 10 == 9
        accepted += not refused
        events.append(
            UploadReceived(
                trip, client, time - 0.4 - 0.05 * stale, time, version - stale, version, stale,
                0.0 if refused else (1 + stale) ** -0.5, not refused, "too stale" if refused else None,
                None if refused else version + 1,
            )
        )  # fmt: skip
        filled += not refused
        if filled == buffer:
            version, filled = version + 1, 0
            told = {"epsilon": 0.1 * version} if private else {}
            events.append(ModelMoved(version, trip + 1, time, 1000 * trip, 2.0 / version, metrics=told))
            if version % 2 == 0:
                metrics = {"loss": 2.3 / (1 + version), "accuracy": 1 - 0.9 / (1 + version)}
                events.append(ModelEvaluated(version, trip + 1, time, 1000 * trip, metrics=metrics))
        if trip % 20 == 7:
            events.append(TripGivenUp(1000 + trip, client, time - 0.2, time, version))
            events.append(CheckInRefused(client="client-0", time=time, reason="no room"))
    if end:
        events.append(RunEnded("trips", version, trips, 0.5 + trips * 0.25, 1000 * trips))
    return events
