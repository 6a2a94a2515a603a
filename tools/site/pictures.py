"""The drawn pictures of docs/pictures, of two runs over time, the life of a trip and recorded results:
`make pictures`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import result_pictures
import svg
import tardigrad as td

FOLDER = Path(__file__).parents[2] / "docs/pictures"
CLIENTS = 6
END = 9.0
"""Virtual time that the timeline shows. The runs are longer, so that trips in flight at the end are known."""


def events(algorithm: object, pace: object, buffer: object, end: float) -> list[dict]:
    """Return the events of a run of six clients, of which one is slow, until this time."""
    with tempfile.TemporaryDirectory() as folder:
        td.run(
            seed=4,
            data=td.Digits(partition=td.IID(clients=CLIENTS)),
            delay=td.LogNormal(spread=0.25, device_spread=0.7),
            algorithm=algorithm,
            pace=pace,
            buffer=buffer,
            stop=td.Stop(virtual_time=end),
            evaluation=td.Evaluation(every_trips=10_000),
            out=Path(folder, "run"),
            progress=False,
        )
        return [json.loads(line) for line in Path(folder, "run/events.jsonl").read_text().splitlines()]


def timeline() -> str:
    """Return the picture of FedAvg and FedBuff on the same clients."""
    rounds = events(td.FedAvg(), td.Synchronous(cohort=CLIENTS), td.Buffer(size=CLIENTS), END + 4)
    free = events(td.FedBuff(), td.Asynchronous(concurrency=CLIENTS), td.Buffer(size=3), END + 4)
    parts = [
        *lanes(rounds, 20, "Synchronous: FedAvg, a step when all six have come back"),
        *lanes(free, 250, "Asynchronous: FedBuff, a step for every three uploads"),
    ]
    for i, (kind, words) in enumerate(
        (("fast", "a trip, fresh"), ("slow", "a trip, stale on arrival"), ("stepped", "the model moves"))
    ):
        parts.append(svg.box(96 + 210 * i, 487, 14, 10, kind))
        parts.append(svg.text(118 + 210 * i, 497, words, "small"))
    parts.append(svg.text(840, 497, "virtual time", "small end"))
    return svg.picture(860, 512, "FedAvg and FedBuff on the same six clients, over virtual time", parts)


def lanes(found: list[dict], top: float, title: str) -> list[str]:
    """Return the trips of each client as bars, and steps as lines."""

    def place(time: float) -> float:
        return 84 + 756 * time / END

    uploads = [event for event in found if event["event"] == "upload" and event["start_time"] < END]
    steps = [event for event in found if event["event"] == "step" and event["time"] <= END]
    accepted = sum(event["accepted"] and event["time"] <= END for event in uploads)
    parts = [
        svg.text(20, top + 6, title, "strong"),
        svg.text(840, top + 6, f"{accepted} uploads, {len(steps)} steps", "end"),
    ]
    for event in steps:
        at = place(event["time"])
        parts.append(svg.line(at, top + 18, at, top + 208, "step"))
        parts.append(f'<circle cx="{at:g}" cy="{top + 18:g}" r="3.5" class="stepped"/>')
    for client in range(CLIENTS):
        y = top + 26 + 31 * client
        parts.append(svg.text(20, y + 16, f"client {client}", "small"))
        parts.append(svg.line(84, y + 11, 840, y + 11))
        for event in uploads:
            if event["client"] == client:
                kind = "fast" if event["staleness"] == 0 else "slow"
                start, end = place(event["start_time"]), place(min(event["time"], END))
                hint = f"trip {event['trip']}: staleness {event['staleness']}, weight {event['weight']:.2f}"
                parts.append(svg.box(start + 1, y, max(end - start - 2, 2), 22, kind, hint))
                if event["staleness"] and event["time"] <= END and end - start > 20:  # a number has room
                    parts.append(svg.text(end - 8, y + 16, str(event["staleness"]), "onbar end"))
    return parts


def trip() -> str:
    """Return the picture of one trip: what its client does while the server moves on."""
    x = {3: 110.0, 4: 340.0, 5: 560.0, 6: 770.0}
    parts = [svg.text(20, 60, "server", "strong"), svg.line(90, 55, 840, 55, "arrow")]
    for version, place in x.items():
        parts.append(f'<circle cx="{place:g}" cy="55" r="7" class="stepped"/>')
        parts.append(svg.text(place, 38, f"version {version}", "strong middle"))
    parts += [
        svg.text(20, 190, "client", "strong"),
        svg.arrow(140, 62, 140, 168),
        svg.text(150, 105, "1 check-in: a ticket, version 3", "small"),
        svg.text(150, 123, "2 download", "small"),
        svg.box(140, 168, 500, 36, "fast"),
        svg.text(390, 191, "3 local training, from version 3", "onbar middle"),
        f'{svg.line(640, 168, 640, 70, "arrow")}<polygon points="640,62 636,70 644,70" class="head"/>',
        svg.text(632, 123, "4 upload: delta = start - end", "small end"),
        svg.text(656, 105, "5 staleness 5 - 3 = 2", "small"),
        svg.text(656, 123, "weight (1 + 2)^-0.5 = 0.58", "small"),
        svg.text(656, 141, "into the buffer; when K", "small"),
        svg.text(656, 159, "are in it, version 6", "small"),
    ]
    return svg.picture(860, 224, "The life of a trip", parts)


PICTURES = {
    "timeline.svg": timeline,
    "trip.svg": trip,
    "horizon.svg": result_pictures.horizon,
    "momentum-under-staleness.svg": result_pictures.momentum,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw())
        print(FOLDER / name)
